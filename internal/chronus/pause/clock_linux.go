package pause

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// monotonic is the clock that Go's timers go by, which only goes forward, and is the same for all processes of a boot.
func monotonic() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(fmt.Sprintf("clock: %v", err)) // every kernel has it
	}
	return time.Duration(t.Nano())
}

// clock is a time that can stand still. The gate's mu guards it.
type clock struct {
	stood  time.Duration // in all, without the time since
	since  time.Duration // since when it stands still; 0: it goes
	timers map[*Timer]struct{}
}

func (c *clock) restore(k Kept) { c.stood, c.since = time.Duration(k.Stood), time.Duration(k.Since) }

func (c *clock) kept() Kept { return Kept{Stood: int64(c.stood), Since: int64(c.since)} }

func (c *clock) now() time.Duration {
	at := c.since
	if at == 0 {
		at = monotonic()
	}
	return at - c.stood
}

// stop makes the time stand still, if it doesn't.
func (c *clock) stop() {
	if c.since != 0 {
		return
	}
	c.since = monotonic()
	for t := range c.timers {
		t.timer.Stop()
	}
}

// start has it go on, if it stands still.
func (c *clock) start() {
	if c.since == 0 {
		return
	}
	c.stood += monotonic() - c.since
	c.since = 0
	now := c.now()
	for t := range c.timers {
		t.timer.Reset(max(t.due-now, 0))
	}
}

// Timer is a call to come, by the sandbox's own time.
type Timer struct {
	gate  *Gate
	f     func()
	due   time.Duration
	timer *time.Timer
}

// AfterFunc calls f in a goroutine of its own when d of the sandbox's time has passed.
func (g *Gate) AfterFunc(d time.Duration, f func()) *Timer {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := &g.clock
	t := &Timer{gate: g, f: f, due: c.now() + d}
	t.timer = time.AfterFunc(max(d, 0), t.fire)
	if c.since != 0 {
		t.timer.Stop()
	}
	if c.timers == nil {
		c.timers = make(map[*Timer]struct{})
	}
	c.timers[t] = struct{}{}
	return t
}

// fire makes the call, unless the time was stopped at the last moment.
func (t *Timer) fire() {
	g := t.gate
	g.mu.Lock()
	_, waits := g.clock.timers[t]
	ready := waits && g.clock.since == 0 && g.clock.now() >= t.due
	if ready {
		delete(g.clock.timers, t)
	}
	g.mu.Unlock()
	if ready {
		t.f()
	}
}

// Stop takes the call back, if it hasn't been made.
func (t *Timer) Stop() {
	t.gate.mu.Lock()
	defer t.gate.mu.Unlock()
	t.timer.Stop()
	delete(t.gate.clock.timers, t)
}
