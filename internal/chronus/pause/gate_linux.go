package pause

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// ErrPaused is what [Gate.Enter] answers while the sandbox stands still.
var ErrPaused = errors.New("paused")

// Kept is what has to outlive the process: times of the clock that only goes forward, in nanoseconds.
type Kept struct {
	Stood int64 `json:",omitempty"` // for how long the sandbox has stood still in all
	Since int64 `json:",omitempty"` // since when it stands still; 0: it doesn't
}

// Group is what a gate has frozen and thawed: all processes of the sandbox.
type Group interface {
	// Freeze returns when everything stands still. When it fails nothing does.
	Freeze(ctx context.Context) error
	// Thaw is no error for what isn't frozen.
	Thaw(ctx context.Context) error
	// Frozen tells whether it is frozen or about to be.
	Frozen() (bool, error)
	// Keep is told of every change, before the sandbox is frozen and after it has been thawed.
	Keep(k Kept)
}

// state is where a gate is.
type state int

const (
	open state = iota
	closing
	closed
)

// Gate is one sandbox's. Its zero value is open, and ready. It is safe for concurrent use.
type Gate struct {
	// work is held by who pauses, resumes or looks after the gate.
	work sync.Mutex

	// mu guards what follows. It is a leaf.
	mu      sync.Mutex
	state   state
	inside  int
	changed chan struct{} // closed at the next change of state, and when the last one leaves a closing gate
	clock   clock
}

// Restore makes a fresh gate that of a sandbox that an earlier process knew. Frozen is what the kernel says of it.
func (g *Gate) Restore(k Kept, frozen bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.clock.restore(k)
	if frozen {
		g.clock.stop()
		g.state = closed
	} else { // it had not been frozen yet, or has been thawed by somebody else
		g.clock.start()
		g.state = open
	}
}

// Kept is what Restore needs.
func (g *Gate) Kept() Kept {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.clock.kept()
}

// Paused tells whether the sandbox stands still.
func (g *Gate) Paused() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.state == closed
}

// Now is the sandbox's own time.
func (g *Gate) Now() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.clock.now()
}

// changes returns a channel that is closed at the next change. The caller holds g.mu.
func (g *Gate) changes() <-chan struct{} {
	if g.changed == nil {
		g.changed = make(chan struct{})
	}
	return g.changed
}

// tell wakes who waits for a change. The caller holds g.mu.
func (g *Gate) tell() {
	if g.changed != nil {
		close(g.changed)
		g.changed = nil
	}
}

// Enter lets the caller in, who calls Leave afterwards and doesn't stay for long. While a pause is being made it waits for
// what becomes of that. If the sandbox is paused then it fails with [ErrPaused]. It fails with [context.Canceled] when the
// caller has gone, or the sandbox has ended.
func (g *Gate) Enter(gone, ended <-chan struct{}) error {
	for {
		g.mu.Lock()
		if g.state == open {
			g.inside++
			g.mu.Unlock()
			return nil
		}
		if g.state == closed {
			g.mu.Unlock()
			return ErrPaused
		}
		changed := g.changes()
		g.mu.Unlock()
		if err := wait(changed, gone, ended); err != nil {
			return err
		}
	}
}

// Await waits until the sandbox isn't paused. It fails as Enter does.
func (g *Gate) Await(gone, ended <-chan struct{}) error {
	for {
		g.mu.Lock()
		if g.state == open {
			g.mu.Unlock()
			return nil
		}
		changed := g.changes()
		g.mu.Unlock()
		if err := wait(changed, gone, ended); err != nil {
			return err
		}
	}
}

func wait(changed, gone, ended <-chan struct{}) error {
	select {
	case <-changed:
		return nil
	case <-gone:
	case <-ended:
	}
	return context.Canceled
}

// Leave is the end of what an Enter began.
func (g *Gate) Leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.inside--; g.inside == 0 && g.state == closing {
		g.tell()
	}
}

// set moves the gate to another state.
func (g *Gate) set(to state) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.state = to
	g.tell()
}

// Pause makes the sandbox stand still and returns when it does. A repeat freezes again, which is nothing for what is
// frozen. When it fails, or ctx ends first, the sandbox goes on and so do all who waited.
func (g *Gate) Pause(ctx context.Context, group Group) error {
	g.work.Lock()
	defer g.work.Unlock()
	if ctx.Err() != nil {
		return context.Cause(ctx) // another pause may have been made meanwhile
	}
	if g.state != closed { // changed by who holds work alone
		g.set(closing)
	}
	err := g.drain(ctx)
	if err == nil {
		g.turn(true, group)
		err = group.Freeze(ctx)
	}
	if err != nil {
		g.turn(false, group)
		g.set(open)
		return err
	}
	g.set(closed)
	return nil
}

// BusyError says that a sandbox can't be paused because something is still at work in it that doesn't take long.
type BusyError struct {
	Inside int
	Err    error
}

func (e *BusyError) Error() string {
	return fmt.Sprintf("%d requests are still at work in the sandbox: %v", e.Inside, e.Err)
}

func (e *BusyError) Unwrap() error { return e.Err }

// drain waits until nobody is inside.
func (g *Gate) drain(ctx context.Context) error {
	for {
		g.mu.Lock()
		inside, changed := g.inside, g.changes()
		g.mu.Unlock()
		if inside == 0 {
			return ctx.Err()
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return &BusyError{Inside: inside, Err: context.Cause(ctx)}
		}
	}
}

// turn stops the sandbox's time, or has it go on.
func (g *Gate) turn(stop bool, group Group) {
	g.mu.Lock()
	if stop {
		g.clock.stop()
	} else {
		g.clock.start()
	}
	k := g.clock.kept()
	g.mu.Unlock()
	group.Keep(k)
}

// Resume has the sandbox go on. A repeat is no error. After an error it is paused as before.
func (g *Gate) Resume(ctx context.Context, group Group) error {
	g.work.Lock()
	defer g.work.Unlock()
	if err := group.Thaw(ctx); err != nil {
		return err
	}
	g.goOn(group)
	return nil
}

func (g *Gate) goOn(group Group) {
	if g.state == open {
		return
	}
	g.turn(false, group)
	g.set(open)
}

// Heal opens the gate of a sandbox that isn't frozen: whoever can't reach this process thaws it without.
func (g *Gate) Heal(group Group) {
	g.work.Lock()
	defer g.work.Unlock()
	if frozen, err := group.Frozen(); err == nil && !frozen {
		g.goOn(group)
	}
}
