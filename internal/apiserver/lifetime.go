package apiserver

import (
	"context"
	"time"
)

// lifetime is the context of what outlives its request: it ends when the server is closed.
type lifetime struct{ stop <-chan struct{} }

// lifetime is the context of what the server does on its own.
func (s *Server) lifetime() context.Context { return lifetime{s.stop} }

// Deadline implements [context.Context].
func (lifetime) Deadline() (time.Time, bool) { return time.Time{}, false }

// Done implements [context.Context].
func (l lifetime) Done() <-chan struct{} { return l.stop }

// Value implements [context.Context].
func (lifetime) Value(any) any { return nil }

// Err implements [context.Context].
func (l lifetime) Err() error {
	select {
	case <-l.stop:
		return context.Canceled
	default:
		return nil
	}
}
