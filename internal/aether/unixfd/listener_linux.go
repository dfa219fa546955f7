package unixfd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Listener accepts connections.
type Listener struct {
	file *os.File
	raw  syscall.RawConn
	fd   int

	closed atomic.Bool
}

const backlog = 1024

// Listen makes a socket at path with the given permission bits. A socket file that nobody listens on is replaced.
func Listen(path string, mode uint32) (*Listener, error) {
	if err := checkPath(path); err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	addr := &unix.SockaddrUnix{Name: path}
	err = unix.Bind(fd, addr)
	if err == unix.EADDRINUSE && isDead(path) {
		if err = unix.Unlink(path); err == nil {
			err = unix.Bind(fd, addr)
		}
	}
	if err == nil {
		err = unix.Chmod(path, mode) // before listen: until then nobody can connect
	}
	if err == nil {
		err = unix.Listen(fd, backlog)
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	return NewListener(fd)
}

// isDead tells whether path is a socket that nobody listens on. A living listener sees a connection that ends at once.
func isDead(path string) bool {
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return false
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return unix.Connect(fd, &unix.SockaddrUnix{Name: path}) == unix.ECONNREFUSED
}

// NewListener takes over fd, a listening socket.
func NewListener(fd int) (*Listener, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("listener: %w", err)
	}
	unix.CloseOnExec(fd)
	file := os.NewFile(uintptr(fd), "unix listener")
	raw, err := file.SyscallConn()
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("listener: %w", err)
	}
	return &Listener{file: file, raw: raw, fd: fd}, nil
}

// Accept waits for a connection. Only one goroutine at a time may use it.
func (l *Listener) Accept(ctx context.Context, o Options) (*Conn, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		l.file.SetReadDeadline(time.Unix(1, 0)) //nolint:errcheck // fails only when closed
		close(interrupted)
	})
	defer func() {
		if !stop() {
			<-interrupted
			l.file.SetReadDeadline(time.Time{}) //nolint:errcheck // as above
		}
	}()
	var fd int
	var inner error
	err := l.raw.Read(func(lfd uintptr) bool {
		for {
			fd, _, inner = unix.Accept4(int(lfd), unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
			if inner == unix.EINTR || inner == unix.ECONNABORTED {
				continue
			}
			return inner != unix.EAGAIN
		}
	})
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil && l.closed.Load():
		return nil, fmt.Errorf("accept: %w", os.ErrClosed)
	case err != nil:
		return nil, fmt.Errorf("accept: %w", err)
	case inner != nil:
		return nil, fmt.Errorf("accept: %w", inner)
	}
	return New(fd, o)
}

// FD is the listening descriptor, for handing it on; it stays the listener's.
func (l *Listener) FD() int { return l.fd }

// Close stops listening. It doesn't remove the socket file.
func (l *Listener) Close() error {
	if l.closed.Swap(true) {
		return nil
	}
	return l.file.Close()
}
