// Package knobs has mounts of /proc through which the limits of new user namespaces are set.
//
// For each file below /proc/sys the kernel keeps a name for every namespace that looked at it through one mount, as long
// as the namespace lives, and all in one chain. With thousands of sandboxes every look at such a file, by anybody on the
// machine, walked that chain: at 8,000 it was half of the work of a create. So after a few namespaces a mount is given up,
// and its names with it.
package knobs

import (
	"fmt"
	"sync"

	"github.com/dsec-io/dsec/internal/linux/mount"
	"golang.org/x/sys/unix"
)

// uses is how many user namespaces are set up through one mount of /proc.
const uses = 32

// Knobs is a mount that is renewed. It is safe for concurrent use.
type Knobs struct {
	// mu guards what follows.
	mu   sync.Mutex
	fd   int
	left int
}

// New makes Knobs without a mount: the first Take makes it.
func New() *Knobs { return &Knobs{fd: -1} }

// Take returns a mount of /proc. The descriptor is the caller's.
func (k *Knobs) Take() (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.left == 0 {
		fd, err := mount.New("proc", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
		if err != nil {
			return -1, err
		}
		k.drop()
		k.fd, k.left = fd, uses
	}
	k.left--
	fd, err := unix.FcntlInt(uintptr(k.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("duplicate a mount of /proc: %w", err)
	}
	return fd, nil
}

// Close gives the mount up.
func (k *Knobs) Close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.drop()
	k.fd, k.left = -1, 0
}

func (k *Knobs) drop() {
	if k.fd >= 0 {
		_ = unix.Close(k.fd)
	}
}
