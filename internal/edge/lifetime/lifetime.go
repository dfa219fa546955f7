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

// Record is what of a sandbox's time is on record. While it is paused ttl.running_s stands still, and ttl.paused_s runs;
// ttl.max_s goes on.
type Record struct {
	Created time.Duration `json:"created"`          // when it was asked for, on the clock since the machine's start
	Started time.Duration `json:"started"`          // when it first answered; ttl.running_s begins
	Extra   time.Duration `json:"extra,omitempty"`  // by how much ttl.running_s was extended
	Stood   time.Duration `json:"stood,omitempty"`  // how long it was paused, but for now
	Paused  time.Duration `json:"paused,omitempty"` // since when it is paused; 0: it isn't
}

// Restored makes the record of a sandbox that has none, from what the wall clock says of it.
func Restored(now time.Duration, wall, created, started time.Time) Record {
	return Record{Created: now - wall.Sub(created), Started: now - wall.Sub(started)}
}

// Limit is what ends a sandbox's time, by the name that the spec has for it.
type Limit string

// The limits.
const (
	Max     Limit = "ttl.max_s"
	Running Limit = "ttl.running_s"
	Paused  Limit = "ttl.paused_s"
	Idle    Limit = "ttl.idle_s"
)

func (l Limit) of(ttl api.TTL) *int64 {
	switch l {
	case Max:
		return ttl.MaxS
	case Running:
		return ttl.RunningS
	case Paused:
		return ttl.PausedS
	default:
		return ttl.IdleS
	}
}

// Over says that the limit is over, for people to read. The ttl has it.
func (l Limit) Over(ttl api.TTL) string { return fmt.Sprintf("%s (%d) is over", l, *l.of(ttl)) }

// Means is what is to be done when the limit is over: api.ThenStop or api.ThenPause.
func (l Limit) Means(s api.Spec) string {
	switch l {
	case Running:
		return s.OnExpire
	case Idle:
		return s.OnIdle
	default:
		return api.ThenStop
	}
}

// Due is when the sandbox's time is over, and by which limit; "": never, as things are. Idle isn't looked at.
func (r *Record) Due(ttl api.TTL) (due time.Duration, by Limit) {
	for _, l := range []struct {
		limit Limit
		from  time.Duration
		runs  bool
	}{
		{Max, r.Created, true},
		{Running, r.Started + r.Stood + r.Extra, r.Paused == 0},
		{Paused, r.Paused, r.Paused != 0},
	} {
		s := l.limit.of(ttl)
		if s == nil || !l.runs {
			continue
		}
		if at := l.from + seconds(*s); by == "" || at < due {
			due, by = at, l.limit
		}
	}
	return due, by
}

// Expired tells whether ttl.running_s is over.
func (r *Record) Expired(ttl api.TTL, now time.Duration) bool {
	return ttl.RunningS != nil && r.left(*ttl.RunningS, now) <= 0
}

// left is what there is left of ttl.running_s.
func (r *Record) left(running int64, now time.Duration) time.Duration {
	if r.Paused != 0 {
		now = r.Paused
	}
	return r.Started + r.Stood + r.Extra + seconds(running) - now
}

// Pause lets ttl.running_s stand still and ttl.paused_s begin.
func (r *Record) Pause(now time.Duration) {
	if r.Paused == 0 {
		r.Paused = now
	}
}

// Resume lets ttl.running_s go on where it was. If it was over, and fresh says so, the sandbox gets all of it anew.
func (r *Record) Resume(ttl api.TTL, now time.Duration, fresh bool) {
	if r.Paused == 0 {
		return
	}
	expired := r.Expired(ttl, now)
	r.Stood, r.Paused = r.Stood+now-r.Paused, 0
	if fresh && expired {
		r.Extra = now - r.Started - r.Stood
	}
}

// Renew gives a sandbox that is paused all of ttl.running_s anew if that is over, as its resume will.
func (r *Record) Renew(ttl api.TTL, now time.Duration) {
	if r.Paused != 0 && r.Expired(ttl, now) {
		r.Extra += seconds(*ttl.RunningS) - r.left(*ttl.RunningS, now)
	}
}

// Extend makes ttl.running_s last for at least by from now on, or from the end of a pause; it never makes it shorter. It
// can't outlast ttl.max_s. A sandbox that has no such limit needs none.
func (r *Record) Extend(ttl api.TTL, now, by time.Duration) error {
	if m := ttl.MaxS; m != nil {
		if left := r.Created + seconds(*m) - now; by > left {
			return api.FieldError(api.CodeImpossible, "running_s", "ask for less", "ttl.max_s (%d) ends the sandbox in %d s", *m, int64(left.Seconds()))
		}
	}
	if s := ttl.RunningS; s != nil {
		r.Extra += max(0, by-r.left(*s, now))
	}
	return nil
}

// Wall is what the wall clock says of a sandbox.
type Wall struct {
	Created         time.Time
	Started, Paused *time.Time // nil: it isn't
}

// Ends is Due by the wall clock, for people to read: nothing is decided by it. Nil: never, as things are.
func (r *Record) Ends(ttl api.TTL, w Wall) *time.Time {
	var ends *time.Time
	soonest := func(from time.Time, limit *int64, more time.Duration) {
		if limit == nil {
			return
		}
		if at := from.Add(seconds(*limit) + more); ends == nil || at.Before(*ends) {
			ends = &at
		}
	}
	soonest(w.Created, ttl.MaxS, 0)
	switch {
	case w.Paused != nil:
		soonest(*w.Paused, ttl.PausedS, 0)
	case w.Started != nil:
		soonest(*w.Started, ttl.RunningS, r.Stood+r.Extra)
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
