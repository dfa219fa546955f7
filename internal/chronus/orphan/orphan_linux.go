// Package orphan says when sandboxes end that no edge looks after: after a limit since the last connection of an edge
// was lost, or when the longest time is over that a sandbox may live.
//
// Times are those of the machine's clock since its start, as an edge has them.
package orphan

import (
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// DefaultLimit is how long sandboxes go on without an edge unless it has said otherwise.
const DefaultLimit = time.Hour

// Kept is what has to outlive the process.
type Kept struct {
	Limit time.Duration `json:",omitempty"` // 0: DefaultLimit
	Since time.Duration `json:",omitempty"` // when the last edge went; 0: one was there
}

// End is why a sandbox was ended.
type End struct {
	Reason string `json:"reason"`
	Max    bool   `json:"max"` // its longest time was over
}

// Watch is a shard's. It is safe for concurrent use.
type Watch struct {
	keep func(Kept)

	// mu guards what follows, and is held while sandboxes are ended: an edge that connects finds them dead or safe.
	mu    sync.Mutex
	kept  Kept
	edges int
}

// New goes on where a shard before this one was. Keep is told of changes; it is called with a lock held.
func New(k Kept, keep func(Kept)) *Watch {
	if k.Since == 0 {
		k.Since = Now()
	}
	return &Watch{kept: k, keep: keep}
}

// Now is the machine's clock since its start.
func Now() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic(fmt.Sprintf("clock: %v", err)) // every kernel has it
	}
	return time.Duration(t.Nano())
}

// Connected notes that an edge is there, until gone is called.
func (w *Watch) Connected() (gone func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.edges++
	if w.kept.Since != 0 {
		w.kept.Since = 0
		w.keep(w.kept)
	}
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.edges--; w.edges == 0 {
			w.kept.Since = Now()
			w.keep(w.kept)
		}
	}
}

// SetLimit changes how long sandboxes go on without an edge.
func (w *Watch) SetLimit(limit time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.kept.Limit != limit {
		w.kept.Limit = limit
		w.keep(w.kept)
	}
}

// Again gives a new keeper what it has to keep.
func (w *Watch) Again() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.keep(w.kept)
}

// Alone calls f if there is no edge, while none can come. Over tells whether a sandbox's time is over whose longest ends
// at max (0: never), and why.
func (w *Watch) Alone(f func(over func(max time.Duration) (End, bool))) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.edges > 0 {
		return
	}
	limit := w.kept.Limit
	if limit == 0 {
		limit = DefaultLimit
	}
	now := Now()
	f(func(longest time.Duration) (End, bool) {
		switch {
		case longest != 0 && now >= longest:
			return End{Reason: "its longest time was over while no edge ran", Max: true}, true
		case now-w.kept.Since >= limit:
			return End{Reason: fmt.Sprintf("no edge looked after it for %v", limit)}, true
		}
		return End{}, false
	})
}
