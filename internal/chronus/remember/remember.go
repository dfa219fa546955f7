// Package remember holds what a session remembers between its commands, and the script that carries it into the next
// command's shell and out again.
//
// What a shell has saved is a tenant's: it may be damaged, hostile or large. Whatever it is, it is data to [Memory.Take],
// and to the next shell it is that tenant's own script. A [Memory] isn't safe for concurrent use; a [Budget] is.
package remember

import (
	"bytes"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	// MaxState is the most that one session's directory and exports may have.
	MaxState = 1 << 20
	// MaxTotal is the most that all sessions of a sandbox remember together: a shard's memory isn't limited by what its
	// sandboxes may use.
	MaxTotal = 8 << 20
)

// marker ends the directory in a saved state. A directory of that name, after a newline, is nobody's accident.
const marker = "-- dsec session state --"

// Budget counts what the sessions of one sandbox remember.
type Budget struct {
	mu   sync.Mutex
	used int
}

// change gives back what was held and takes what will be; it does neither if that is more than there is.
func (b *Budget) change(held, want int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if want > held && b.used-held+want > MaxTotal {
		return false
	}
	b.used += want - held
	return true
}

// Memory is what one session remembers.
type Memory struct {
	Cwd     []byte
	Exports []byte   // the shell's own account of its exported variables; nil before the first command
	Given   [][]byte // the environment that the last command was given
	budget  *Budget
}

// New makes a memory that counts against budget.
func New(budget *Budget, cwd []byte) Memory { return Memory{Cwd: cwd, budget: budget} }

// Restore sets what was kept elsewhere, and tells whether there is room for it.
func (m *Memory) Restore(exports []byte, given [][]byte) bool {
	if !m.budget.change(m.size(), len(exports)+size(given)) {
		return false
	}
	m.Exports, m.Given = exports, given
	return true
}

// Forget gives up everything but the directory.
func (m *Memory) Forget() { m.Restore(nil, nil) }

// size is what counts: the directory is bounded by the kernel.
func (m *Memory) size() int { return len(m.Exports) + size(m.Given) }

func size(list [][]byte) int {
	n := 0
	for _, v := range list {
		n += len(v) + perElement
	}
	return n
}

// perElement is what an element of a list takes besides its bytes.
const perElement = 24

// Take remembers what a shell has saved: the directory, a line with the marker, the exports. It may be cut off behind
// MaxState bytes. Exports that are too large, or for which the sandbox's other sessions leave no room, are dropped, and
// those from before stay; the directory is taken all the same. What isn't a state, such as the script that was in the
// file before, changes nothing.
func (m *Memory) Take(saved []byte) {
	if len(saved) == 0 || saved[0] != '/' {
		return
	}
	cwd, exports, ok := bytes.Cut(saved, []byte("\n"+marker+"\n"))
	if !ok || len(cwd) >= unix.PathMax {
		return
	}
	m.Cwd = slices.Clone(cwd)
	if len(saved) <= MaxState && m.budget.change(len(m.Exports), len(exports)) {
		m.Exports = append(make([]byte, 0, len(exports)), exports...)
	}
}

// Script is what the session's shell runs: it gets the variables back, runs the command, saves the state into
// descriptor fd. The command is evaluated as one word, so that nothing in it, not even an open quote, reaches what
// stands around it. An environment for which there is no room isn't remembered; all of it counts as changed next time.
func (m *Memory) Script(fd int, command []byte, env [][]byte, cwd []byte) (script []byte, initial [][]byte) {
	save := fmt.Sprintf(`{ pwd; echo "%s"; export -p; } >|/proc/self/fd/%d`, marker, fd)
	var b bytes.Buffer
	initial = env
	if m.Exports != nil {
		b.Write(m.Exports)
		b.WriteByte('\n')
		// What the caller has changed since the last command counts more than what the session remembers; the rest of
		// the environment is the session's: a variable that was unset stays unset.
		initial = nil
		for _, e := range env {
			if slices.ContainsFunc(m.Given, func(g []byte) bool { return bytes.Equal(g, e) }) {
				continue
			}
			name, value, _ := bytes.Cut(e, []byte{'='})
			if !isName(name) {
				initial = append(initial, e)
				continue
			}
			fmt.Fprintf(&b, "export %s=%s\n", name, Quote(value))
		}
	}
	if m.budget.change(size(m.Given), size(env)) {
		m.Given = cloneList(env)
	}
	fmt.Fprintf(&b, "PWD=%s\ntrap '%s' 0\neval %s\nset -- \"$?\"\n%s\nexit \"$1\"\n", Quote(cwd), save, Quote(command), save)
	initial = append(slices.Clip(initial), append([]byte("PWD="), cwd...))
	return b.Bytes(), initial
}

func cloneList(list [][]byte) [][]byte {
	out := make([][]byte, len(list))
	for i, v := range list {
		out[i] = slices.Clone(v)
	}
	return out
}

// Quote makes v one word for a shell.
func Quote(v []byte) []byte {
	q := make([]byte, 0, len(v)+2)
	q = append(q, '\'')
	for _, c := range v {
		if c == '\'' {
			q = append(q, `'\''`...)
			continue
		}
		q = append(q, c)
	}
	return append(q, '\'')
}

// isName tells whether v can be the name of a shell variable.
func isName(v []byte) bool {
	for i, c := range v {
		letter := c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return len(v) > 0
}
