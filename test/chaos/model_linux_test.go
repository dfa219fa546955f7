package chaos

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dsec-io/dsec/api"
)

// model is what clients were told, and what was done to the node meanwhile. It is safe for concurrent use.
type model struct {
	began time.Time

	mu       sync.Mutex
	boxes    map[string]*box
	keys     map[string]string // of creates that were answered: the sandbox's id
	unknown  map[string]bool   // creates of whose outcome nobody knows
	done     map[string]int    // operations that succeeded
	refused  map[string]int    // operations that failed in a way that is allowed, by code
	broken   map[string]int    // what was done to the node
	failures []string
}

func newModel() *model {
	return &model{
		began: time.Now(), boxes: map[string]*box{}, keys: map[string]string{}, unknown: map[string]bool{},
		done: map[string]int{}, refused: map[string]int{}, broken: map[string]int{},
	}
}

// box is one sandbox: what it must be, and all that is known of it.
type box struct {
	id, key string

	mu       sync.Mutex
	history  []string
	killed   bool // its init was: it may have failed
	stopping bool // its end was asked for
	stopped  bool // and told
	lines    map[string]told
	spare    bool // given to the breaker: its init may be killed
}

// told is what a client knows of a command that writes a line.
type told int

const (
	asked    told = iota // nothing: it may have run, once
	answered             // it ran, once
)

// note adds to a sandbox's history.
func (m *model) note(b *box, format string, args ...any) {
	line := fmt.Sprintf("%8.3fs ", time.Since(m.began).Seconds()) + fmt.Sprintf(format, args...)
	b.mu.Lock()
	b.history = append(b.history, line)
	b.mu.Unlock()
}

// fail records a failure, with the history of the one sandbox that it is about.
func (m *model) fail(b *box, format string, args ...any) {
	text := fmt.Sprintf("%8.3fs ", time.Since(m.began).Seconds()) + fmt.Sprintf(format, args...)
	if b != nil {
		b.mu.Lock()
		text += "\n    sandbox " + b.id + ", created under key " + b.key + "\n      " + strings.Join(b.history, "\n      ")
		b.mu.Unlock()
	}
	m.mu.Lock()
	m.failures = append(m.failures, text)
	m.mu.Unlock()
}

// did counts an operation that succeeded, and broke what was done to the node.
func (m *model) did(what string)   { m.count(m.done, what) }
func (m *model) broke(what string) { m.count(m.broken, what) }

func (m *model) count(in map[string]int, what string) {
	m.mu.Lock()
	in[what]++
	m.mu.Unlock()
}

func (m *model) cycles() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.done["create/stop cycle"]
}

// made records that a create was answered.
func (m *model) made(key, id string) *box {
	b := &box{id: id, key: key, lines: map[string]told{}}
	m.note(b, "created")
	m.mu.Lock()
	other, twice := m.boxes[id]
	m.boxes[id], m.keys[key] = b, id
	m.mu.Unlock()
	if twice {
		m.fail(b, "%s answers the creates of %s and %s", id, key, other.key)
	}
	return b
}

// notMade judges a create that failed.
func (m *model) notMade(key string, err error) {
	m.mu.Lock()
	m.unknown[key] = true
	m.mu.Unlock()
	m.allowed(nil, "create", err)
}

// allowed judges an error that a client was told: while things break, it has to be one that says what broke.
func (m *model) allowed(b *box, what string, err error) bool {
	e, ok := errors.AsType[*api.Error](err)
	if !ok {
		m.fail(b, "%s: an error without a type: %v", what, err)
		return false
	}
	switch e.Code {
	case api.CodeDiskFull, api.CodeUnavailable, api.CodeNoCapacity, api.CodeNotStarted, api.CodeTimeout, api.CodeResultGone,
		api.CodePauseFailed, api.CodeResumeFailed, api.CodeSandboxDied:
	case api.CodeWrongState, api.CodeNotFound:
		if b != nil && (b.isKilled() || b.isStopping()) {
			break
		}
		m.fail(b, "%s: %s: %v", what, e.Code, err)
		return false
	default:
		m.fail(b, "%s: %s: %v", what, e.Code, err)
		return false
	}
	m.count(m.refused, what+" "+string(e.Code))
	if b != nil {
		m.note(b, "%s: %s: %v", what, e.Code, err)
	}
	return true
}

func (b *box) isKilled() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.killed
}

func (b *box) isStopping() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.stopping
}

func (b *box) line(word string, s told) {
	b.mu.Lock()
	b.lines[word] = s
	b.mu.Unlock()
}

// victim picks a sandbox whose init the breaker may kill, and excuses it from now on.
func (m *model) victim(r *rand.Rand) *box {
	m.mu.Lock()
	ids := slices.Sorted(maps.Keys(m.boxes))
	m.mu.Unlock()
	r.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	for _, id := range ids {
		m.mu.Lock()
		b := m.boxes[id]
		m.mu.Unlock()
		b.mu.Lock()
		ok := b.spare && !b.killed && !b.stopping
		if ok {
			b.killed = true
		}
		b.mu.Unlock()
		if ok {
			return b
		}
	}
	return nil
}

// report tells the failures first.
func (m *model) report(seed uint64) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out strings.Builder
	fmt.Fprintf(&out, "%d failures\n", len(m.failures))
	for _, f := range m.failures[:min(len(m.failures), 20)] {
		fmt.Fprintf(&out, "  %s\n", f)
	}
	fmt.Fprintf(&out, "seed %d, %.0f s, %d sandboxes\n", seed, time.Since(m.began).Seconds(), len(m.boxes))
	for _, part := range []struct {
		name string
		n    map[string]int
	}{{"done", m.done}, {"broken", m.broken}, {"refused", m.refused}} {
		fmt.Fprintf(&out, "%s:", part.name)
		for _, k := range slices.Sorted(maps.Keys(part.n)) {
			fmt.Fprintf(&out, " %s %d;", k, part.n[k])
		}
		fmt.Fprintln(&out)
	}
	return out.String()
}
