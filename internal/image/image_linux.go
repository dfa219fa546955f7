// Package image finds images in the stores of this machine and gives out mounts of them.
package image

import (
	"context"
	"errors"
	"log/slog"
)

// Config is an image's config.json: what a command in it gets when the request doesn't say otherwise.
type Config struct {
	Env        []string `json:"env"` // "K=V"
	User       string   `json:"user"`
	WorkDir    string   `json:"workdir"`
	Entrypoint []string `json:"entrypoint"`
	Cmd        []string `json:"cmd"`
	Hostname   string   `json:"hostname"`
	Digest     string   `json:"digest"` // "sha256:" and 64 hex digits, of image.erofs
}

// Info describes an image in a list.
type Info struct {
	Name   string
	Digest string
	Dir    string // the store that has it
	Size   int64  // bytes of image.erofs
	Err    error  // why it can't be used, nil if it can
}

// BrokenError says that an image is there but can't be used.
type BrokenError struct {
	Name string
	File string
	Err  error
}

func (e *BrokenError) Error() string { return "image " + e.Name + ": " + e.File + ": " + e.Err.Error() }

func (e *BrokenError) Unwrap() error { return e.Err }

// Store looks images up and shares one mount among all users of an image.
type Store struct{}

// NewStore makes a store over dirs, of which the first that has a name wins. A directory need not exist.
func NewStore(logger *slog.Logger, dirs ...string) *Store { return &Store{} }

// Open finds the image called name and mounts it, or takes a share in the mount that exists.
func (s *Store) Open(ctx context.Context, name string) (*Image, error) {
	return nil, errors.ErrUnsupported
}

// List tells the images of all stores, by name, those that another store hides left out.
func (s *Store) List() ([]Info, error) { return nil, errors.ErrUnsupported }

// Image is a share in the mount of an image. Close gives it back; clones that were made from it go on.
type Image struct{}

// Name is the name under which the image was opened.
func (im *Image) Name() string { return "" }

// Config is the image's config.json. The caller must not change what it points at.
func (im *Image) Config() Config { return Config{} }

// Digest names the image's content, "sha256:...".
func (im *Image) Digest() string { return "" }

// Looped tells that the kernel couldn't mount the file itself, so that a loop device is in between.
func (im *Image) Looped() bool { return false }

// Clone makes a detached mount of the image, read-only, whose owners are mapped into the user namespace. The caller
// closes the descriptor.
func (im *Image) Clone(usernsFD int) (int, error) { return -1, errors.ErrUnsupported }

// Close gives the share back.
func (im *Image) Close() error { return nil }
