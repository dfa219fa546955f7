package image

import (
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Image is a share in the mount of an image. Close gives it back; clones that were made from it live on.
type Image struct {
	store  *Store
	shared *shared

	mu     sync.RWMutex // guards closed, and keeps the mount while a clone is being made
	closed bool
}

// Name is the name under which the image was opened.
func (im *Image) Name() string { return im.shared.name }

// Config is the image's config.json. The caller must not change what it points at.
func (im *Image) Config() Config { return im.shared.config }

// Digest names the image's content, "sha256:…"; it is empty when config.json gives none.
func (im *Image) Digest() string { return im.shared.config.Digest }

// Looped tells that the kernel couldn't mount the file itself, so that a loop device is in between.
func (im *Image) Looped() bool { return im.shared.looped }

// Clone makes a detached, read-only mount of the image whose owners are mapped by the user namespace: what belongs to
// 0 in the image belongs to the namespace's root. The caller closes the descriptor.
func (im *Image) Clone(usernsFD int) (int, error) {
	im.mu.RLock()
	defer im.mu.RUnlock()
	fd, err := -1, os.ErrClosed
	switch {
	case im.closed:
	case im.shared.file == nil:
		fd, err = cloneMount(im.shared.mount, usernsFD)
	default:
		if fd, _, err = mountFile(im.shared.file, im.shared.looped); err == nil {
			err = mapOwners(fd, usernsFD)
		}
	}
	if err != nil {
		closeIfOpen(fd)
		return -1, fmt.Errorf("clone image %s: %w", im.Name(), err)
	}
	return fd, nil
}

// Tree makes a detached, read-only mount of the image as it is, for reading all of it. The caller closes the descriptor.
func (im *Image) Tree() (int, error) {
	im.mu.RLock()
	defer im.mu.RUnlock()
	fd, err := -1, os.ErrClosed
	switch {
	case im.closed:
	case im.shared.file == nil:
		fd, err = unix.OpenTree(im.shared.mount, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	default:
		fd, _, err = mountFile(im.shared.file, im.shared.looped)
	}
	if err != nil {
		return -1, fmt.Errorf("tree of image %s: %w", im.Name(), err)
	}
	return fd, nil
}

// Close gives the share back. Closing again does nothing.
func (im *Image) Close() error {
	im.mu.Lock()
	defer im.mu.Unlock()
	if im.closed {
		return nil
	}
	im.closed = true
	return im.store.release(im.shared)
}
