// Package pause has what an edge needs to make a sandbox stand still and go on again: the change that is under way, which
// all who want it wait for together, and the requests that are in the sandbox, which get a moment to be through.
//
// A [Turn] and [Visits] are safe for concurrent use; their locks are leaves.
package pause

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Grace is how old a request gets before the sandbox stands still around it: what came just before a pause is answered
// before it, what has gone on for longer goes on after it.
const Grace = time.Second

// Wakes tells whether a method of the aether protocol needs a sandbox that isn't paused: one that runs something in it, or
// changes what runs. What looks at a sandbox, ends it, or changes what is on record alone, leaves it as it is.
func Wakes(method string) bool {
	return slices.Contains([]string{
		"exec", "attach", "signal", "resize", "forget",
		"session.create", "session.interrupt", "session.close",
		"file.read", "file.write", "file.list", "file.op", "file.tar", "file.untar", "file.watch", "port.dial",
		"sandbox.resume",
	}, method)
}

// Asks tells whether all that a client has to say comes with the opening of a method's stream. A sandbox that was paused
// before it got there can then be woken and asked again.
func Asks(method string) bool {
	return Wakes(method) && !slices.Contains([]string{"exec", "attach", "file.write", "file.untar", "port.dial"}, method)
}

// StaysOpen tells whether the streams of a method go on long after they have got what they need to begin.
func StaysOpen(method string) bool {
	return slices.Contains([]string{"attach", "file.watch", "port.dial"}, method)
}

// Turn is one change from running to paused, or back. Whoever began it ends it once; all others wait for that.
type Turn struct {
	life context.Context //nolint:containedctx // the change outlives each request that waits for it
	stop context.CancelCauseFunc
	done chan struct{}
	err  error // set before done is closed
}

// Begin makes a turn, whose work ends early when life does, or by [Turn.Cancel].
func Begin(life context.Context) *Turn {
	t := &Turn{done: make(chan struct{})}
	t.life, t.stop = context.WithCancelCause(life)
	return t
}

// Context is over when the work should be given up.
func (t *Turn) Context() context.Context { return t.life }

// End says how it came out.
func (t *Turn) End(err error) {
	t.err = err
	close(t.done)
	t.stop(nil)
}

// Wait waits for the end and returns how it came out, or why ctx ended first.
func (t *Turn) Wait(ctx context.Context) error {
	select {
	case <-t.done:
		return t.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Cancel has the work given up, and waits until it is. Nil is no turn.
func (t *Turn) Cancel(why error) {
	if t != nil {
		t.stop(why)
		<-t.done
	}
}

// Visits are the requests that are in a sandbox. The zero value has none.
type Visits struct {
	// mu guards what follows.
	mu   sync.Mutex
	open map[*Visit]struct{}
	left chan struct{} // closed at the next end, where somebody waits for one
}

// Visit is a request that is in a sandbox.
type Visit struct {
	of    *Visits
	begun time.Time
}

// Begin notes a request.
func (v *Visits) Begin() *Visit {
	one := &Visit{of: v, begun: time.Now()}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.open == nil {
		v.open = map[*Visit]struct{}{}
	}
	v.open[one] = struct{}{}
	return one
}

// End notes that the request is through, or that it may stand still from now on. A repeat does nothing, and so does nil.
func (o *Visit) End() {
	if o == nil {
		return
	}
	v := o.of
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.open, o)
	if v.left != nil {
		close(v.left)
		v.left = nil
	}
}

// Drain waits until no request is left that is younger than [Grace], or for the end of ctx. None may begin meanwhile.
func (v *Visits) Drain(ctx context.Context) {
	for {
		wait, left := v.youngest()
		if wait <= 0 {
			return
		}
		timer := time.NewTimer(wait)
		select {
		case <-left:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// youngest is when the youngest request will have had its time, and a channel that is closed at the next end.
func (v *Visits) youngest() (wait time.Duration, left <-chan struct{}) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for o := range v.open {
		wait = max(wait, Grace-time.Since(o.begun))
	}
	if v.left == nil {
		v.left = make(chan struct{})
	}
	return wait, v.left
}
