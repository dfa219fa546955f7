package chronus

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/chronus/launch"
	"github.com/dsec-io/dsec/internal/chronus/remember"
	"github.com/dsec-io/dsec/internal/chronus/request"
	"github.com/dsec-io/dsec/internal/keeper"
)

const (
	shellPath = "/bin/sh"
	// stateNumber is the descriptor through which a session's shell gets its script and leaves its state. It is too large
	// for a shell's own redirections, which have one digit, so a command can't hit it by accident.
	stateNumber = 198
	// scriptNumber is where a script that is too long for an argument is; the shell closes it first of all.
	scriptNumber = 3

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
	mu       sync.Mutex
	memory   remember.Memory
	starting chan struct{} // closed once the command whose turn it is runs, or doesn't; nil: there is none on its way
	running  *process
	closed   bool
}

func newSession(b *box, id, user string, cwd []byte) *session {
	se := &session{box: b, id: id, user: user, memory: remember.New(&b.memory, cwd), turn: make(chan struct{}, 1)}
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
		return se.hasClosed()
	}
	se.starting = make(chan struct{})
	return nil
}

func (se *session) hasClosed() error {
	return api.Errorf(api.CodeNoSuchSession, "session %q has been closed", se.id)
}

// begun tells those who wait for it what runs now, nil when nothing does, and whether the session was closed meanwhile.
func (se *session) begun(p *process) (closed bool) {
	se.mu.Lock()
	defer se.mu.Unlock()
	se.running = p
	if se.starting != nil {
		close(se.starting)
		se.starting = nil
	}
	return se.closed
}

func (se *session) release() {
	se.begun(nil)
	se.turn <- struct{}{}
}

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

// takeState reads what the shell has saved.
func (se *session) takeState(fd int) {
	buf := make([]byte, remember.MaxState+1)
	if n, err := unix.Pread(fd, buf, 0); err == nil && !se.closed {
		se.memory.Take(buf[:n])
	}
}

// interrupt ends the running command: first as Ctrl-C would, then for good. A command is at work a moment before it is
// known here to run, so one that is being started is waited for.
func (se *session) interrupt(ctx context.Context) error {
	se.mu.Lock()
	for starting := se.starting; starting != nil; starting = nil {
		se.mu.Unlock()
		select {
		case <-starting:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		se.mu.Lock()
	}
	p := se.running
	se.mu.Unlock()
	if p == nil {
		return nil
	}
	p.interrupt()
	over := make(chan struct{})
	grace := p.box.gate.AfterFunc(interruptGrace, func() { close(over) })
	defer grace.Stop()
	for {
		changed := p.watch()
		se.mu.Lock()
		ended := se.running != p
		se.mu.Unlock()
		if ended {
			return nil
		}
		select {
		case <-changed:
		case <-over:
			p.kill(cause{cancelled: true})
			over = nil
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
	saved := savedSession{Box: se.box.Name, ID: se.id, User: se.user, Cwd: se.memory.Cwd, Size: -1}
	if launch.Size(se.memory.Given) <= maxInline {
		saved.Given = se.memory.Given
	}
	it := keeper.Item{Key: sessionKey + se.box.Name + "/" + se.id, Wait: keeper.NoWait}
	var err error
	if se.memory.Exports != nil {
		saved.Size = len(se.memory.Exports)
		if saved.Size <= maxInline {
			saved.Exports = se.memory.Exports
		} else {
			var fd int
			if fd, err = launch.MemFile("session", se.memory.Exports); err == nil {
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
	exports := saved.Exports
	switch {
	case saved.Size > maxInline:
		if len(fds) != 1 || saved.Size > remember.MaxState {
			return nil, errors.New("no state")
		}
		exports = make([]byte, saved.Size)
		if n, err := unix.Pread(fds[0], exports, 0); err != nil || n != saved.Size {
			return nil, fmt.Errorf("read state: %d of %d bytes: %w", n, saved.Size, err)
		}
		_ = unix.Close(fds[0])
	case saved.Size >= 0 && exports == nil:
		exports = []byte{}
	}
	se.memory.Restore(exports, saved.Given)
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
	se.memory.Forget()
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
	if !request.IsID(want.ID) {
		return nil, api.FieldError(api.CodeInvalid, "id", "letters, digits, - and _, at most 64", "session id %q", launch.Shorten([]byte(want.ID)))
	}
	if want.User != "" {
		err := b.enter(nil, func() error {
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
	d := &api.Session{ID: se.id, Cwd: string(se.memory.Cwd), User: se.user, Busy: se.running != nil || se.starting != nil}
	if se.running != nil {
		d.Process = se.running.meta.ID
	}
	return d
}
