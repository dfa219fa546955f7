package chronus

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/chronus/launch"
	"github.com/dsec-io/dsec/internal/keeper"
)

const (
	shellPath = "/bin/sh"
	// stateNumber is the descriptor through which a session's shell gets its script and leaves its state. It is too large
	// for a shell's own redirections, which have one digit, so a command can't hit it by accident.
	stateNumber = 198
	// scriptNumber is where a script that is too long for an argument is; the shell closes it first of all.
	scriptNumber = 3

	maxState       = 1 << 20
	interruptGrace = 1500 * time.Millisecond
)

// session is a chronus: a working directory and exported variables that outlive the commands that set them. Each
// command runs in a shell of its own, which is given the state, and saves it when it exits. A command that is killed
// leaves the state as it was before it, so nothing that a command does can break the session.
type session struct {
	box  *box
	id   string
	user string
	turn chan struct{} // one token: commands take turns

	// mu guards what follows.
	mu      sync.Mutex
	cwd     []byte
	exports []byte   // the shell's own account of its exported variables; nil before the first command
	given   [][]byte // the environment that the last command was given
	running *process
	closed  bool
}

func newSession(b *box, id, user string, cwd []byte) *session {
	se := &session{box: b, id: id, user: user, cwd: cwd, turn: make(chan struct{}, 1)}
	se.turn <- struct{}{}
	return se
}

// acquire waits for this command's turn.
func (se *session) acquire(ctx context.Context, st *aether.Stream) error {
	select {
	case <-se.turn:
	case <-st.Done():
		return api.Errorf(api.CodeNotStarted, "cancelled while another command of the session ran")
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	se.mu.Lock()
	defer se.mu.Unlock()
	if se.closed {
		se.turn <- struct{}{}
		return api.Errorf(api.CodeNoSuchSession, "session %q has been closed", se.id)
	}
	return nil
}

func (se *session) release() { se.turn <- struct{}{} }

// endSession hands the session back after p, with the state that p has left, if it has. It may be called again.
func (p *process) endSession() {
	se := p.session
	if se == nil {
		return
	}
	p.session = nil
	se.mu.Lock()
	if state := p.state; state >= 0 {
		se.takeState(state)
	}
	se.running = nil
	se.mu.Unlock()
	p.closing(func() {
		if p.state >= 0 {
			_ = unix.Close(p.state)
		}
		p.state = -1
	})
	se.put()
	se.release()
}

// takeState reads what the shell has saved: the directory, a line with the marker, the exports. The script that was in
// the file before doesn't begin with a slash.
func (se *session) takeState(fd int) {
	buf := make([]byte, maxState+1)
	n, err := unix.Pread(fd, buf, 0)
	if err != nil || n == 0 || n > maxState || buf[0] != '/' {
		return
	}
	cwd, exports, ok := bytes.Cut(buf[:n], []byte("\n"+stateMarker+"\n"))
	if !ok || len(cwd) >= unix.PathMax {
		return
	}
	se.cwd, se.exports = slices.Clone(cwd), slices.Clone(exports)
}

// stateMarker ends the directory in a saved state. A directory of that name, after a newline, is nobody's accident.
const stateMarker = "-- dsec session state --"

// script is what the session's shell runs: it gets the variables back, runs the command, saves the state. The command
// is evaluated as one word, so that nothing in it, not even an open quote, reaches what stands around it.
func (se *session) script(command []byte, env [][]byte, cwd []byte) (script []byte, initial [][]byte) {
	save := fmt.Sprintf(`{ pwd; echo "%s"; export -p; } >|/proc/self/fd/%d`, stateMarker, stateNumber)
	se.mu.Lock()
	defer se.mu.Unlock()
	var b bytes.Buffer
	initial = env
	if se.exports != nil {
		b.Write(se.exports)
		b.WriteByte('\n')
		// What the caller has changed since the last command counts more than what the session remembers; the rest of
		// the environment is the session's: a variable that was unset stays unset.
		initial = nil
		for _, e := range env {
			if slices.ContainsFunc(se.given, func(g []byte) bool { return bytes.Equal(g, e) }) {
				continue
			}
			name, value, _ := bytes.Cut(e, []byte{'='})
			if !isName(name) {
				initial = append(initial, e)
				continue
			}
			fmt.Fprintf(&b, "export %s=%s\n", name, quote(value))
		}
	}
	se.given = cloneList(env)
	fmt.Fprintf(&b, "PWD=%s\ntrap '%s' 0\neval %s\nset -- \"$?\"\n%s\nexit \"$1\"\n", quote(cwd), save, quote(command), save)
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

// interrupt ends the running command: first as Ctrl-C would, then for good.
func (se *session) interrupt(ctx context.Context) error {
	se.mu.Lock()
	p := se.running
	se.mu.Unlock()
	if p == nil {
		return nil
	}
	p.interrupt()
	grace := time.NewTimer(interruptGrace)
	defer grace.Stop()
	for {
		changed := p.watch()
		se.mu.Lock()
		over := se.running != p
		se.mu.Unlock()
		if over {
			return nil
		}
		select {
		case <-changed:
		case <-grace.C:
			p.kill(cause{cancelled: true})
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// savedSession is a session as the keeper holds it.
type savedSession struct {
	Box, ID, User string
	Cwd           []byte
	Given         [][]byte
	Size          int    // of the exports; -1: there are none yet
	Exports       []byte // if they are small; else a memfd holds them
}

// maxInline is how much of each of its parts is in the record itself: a descriptor of the keeper's is dearer.
const maxInline = 8 << 10

// put gives the keeper the session as it is now.
func (se *session) put() {
	se.mu.Lock()
	if se.closed {
		se.mu.Unlock()
		return
	}
	saved := savedSession{Box: se.box.Name, ID: se.id, User: se.user, Cwd: se.cwd, Size: -1}
	if launch.Size(se.given) <= maxInline {
		saved.Given = se.given
	}
	it := keeper.Item{Key: sessionKey + se.box.Name + "/" + se.id, Wait: keeper.NoWait}
	var err error
	if se.exports != nil {
		saved.Size = len(se.exports)
		if saved.Size <= maxInline {
			saved.Exports = se.exports
		} else {
			var fd int
			if fd, err = launch.MemFile("session", se.exports); err == nil {
				defer func() { _ = unix.Close(fd) }()
				it.FDs = []int{fd}
			}
		}
	}
	se.mu.Unlock()
	if err == nil {
		if it.Blob, err = json.Marshal(&saved); err == nil {
			err = se.box.shard.keeper().Put(it)
		}
	}
	if err != nil {
		se.box.shard.log.Warn("session not kept", slog.String("sandbox", se.box.Name), slog.String("session", se.id), slog.Any("err", err))
	}
}

// restoreSession makes a session of what an earlier shard has put.
func restoreSession(b *box, saved *savedSession, fds []int) (*session, error) {
	se := newSession(b, saved.ID, saved.User, saved.Cwd)
	se.given = saved.Given
	if saved.Size <= maxInline {
		if se.exports = saved.Exports; saved.Size >= 0 && se.exports == nil {
			se.exports = []byte{}
		}
		return se, nil
	}
	if len(fds) != 1 || saved.Size > maxState {
		return nil, errors.New("no state")
	}
	defer func() { _ = unix.Close(fds[0]) }()
	se.exports = make([]byte, saved.Size)
	if n, err := unix.Pread(fds[0], se.exports, 0); err != nil || n != saved.Size {
		return nil, fmt.Errorf("read state: %d of %d bytes: %w", n, saved.Size, err)
	}
	return se, nil
}

// close ends the session and what runs in it.
func (se *session) close() {
	se.mu.Lock()
	if se.closed {
		se.mu.Unlock()
		return
	}
	se.closed = true
	p := se.running
	se.mu.Unlock()
	se.box.shard.del(sessionKey + se.box.Name + "/" + se.id)
	if p != nil {
		p.kill(cause{cancelled: true})
	}
}

func (b *box) session(id string) (*session, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if se := b.sessions[id]; se != nil {
		return se, nil
	}
	return nil, api.FieldError(api.CodeNoSuchSession, "session", "create it first", "no session %q", id)
}

// createSession is method "session.create".
func (s *Shard) createSession(b *box, body []byte) (*api.Session, error) {
	var want api.Session
	if err := json.Unmarshal(body, &want); err != nil {
		return nil, api.Errorf(api.CodeInvalid, "session: %v", err)
	}
	if want.ID == "" {
		want.ID = "c" + strings.ToLower(rand.Text()[:16])
	}
	if !isID(want.ID) {
		return nil, api.FieldError(api.CodeInvalid, "id", "letters, digits, - and _, at most 64", "session id %q", launch.Shorten([]byte(want.ID)))
	}
	if want.User != "" {
		err := b.use(func() error {
			_, err := b.accountOf(want.User)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	if want.Cwd == "" {
		want.Cwd = "/"
	}
	se := newSession(b, want.ID, want.User, []byte(want.Cwd))
	b.mu.Lock()
	switch {
	case b.gone:
		b.mu.Unlock()
		return nil, api.Errorf(api.CodeSandboxDied, "the sandbox has ended")
	case b.sessions[want.ID] != nil:
		b.mu.Unlock()
		return nil, api.Errorf(api.CodeConflict, "session %s exists", want.ID)
	case len(b.sessions) >= maxSessions:
		b.mu.Unlock()
		return nil, api.Errorf(api.CodeTooMany, "the sandbox has %d sessions", len(b.sessions))
	}
	b.sessions[want.ID] = se
	b.mu.Unlock()
	se.put()
	return se.describe(), nil
}

func (se *session) describe() *api.Session {
	se.mu.Lock()
	defer se.mu.Unlock()
	d := &api.Session{ID: se.id, Cwd: string(se.cwd), User: se.user, Busy: se.running != nil}
	if se.running != nil {
		d.Process = se.running.meta.ID
	}
	return d
}

// isID tells whether v may name a process or session.
func isID(v string) bool {
	for _, c := range []byte(v) {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && c != '-' && c != '_' {
			return false
		}
	}
	return v != "" && len(v) <= 64
}

// quote makes v one word for a shell.
func quote(v []byte) []byte {
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
