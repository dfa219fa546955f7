// Package memfd makes programs that exist in memory only and that nobody can change.
package memfd

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Sealed makes a file of data in memory, with mode, that can't be written, grown or shrunk any more, and returns a
// read-only descriptor: the kernel executes no file that is open for writing. Mode 0555 leaves a process that runs it
// open to be looked at by those with power over its user namespace; 0111 closes it, because the program can't be read.
func Sealed(name string, data []byte, mode uint32) (int, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // Linux before 6.3 doesn't know MFD_EXEC, and makes every memfd executable
		fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return -1, fmt.Errorf("make memory file %s: %w", name, err)
	}
	defer unix.Close(fd)
	for rest := data; len(rest) > 0; {
		n, err := unix.Write(fd, rest)
		if err != nil {
			return -1, fmt.Errorf("write memory file %s: %w", name, err)
		}
		rest = rest[n:]
	}
	if err := unix.Fchmod(fd, mode); err != nil {
		return -1, fmt.Errorf("mode of memory file %s: %w", name, err)
	}
	const seals = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		return -1, fmt.Errorf("seal memory file %s: %w", name, err)
	}
	ro, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("reopen memory file %s: %w", name, err)
	}
	return ro, nil
}
