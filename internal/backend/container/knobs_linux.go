package container

import (
	"fmt"
	"sync"

	"github.com/dsec-io/dsec/internal/linux/mount"
	"golang.org/x/sys/unix"
)

// knobUses is how many user namespaces are set up through one mount of /proc.
const knobUses = 32

// knobs are mounts of /proc through which the limits of new user namespaces are set.
//
// For each file below /proc/sys the kernel keeps a name for every namespace that looked at it through one mount, as long
// as the namespace lives, and all in one chain. With thousands of sandboxes every look at such a file, by anybody on the
// machine, walked that chain: at 8,000 it was half of the work of a create. So after a few namespaces a mount is given up,
// and its names with it.
type knobs struct {
	// mu guards what follows.
	mu   sync.Mutex
	fd   int
	left int
}

func newKnobs() *knobs { return &knobs{fd: -1} }

// take returns a mount of /proc. The descriptor is the caller's.
func (k *knobs) take() (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.left == 0 {
		fd, err := mount.New("proc", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
		if err != nil {
			return -1, err
		}
		closeFD(k.fd)
		k.fd, k.left = fd, knobUses
	}
	k.left--
	fd, err := unix.FcntlInt(uintptr(k.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("duplicate a mount of /proc: %w", err)
	}
	return fd, nil
}

func (k *knobs) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	closeFD(k.fd)
	k.fd, k.left = -1, 0
}
