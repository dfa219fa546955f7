//go:build !linux

package unixfd

import (
	"context"
	"errors"
)

// Conn can't be made on this system.
type Conn struct{}

// Listener can't be made on this system.
type Listener struct{}

// New isn't supported here.
func New(int, Options) (*Conn, error) { return nil, errors.ErrUnsupported }

// Pair isn't supported here.
func Pair(_, _ Options) (*Conn, *Conn, error) { return nil, nil, errors.ErrUnsupported }

// Dial isn't supported here.
func Dial(context.Context, string, Options) (*Conn, error) { return nil, errors.ErrUnsupported }

// Listen isn't supported here.
func Listen(string, uint32) (*Listener, error) { return nil, errors.ErrUnsupported }

// NewListener isn't supported here.
func NewListener(int) (*Listener, error) { return nil, errors.ErrUnsupported }

// Read isn't supported here.
func (*Conn) Read([]byte) (int, error) { return 0, errors.ErrUnsupported }

// Write isn't supported here.
func (*Conn) Write([]byte) (int, error) { return 0, errors.ErrUnsupported }

// Close does nothing here.
func (*Conn) Close() error { return nil }

// PeerUID isn't supported here.
func (*Conn) PeerUID() (int, error) { return -1, errors.ErrUnsupported }

// Accept isn't supported here.
func (*Listener) Accept(context.Context, Options) (*Conn, error) { return nil, errors.ErrUnsupported }

// FD is -1 here.
func (*Listener) FD() int { return -1 }

// Close does nothing here.
func (*Listener) Close() error { return nil }
