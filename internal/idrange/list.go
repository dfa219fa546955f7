package idrange

import (
	"context"
	"slices"
)

// Claim tells that an instance has claimed ids.
type Claim struct {
	Instance string
	DataDir  string // where the instance was when it claimed them
}

// List tells who has claimed ids in a machine-wide file (default /run/dsec/idranges.json). A file that isn't there has no
// claims.
func List(file string) ([]Claim, error) {
	if file == "" {
		file = defaultFile
	}
	f, err := load(file)
	if err != nil {
		return nil, err
	}
	var list []Claim
	for _, c := range f.Claims {
		list = append(list, Claim{Instance: c.Instance, DataDir: c.DataDir})
	}
	return list, nil
}

// Forget removes an instance's claim, unless still, asked under the file's lock, says that it is needed. It tells whether
// there was one to remove.
func Forget(ctx context.Context, file, instance string, still func() bool) (forgotten bool, err error) {
	if file == "" {
		file = defaultFile
	}
	err = update(ctx, Config{File: file}, func(f *claims) error {
		f.Claims = slices.DeleteFunc(f.Claims, func(c *claim) bool {
			drop := c.Instance == instance && !still()
			forgotten = forgotten || drop
			return drop
		})
		return nil
	})
	return forgotten, err
}
