// Package mount makes mounts by descriptor, with the calls of Linux 5.2 and later.
//
// A mount made here is detached: it has no place in any mount namespace until somebody moves it to one, and it goes
// with its last descriptor. So nothing is named on the host, and nothing is left when the program dies. All functions
// may be called concurrently; callers own the descriptors they get.
package mount

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// Option is a file system's mount option. An option without a value is a flag.
type Option struct{ Key, Value string }

// New makes a detached mount of a new instance of a file system. attrs are MOUNT_ATTR_ bits.
func New(fstype string, attrs int, opts ...Option) (int, error) {
	fs, err := unix.Fsopen(fstype, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("open file system %s: %w", fstype, err)
	}
	defer unix.Close(fs)
	for _, o := range opts {
		if o.Value == "" {
			err = unix.FsconfigSetFlag(fs, o.Key)
		} else {
			err = unix.FsconfigSetString(fs, o.Key, o.Value)
		}
		if err != nil {
			return -1, told(fs, fmt.Errorf("%s option %s=%s: %w", fstype, o.Key, o.Value, err))
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, told(fs, fmt.Errorf("create %s: %w", fstype, err))
	}
	m, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, attrs)
	if err != nil {
		return -1, told(fs, fmt.Errorf("mount %s: %w", fstype, err))
	}
	return m, nil
}

// told adds what the kernel wrote into the context's log: an errno alone seldom says which option it dislikes.
func told(fs int, err error) error {
	var b [1024]byte
	for {
		n, e := unix.Read(fs, b[:])
		if e != nil || n == 0 {
			return err
		}
		err = fmt.Errorf("%w (%s)", err, strings.TrimSpace(string(b[:n])))
	}
}

// Clone makes a detached copy of the mount that path, relative to dir, is on, with path as its root. An empty path is
// dir itself.
func Clone(dir int, path string) (int, error) {
	flags := uint(unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC | unix.AT_SYMLINK_NOFOLLOW)
	if path == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	m, err := unix.OpenTree(dir, path, flags)
	if err != nil {
		return -1, fmt.Errorf("clone mount of %q: %w", path, err)
	}
	return m, nil
}

// SetAttrs sets MOUNT_ATTR_ bits on a mount.
func SetAttrs(m int, set uint64) error {
	attr := unix.MountAttr{Attr_set: set}
	if err := unix.MountSetattr(m, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return fmt.Errorf("set mount attributes %#x: %w", set, err)
	}
	return nil
}

// IDMap maps the owners of a detached mount into a user namespace. It can be done once per mount.
func IDMap(m, userns int) error {
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(userns)}
	err := unix.MountSetattr(m, "", unix.AT_EMPTY_PATH, &attr)
	if errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("map the owners of a mount: %w (does this file system support it?)", err)
	}
	if err != nil {
		return fmt.Errorf("map the owners of a mount: %w", err)
	}
	return nil
}

// FDPath names an open file by a path that says nothing about where it is. It is good for this process only.
func FDPath(fd int) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }
