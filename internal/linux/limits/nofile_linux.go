package limits

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// noFile tells how many files this process may have open.
func noFile() (int64, error) {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return 0, fmt.Errorf("limit of open files: %w", err)
	}
	return int64(min(l.Cur, 1<<62)), nil
}

// setNoFile raises both limits of this process to n, or to what is allowed.
func setNoFile(n int64) error {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return fmt.Errorf("limit of open files: %w", err)
	}
	want := unix.Rlimit{Cur: uint64(n), Max: max(uint64(n), l.Max)}
	err := unix.Setrlimit(unix.RLIMIT_NOFILE, &want)
	if err == nil {
		return nil
	}
	// Without privilege the hard limit stays.
	l.Cur = l.Max
	if serr := unix.Setrlimit(unix.RLIMIT_NOFILE, &l); serr != nil {
		return fmt.Errorf("limit of open files: %w", serr)
	}
	return fmt.Errorf("limit of open files above %d: %w", l.Max, err)
}
