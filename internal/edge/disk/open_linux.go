package disk

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// open opens a file without asking the poller whether it would have it, which takes package os six system calls.
func open(path string, flags int) (*os.File, error) {
	for {
		fd, err := unix.Open(path, flags|unix.O_CLOEXEC, mode)
		switch {
		case err == nil:
			return os.NewFile(uintptr(fd), path), nil
		case !errors.Is(err, unix.EINTR):
			return nil, &os.PathError{Op: "open", Path: path, Err: err}
		}
	}
}
