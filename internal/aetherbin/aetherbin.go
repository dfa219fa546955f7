// Package aetherbin carries the program dsec-aether inside the program dsec, so that a node needs one file.
//
// A clean clone builds without it: then only this file's folder's placeholder is embedded, and [Program] says how to get
// the real one. Everything here is constant and safe for concurrent use.
package aetherbin

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
)

//go:embed bin
var files embed.FS

// ErrMissing says that this build has no dsec-aether inside.
var ErrMissing = errors.New("this build of dsec has no dsec-aether inside: build it with `make build`")

// Program returns dsec-aether for this machine. The caller must not change it.
func Program() ([]byte, error) {
	b, err := files.ReadFile("bin/dsec-aether-" + runtime.GOARCH)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrMissing
	}
	if err != nil {
		return nil, fmt.Errorf("embedded dsec-aether: %w", err)
	}
	return b, nil
}
