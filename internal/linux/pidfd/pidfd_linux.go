// Package pidfd holds on to processes by descriptor: a number may be given to another process, a pidfd never is.
package pidfd

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Open returns a pidfd of pid. unix.ESRCH means that there is no such process.
func Open(pid int) (int, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return -1, fmt.Errorf("open process %d: %w", pid, err)
	}
	return fd, nil
}

// Kill sends SIGKILL. A process that has ended is no error.
func Kill(fd int) error {
	err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	if err == nil || errors.Is(err, unix.ESRCH) {
		return nil
	}
	return fmt.Errorf("kill: %w", err)
}

// Exited tells if the process has ended. A zombie has.
func Exited(fd int) (bool, error) {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(p, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return false, fmt.Errorf("poll process: %w", err)
		}
		return n > 0, nil
	}
}

// Wait returns when the process has ended or ctx has.
func Wait(ctx context.Context, fd int) error {
	const slice = 50 * time.Millisecond // how late the end of ctx may be noticed
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(p, int(slice.Milliseconds()))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("poll process: %w", err)
		case n > 0:
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("wait for the process's end: %w", context.Cause(ctx))
		}
	}
}

// Reap takes the status of an ended child, so that it doesn't stay a zombie. For a process that is another's child, or
// has been reaped, it does nothing.
func Reap(fd int) {
	for {
		err := unix.Waitid(unix.P_PIDFD, fd, nil, unix.WEXITED|unix.WNOHANG, nil)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// Take returns a copy of the process's descriptor number n.
func Take(fd, n int) (int, error) {
	c, err := unix.PidfdGetfd(fd, n, 0)
	if err != nil {
		return -1, fmt.Errorf("take descriptor %d of a process: %w", n, err)
	}
	return c, nil
}

// UserNS returns the process's user namespace (Linux 6.11).
func UserNS(fd int) (int, error) {
	const pidfdGetUserNamespace = 0xFF09 // _IO(0xFF, 9)
	ns, err := unix.IoctlRetInt(fd, pidfdGetUserNamespace)
	if err != nil {
		return -1, fmt.Errorf("user namespace of a process: %w", err)
	}
	return ns, nil
}

// token is the event's data as one word, for which x/sys has two halves.
func token(e *unix.EpollEvent) *uint64 { return (*uint64)(unsafe.Pointer(&e.Fd)) }
