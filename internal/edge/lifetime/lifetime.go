// Package lifetime says when a sandbox's time is over, and whether anything goes on in it.
//
// Times are those of the machine's clock since its start, which goes on while the machine sleeps and which nobody sets: a
// wall clock that is put forward or back ends no sandbox early or late. A sandbox dies with the boot, so the times on
// its record hold for as long as it does, over any number of edges.
//
// A [Record] belongs to its sandbox's lock. An [Activity] is safe for concurrent use; its lock is a leaf.
package lifetime

import (
	"fmt"
	"sync"
	"time"

	"github.com/dsec-io/dsec/api"
)

// Record is what of a sandbox's time is on record.
type Record struct {
	Created time.Duration `json:"created"`         // when it was asked for, on the clock since the machine's start
	Started time.Duration `json:"started"`         // when it first answered; ttl.running_s begins
	Extra   time.Duration `json:"extra,omitempty"` // by how much ttl.running_s was extended
}

// Restored makes the record of a sandbox that has none, from what the wall clock says of it.
func Restored(now time.Duration, wall, created, started time.Time) Record {
	return Record{Created: now - wall.Sub(created), Started: now - wall.Sub(started)}
}

// Due is when the sandbox's time is over, and by which limit; without one why is empty.
func (r *Record) Due(ttl api.TTL) (due time.Duration, why string) {
	if s := ttl.MaxS; s != nil {
		due, why = r.Created+seconds(*s), fmt.Sprintf("ttl.max_s (%d) is over", *s)
	}
	if s := ttl.RunningS; s != nil {
		if at := r.Started + seconds(*s) + r.Extra; why == "" || at < due {
			due, why = at, fmt.Sprintf("ttl.running_s (%d) is over", *s)
		}
	}
	return due, why
}

// Extend makes ttl.running_s last for at least by from now on; it never makes it shorter. It can't outlast ttl.max_s. A
// sandbox that has no such limit needs none.
func (r *Record) Extend(ttl api.TTL, now, by time.Duration) error {
	if m := ttl.MaxS; m != nil {
		if left := r.Created + seconds(*m) - now; by > left {
			return api.FieldError(api.CodeImpossible, "running_s", "ask for less", "ttl.max_s (%d) ends the sandbox in %d s", *m, int64(left.Seconds()))
		}
	}
	if s := ttl.RunningS; s != nil {
		r.Extra = max(r.Extra, now+by-r.Started-seconds(*s))
	}
	return nil
}

// Ends is Due by the wall clock, for people to read: nothing is decided by it. Nil: never.
func (r *Record) Ends(ttl api.TTL, created time.Time, started *time.Time) *time.Time {
	var ends *time.Time
	if s := ttl.MaxS; s != nil {
		ends = new(created.Add(seconds(*s)))
	}
	if s := ttl.RunningS; s != nil && started != nil {
		if at := started.Add(seconds(*s) + r.Extra); ends == nil || at.Before(*ends) {
			ends = &at
		}
	}
	return ends
}

func seconds(n int64) time.Duration { return time.Duration(n) * time.Second }

const (
	// samples is how often within ttl.idle_s the use of the processor is looked at.
	samples = 4
	// busyShare is the part of one core above which a sandbox isn't idle: one in so many.
	busyShare = 100
	// shortest bounds how soon Idle wants to be asked again.
	shortest = 50 * time.Millisecond
)

// Activity is what goes on in a sandbox: requests that need it, processes that were started, and the use of the
// processor. A start process, and what commands leave in the background, count by the last alone.
type Activity struct {
	mu      sync.Mutex // guards what follows
	open    int        // requests and processes that go on
	last    time.Duration
	cpu     int64 // ns, at sampled
	sampled time.Duration
}

// Touch notes that the sandbox was needed.
func (a *Activity) Touch(now time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last = max(a.last, now)
}

// Begin notes something that goes on until end is called.
func (a *Activity) Begin(clock func() time.Duration) (end func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.open++
	a.last = max(a.last, clock())
	return func() {
		now := clock()
		a.mu.Lock()
		defer a.mu.Unlock()
		a.open--
		a.last = max(a.last, now)
	}
}

// IdleFor is how long nothing has gone on, but for the processor.
func (a *Activity) IdleFor(now time.Duration) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.open > 0 {
		return 0
	}
	return now - a.last
}

// Idle tells whether nothing has gone on for limit, else when to ask again. Cpu is the processor time that the sandbox
// has used, in ns; when that can't be read, it counts as unchanged.
func (a *Activity) Idle(now, limit time.Duration, cpu func() (int64, error)) (idle bool, again time.Duration) {
	used, err := cpu()
	a.mu.Lock()
	defer a.mu.Unlock()
	if err == nil {
		if window := int64(now - a.sampled); a.sampled > 0 && used-a.cpu > window/busyShare {
			a.last = max(a.last, now)
		}
		a.cpu, a.sampled = used, now
	}
	if a.open > 0 {
		a.last = max(a.last, now)
	}
	left := limit - (now - a.last)
	return left <= 0, max(min(left, limit/samples), shortest)
}
