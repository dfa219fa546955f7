// Package lifetime has the context of what outlives its request: it ends when the server is closed.
package lifetime

import (
	"context"
	"time"
)

// Until returns a context that ends when stop is closed.
func Until(stop <-chan struct{}) context.Context { return lifetime{stop} }

type lifetime struct{ stop <-chan struct{} }

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
