package image

import (
	"fmt"
	"path/filepath"

	"github.com/dsec-io/dsec/api"
)

// BrokenError says that an image is there but can't be used, and which of its files is at fault. Towards a client it
// is an [api.Error], which doesn't tell where on the machine the file is.
type BrokenError struct {
	Name string
	File string
	Err  error
}

func (e *BrokenError) Error() string {
	return fmt.Sprintf("image %s is broken: %s: %v", e.Name, e.File, e.Err)
}

// Unwrap is the cause, and what a client is told.
func (e *BrokenError) Unwrap() []error {
	told := api.FieldError(api.CodeInternal, "image", "make the image anew, for the standard images with `make setup`",
		"image %s is broken: %s: %v", e.Name, filepath.Base(e.File), e.Err)
	return []error{e.Err, told}
}

// CheckName refuses everything but [a-z0-9][a-z0-9._-]{0,127}.
func CheckName(name string) error {
	ok := len(name) > 0 && len(name) <= 128
	for i, c := range []byte(name) {
		letter := 'a' <= c && c <= 'z' || '0' <= c && c <= '9'
		ok = ok && (letter || i > 0 && (c == '.' || c == '_' || c == '-'))
	}
	if ok {
		return nil
	}
	return api.FieldError(api.CodeInvalid, "image",
		"an image's name has a-z, 0-9 and, but for the first, . _ -; at most 128 in all", "%.140q isn't the name of an image", name)
}

func noSuchImage(name string) error {
	return api.FieldError(api.CodeNoSuchImage, "image",
		"`make setup` makes the standard images, `dsec image ls` lists those that there are",
		"there is no image %s on this machine", name)
}
