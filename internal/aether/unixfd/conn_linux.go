package unixfd

import (
	"context"
	"errors"
)

// Conn is one connected stream socket. It is an aether.Transport.
type Conn struct{}

// New takes over fd, a connected Unix stream socket.
func New(fd int, o Options) (*Conn, error) { return nil, errors.ErrUnsupported }

// Dial connects to the socket at path.
func Dial(ctx context.Context, path string, o Options) (*Conn, error) {
	return nil, errors.ErrUnsupported
}

// Pair returns two connected ends.
func Pair(a, b Options) (*Conn, *Conn, error) { return nil, nil, errors.ErrUnsupported }

// Read reads bytes; descriptors that come with them wait for Take.
func (c *Conn) Read(p []byte) (int, error) { return 0, errors.ErrUnsupported }

// Write writes all of p.
func (c *Conn) Write(p []byte) (int, error) { return 0, errors.ErrUnsupported }

// Close closes the socket and every descriptor not taken.
func (c *Conn) Close() error { return nil }

// Listener accepts connections.
type Listener struct{}

// Listen makes a socket at path with the given permission bits, replacing a dead one.
func Listen(path string, mode uint32) (*Listener, error) { return nil, errors.ErrUnsupported }

// NewListener takes over fd, a listening socket.
func NewListener(fd int) (*Listener, error) { return nil, errors.ErrUnsupported }

// Accept waits for a connection.
func (l *Listener) Accept(ctx context.Context, o Options) (*Conn, error) {
	return nil, errors.ErrUnsupported
}

// FD is the listening descriptor, for handing it on; it stays the listener's.
func (l *Listener) FD() int { return -1 }

// Close stops listening. It doesn't remove the socket file.
func (l *Listener) Close() error { return nil }
