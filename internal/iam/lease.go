package iam

import (
	"context"
	"fmt"
	"sync"

	"github.com/dsec-io/dsec/api"
)

// lease is an open request.
type lease struct{ cancel context.CancelCauseFunc }

// leases are the requests that are open on somebody's behalf: a token's or a project's.
type leases struct {
	mu    sync.Mutex
	over  *api.Error // why no more are taken; nil: they are
	open  map[*lease]struct{}
	empty chan struct{} // closed when none is open any more; nil: nobody waits
}

// add opens a request, unless that is over.
func (l *leases) add(x *lease) *api.Error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over != nil {
		return l.over
	}
	if l.open == nil {
		l.open = map[*lease]struct{}{}
	}
	l.open[x] = struct{}{}
	return nil
}

func (l *leases) remove(x *lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, x)
	if len(l.open) == 0 && l.empty != nil {
		close(l.empty)
		l.empty = nil
	}
}

// end cancels the open requests and takes no more.
func (l *leases) end(why *api.Error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over == nil {
		l.over = why
	}
	for x := range l.open {
		x.cancel(l.over)
	}
}

// reopen takes requests again.
func (l *leases) reopen() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = nil
}

// drained waits until none is open any more.
func (l *leases) drained(ctx context.Context) error {
	l.mu.Lock()
	if len(l.open) == 0 {
		l.mu.Unlock()
		return nil
	}
	if l.empty == nil {
		l.empty = make(chan struct{})
	}
	wait := l.empty
	l.mu.Unlock()
	select {
	case <-wait:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for open requests: %w", context.Cause(ctx))
	}
}
