package launch

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// MemFile makes a file in memory that any user of a sandbox may open, read and write: it is only ever handed to one
// command, whose own it is.
func MemFile(name string, content []byte) (int, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("make memory file: %w", err)
	}
	for rest := content; len(rest) > 0; {
		n, err := unix.Write(fd, rest)
		if err != nil {
			_ = unix.Close(fd)
			return -1, fmt.Errorf("write memory file: %w", err)
		}
		rest = rest[n:]
	}
	if err := unix.Fchmod(fd, 0o666); err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("mode of memory file: %w", err)
	}
	if _, err := unix.Seek(fd, 0, unix.SEEK_SET); err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("rewind memory file: %w", err)
	}
	return fd, nil
}
