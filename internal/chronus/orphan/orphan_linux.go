// Package orphan says when sandboxes end that no edge looks after: after a limit since the last connection of an edge
// was lost, or when the longest time is over that a sandbox may live.
//
// Times are those of the machine's clock since its start, as an edge has them.
package orphan

import (
	"encoding/json"
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
	Ended map[string]End
}

// End is why a sandbox was ended.
type End struct {
	Reason string `json:"reason"`
}

// Watch is a shard's. It is safe for concurrent use.
type Watch struct {
	keep func(Kept)

	// mu guards what follows, and is held while sandboxes are ended: an edge that connects finds them dead or safe.
	mu    sync.Mutex
	kept  Kept
	edges int
}

// maxEnded is how many ends are remembered; more are nobody's any more.
const maxEnded = 256

// New goes on where a shard before this one was, from what it kept; nothing is a fresh start. Keep is told of changes; it
// is called with a lock held.
func New(kept []byte, keep func(Kept)) *Watch {
	w := &Watch{keep: keep}
	_ = json.Unmarshal(kept, &w.kept) // what can't be read begins anew
	if w.kept.Since == 0 {
		w.kept.Since = Now()
	}
	if w.kept.Ended == nil {
		w.kept.Ended = make(map[string]End)
	}
	return w
}

// Ended tells which sandboxes were ended while there was no edge, as JSON: a map of [End] by name.
func (w *Watch) Ended() ([]byte, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return json.Marshal(w.kept.Ended)
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
// at the given time (0: never); if it has a name, why is kept from then on.
func (w *Watch) Alone(f func(over func(name string, longest time.Duration) bool)) {
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
	f(func(name string, longest time.Duration) bool {
		var end End
		switch {
		case longest != 0 && now >= longest:
			end.Reason = "its longest time was over while no edge ran"
		case now-w.kept.Since >= limit:
			end.Reason = fmt.Sprintf("no edge looked after it for %v", limit)
		default:
			return false
		}
		if name != "" {
			if len(w.kept.Ended) >= maxEnded {
				clear(w.kept.Ended)
			}
			w.kept.Ended[name] = end
			w.keep(w.kept)
		}
		return true
	})
}
