package importer

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/dsec-io/dsec/api"
)

// fieldArchive is the field of faults in what was uploaded.
const fieldArchive = "archive"

// fault is a fault of the archive.
func fault(format string, args ...any) error {
	return api.FieldError(api.CodeInvalid, fieldArchive, "", format, args...)
}

// refusal is of something that is well-formed and yet can't be in an image.
func refusal(hint, format string, args ...any) error {
	return api.FieldError(api.CodeUnsupportedConstraint, fieldArchive, hint, format, args...)
}

func tooLarge(format string, args ...any) error {
	return api.FieldError(api.CodeTooLarge, fieldArchive, "", format, args...)
}

// Stored makes an error of writing to the store one that a client understands.
func Stored(what string, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		full := api.Errorf(api.CodeDiskFull, "the disk with the image store is full")
		full.Hint = "`dsec image gc --all` removes the images that no sandbox uses"
		return fmt.Errorf("%s: %w", what, errors.Join(full, err))
	}
	return fmt.Errorf("%s: %w", what, err)
}
