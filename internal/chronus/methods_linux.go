package chronus

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/chronus/launch"
	"github.com/dsec-io/dsec/internal/chronus/record"
)

// serveAttach is method "attach".
func (s *Shard) serveAttach(ctx context.Context, st *aether.Stream) error {
	open := st.Open()
	var m aether.Attach
	if err := m.Unmarshal(open.Body); err != nil {
		return api.Errorf(api.CodeInvalid, "attach: %v", err)
	}
	if m.StdoutOffset < 0 || m.StderrOffset < 0 {
		return api.FieldError(api.CodeInvalid, "stdout_offset", "", "offsets %d and %d", m.StdoutOffset, m.StderrOffset)
	}
	b, err := s.box(open.Sandbox)
	if err != nil {
		return err
	}
	p, err := b.process(m.ID)
	if err != nil {
		return err
	}
	switch {
	case !m.Stdin:
	case p.stdin != nil:
		p.takeInput(st)
	case p.own || p.finished() == nil: // of what an earlier shard ended nobody knows if it took input, and it takes none now
		return api.Errorf(api.CodeConflict, "process %s was started without stdin", m.ID)
	}
	return p.attach(ctx, st, &follower{p: p, st: st, off: [2]int64{m.StdoutOffset, m.StderrOffset}, fromNow: m.FromNow, noFollow: m.NoFollow})
}

// serveWait is method "wait": it answers with the process once that has ended.
func (s *Shard) serveWait(ctx context.Context, st *aether.Stream) error {
	open := st.Open()
	b, err := s.box(open.Sandbox)
	if err != nil {
		return err
	}
	p, err := b.process(string(open.Body))
	if err != nil {
		return err
	}
	for {
		changed := p.watch()
		if p.finished() != nil {
			body, err := json.Marshal(p.describe())
			if err != nil {
				return err
			}
			return st.Reply(ctx, body)
		}
		select {
		case <-changed:
		case <-p.stop:
			return p.removed()
		case <-st.Done():
			return nil // nobody waits any more
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// deliver sends a signal.
func (p *process) deliver(m *aether.Signal) error {
	sig := unix.Signal(m.Signal)
	if sig < 0 || sig > 64 {
		return api.FieldError(api.CodeInvalid, "signal", "a number from 1 to 64", "signal %d", m.Signal)
	}
	if m.Tree {
		return p.deliverTree(sig)
	}
	err := p.signal(sig)
	if errors.Is(err, unix.ESRCH) {
		return api.Errorf(api.CodeNoSuchProcess, "process %s has ended", p.meta.ID)
	}
	if err != nil {
		return api.Errorf(api.CodeInternal, "signal process %s: %v", p.meta.ID, err)
	}
	return nil
}

// deliverTree sends a signal to every process of the command's cgroup.
func (p *process) deliverTree(sig unix.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.meta.Group == "" {
		if sig == unix.SIGKILL {
			return nil
		}
		return api.Errorf(api.CodeNoSuchProcess, "process %s has ended", p.meta.ID)
	}
	return p.shard.launcher.SignalTree(p.box.Name, p.meta.Group, sig)
}

// describe is p for a listing.
func (p *process) describe() api.Process {
	d := api.Process{
		ID: p.meta.ID, Tag: p.meta.Tag, Session: p.meta.Session, TTY: p.meta.TTY, PID: p.Inside, Running: true,
		StartedAt: time.Unix(0, p.meta.Started).UTC(),
	}
	for _, a := range p.meta.Argv {
		d.Argv = append(d.Argv, strings.ToValidUTF8(string(a), "\uFFFD"))
	}
	if r := p.finished(); r != nil {
		d.Running, d.Exit = false, record.Status(r)
	}
	return d
}

// list is method "processes".
func (b *box) list() []api.Process {
	b.mu.Lock()
	procs := make([]*process, 0, len(b.procs))
	for _, p := range b.procs {
		procs = append(procs, p)
	}
	b.mu.Unlock()
	slices.SortFunc(procs, func(x, y *process) int {
		return cmp.Or(cmp.Compare(x.meta.Started, y.meta.Started), strings.Compare(x.meta.ID, y.meta.ID))
	})
	out := make([]api.Process, len(procs))
	for i, p := range procs {
		out[i] = p.describe()
	}
	return out
}

// listSessions is method "session.list".
func (b *box) listSessions() []*api.Session {
	b.mu.Lock()
	all := make([]*session, 0, len(b.sessions))
	for _, se := range b.sessions {
		all = append(all, se)
	}
	b.mu.Unlock()
	slices.SortFunc(all, func(x, y *session) int { return strings.Compare(x.id, y.id) })
	out := make([]*api.Session, len(all))
	for i, se := range all {
		out[i] = se.describe()
	}
	return out
}

// unary answers the methods that have one question and one answer.
func (s *Shard) unary(ctx context.Context, open *aether.Open, fds []int) ([]byte, error) {
	switch open.Method {
	case "add":
		return nil, s.addBox(open.Body, fds)
	case "remove":
		return nil, s.removeBox(open.Sandbox)
	case "orphan.limit":
		return nil, s.limitOrphans(open.Body)
	case "ended":
		return s.edges.Ended()
	case "boxes":
		return json.Marshal(s.boxNames())
	case "keeper":
		return nil, s.newKeeper(ctx, fds)
	case "stats":
		return json.Marshal(s.stats())
	case "gc", "gc.loop", "fds", "crash":
		return nil, s.hooks.Run(open)
	}
	b, err := s.box(open.Sandbox)
	if err != nil {
		return nil, err
	}
	if open.Method == "box.resume" {
		return nil, b.resume(ctx)
	}
	if strings.HasPrefix(open.Method, "session.") {
		return s.unarySession(ctx, b, open)
	}
	return s.unaryProcess(b, open)
}

func (s *Shard) unaryProcess(b *box, open *aether.Open) ([]byte, error) {
	switch open.Method {
	case "processes":
		return json.Marshal(b.list())
	case "process", "forget":
		p, err := b.process(string(open.Body))
		if err != nil {
			return nil, err
		}
		if open.Method == "process" {
			return json.Marshal(p.describe())
		}
		if p.finished() == nil {
			return nil, api.Errorf(api.CodeConflict, "process %s is running; kill it first", p.meta.ID)
		}
		p.forget()
		return nil, nil
	case "signal":
		var m aether.Signal
		if err := m.Unmarshal(open.Body); err != nil {
			return nil, api.Errorf(api.CodeInvalid, "signal: %v", err)
		}
		p, err := b.process(m.ID)
		if err != nil {
			return nil, err
		}
		return nil, p.deliver(&m)
	case "resize":
		var m aether.Resize
		if err := m.Unmarshal(open.Body); err != nil {
			return nil, api.Errorf(api.CodeInvalid, "resize: %v", err)
		}
		p, err := b.process(m.ID)
		if err != nil {
			return nil, err
		}
		return nil, p.resize(&m)
	}
	return nil, api.Errorf(api.CodeNotImplemented, "no method %q", launch.Shorten([]byte(open.Method)))
}

func (s *Shard) unarySession(ctx context.Context, b *box, open *aether.Open) ([]byte, error) {
	switch open.Method {
	case "session.create":
		d, err := s.createSession(b, open.Body)
		if err != nil {
			return nil, err
		}
		return json.Marshal(d)
	case "session.list":
		return json.Marshal(b.listSessions())
	case "session.interrupt", "session.close":
		se, err := b.session(string(open.Body))
		if err != nil {
			return nil, err
		}
		if open.Method == "session.interrupt" {
			return nil, se.interrupt(ctx)
		}
		b.mu.Lock()
		delete(b.sessions, se.id)
		b.mu.Unlock()
		se.close()
		return nil, nil
	}
	return nil, api.Errorf(api.CodeNotImplemented, "no method %q", launch.Shorten([]byte(open.Method)))
}
