package apiserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/aether/unixfd"
	"github.com/dsec-io/dsec/internal/iam"
	"github.com/dsec-io/dsec/internal/iam/audit"
	"github.com/dsec-io/dsec/internal/state"
)

const (
	ourBox     = "saaaabcdefghijklmnopqr"
	foreignBox = "saaaazzzzzzzzzzzzzzzzz"
)

// fakeEdge is the foreign side of the edge's socket: it speaks the real protocol and answers by rote. Commands are
// words of its own: see run.
type fakeEdge struct {
	socket string

	mu        sync.Mutex // guards what follows
	seen      []aether.Open
	cancelled int           // execs that were reset
	input     []byte        // what attachments wrote
	closed    bool          // the input was ended
	attached  int           // readers that are there
	stay      bool          // attachments don't end by themselves
	unread    chan struct{} // non-nil: attachments and the deaf don't read until it is closed
}

// startEdge serves a fake edge on a socket until the test ends.
func startEdge(t testing.TB) *fakeEdge {
	t.Helper()
	e := &fakeEdge{socket: filepath.Join(t.TempDir(), "edge.sock")}
	stop := e.serve(t)
	t.Cleanup(stop)
	return e
}

func (e *fakeEdge) serve(t testing.TB) (stop func()) {
	t.Helper()
	ln, err := unixfd.Listen(e.socket, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			rw, err := ln.Accept(ctx, unixfd.Options{})
			if err != nil {
				return
			}
			conns.Go(func() {
				if conn, err := aether.Server(rw, aether.Options{Name: "edge"}); err == nil {
					_ = conn.Serve(ctx, e.handle)
					_ = conn.Close()
				}
			})
		}
	})
	var once sync.Once
	return func() {
		once.Do(func() {
			cancel(errors.New("edge stopped"))
			_ = ln.Close()
			conns.Wait()
		})
	}
}

func (e *fakeEdge) handle(ctx context.Context, s *aether.Stream) {
	o := s.Open()
	o.Body = bytes.Clone(o.Body)
	e.mu.Lock()
	e.seen = append(e.seen, o)
	e.mu.Unlock()
	if o.Sandbox != "" && o.Sandbox != ourBox || o.Project != api.DefaultProject {
		s.Reset(api.Errorf(api.CodeNotFound, "there is no sandbox %q", o.Sandbox))
		return
	}
	if err := e.answer(ctx, s, &o); err != nil {
		s.Reset(api.AsError(err))
		return
	}
	_ = s.Close()
}

func (e *fakeEdge) answer(ctx context.Context, s *aether.Stream, o *aether.Open) error {
	reply := func(v any) error {
		body, err := json.Marshal(v)
		return errors.Join(err, s.Send(ctx, aether.MsgReply, body))
	}
	switch o.Method {
	case "sandbox.create", "sandbox.get", "sandbox.patch", "sandbox.stop":
		return reply(api.Sandbox{ID: ourBox, State: api.StateRunning, Project: o.Project})
	case "sandbox.list":
		return reply(api.SandboxList{Items: []api.Sandbox{{ID: ourBox}}})
	case "processes":
		return reply([]api.Process{{ID: "p1"}})
	case "session.create":
		return reply(api.Session{ID: "s1"})
	case "session.list":
		return reply([]api.Session{{ID: "s1"}})
	case "exec":
		return e.exec(ctx, s, o)
	case "attach":
		return e.attach(ctx, s, o)
	case "process", "session.close", "session.interrupt":
		if id := string(o.Body); id != "p1" && id != "s1" {
			return api.Errorf(api.CodeNoSuchProcess, "there is no %q", id)
		}
		return reply(api.Process{ID: string(o.Body), Running: true})
	case "signal", "resize":
		var m aether.Signal // the id has the same number in both
		if err := m.Unmarshal(o.Body); err != nil || m.ID != "p1" {
			return api.Errorf(api.CodeNoSuchProcess, "there is no process %q", m.ID)
		}
		return reply(api.Process{ID: m.ID, Running: true})
	case "sandbox.events":
		line := `{"seq":1,"type":"created"}` + "\n" + `{"seq":2,"type":"running"}` + "\n"
		for _, part := range []string{line[:40], line[40:]} {
			if err := s.Write(ctx, aether.Stdout, []byte(part)); err != nil {
				return err
			}
		}
		return nil
	case "sandbox.logs":
		return errors.Join(s.Write(ctx, aether.Stdout, []byte("a\n")), s.Write(ctx, aether.Stderr, []byte("b\r\n")))
	case "image.import":
		return e.importImage(ctx, s, o)
	case "image.export":
		return errors.Join(s.Write(ctx, aether.Stdout, []byte("tar")), s.CloseWrite(aether.Stdout))
	default:
		return reply(map[string]any{})
	}
}

// exec runs a command of the fake's own: argv is its name and arguments.
func (e *fakeEdge) exec(ctx context.Context, s *aether.Stream, o *aether.Open) error {
	var m aether.ExecStart
	if err := m.Unmarshal(o.Body); err != nil {
		return err
	}
	if len(m.Argv) == 0 {
		m.Argv = [][]byte{[]byte("echo"), m.Shell}
	}
	switch string(m.Argv[0]) {
	case "nope":
		return api.Errorf(api.CodeCommandNotFound, "nope: not found")
	case "fail":
		e := api.Errorf(api.Code(m.Argv[1]), "as asked")
		e.RetryMS = 1500
		return e
	case "vanish":
		return e.vanish(s)
	}
	started := aether.Started{ID: "p1", PIDInside: 7, StartedAtUnixNano: time.Now().UnixNano()}
	if err := s.Send(ctx, aether.MsgStarted, started.AppendTo(nil)); err != nil {
		return err
	}
	x, err := e.run(ctx, s, &m)
	if err != nil {
		return err
	}
	x.StartedAtUnixNano, x.DurationNano = started.StartedAtUnixNano, 1_500_000
	return s.Send(ctx, aether.MsgExited, x.AppendTo(nil))
}

// vanish ends a stream without a word.
func (e *fakeEdge) vanish(s *aether.Stream) error { return s.Close() }

func (e *fakeEdge) run(ctx context.Context, s *aether.Stream, m *aether.ExecStart) (*aether.Exited, error) {
	x := &aether.Exited{HasCode: true, TimeoutMS: m.TimeoutMS}
	switch string(m.Argv[0]) {
	case "echo": // its argument, to both outputs
		x.StdoutTotal, x.StderrTotal = int64(len(m.Argv[1])), int64(len(m.Argv[1]))
		return x, errors.Join(s.Write(ctx, aether.Stdout, m.Argv[1]), s.Write(ctx, aether.Stderr, m.Argv[1]))
	case "cat": // stdin to stdout
		for m.Stdin {
			f, err := s.Recv(ctx)
			if err != nil {
				return nil, err
			}
			end := f.End
			x.StdoutTotal += int64(len(f.Data))
			err = s.Write(ctx, aether.Stdout, f.Data)
			f.Release()
			if err != nil || end {
				return x, err
			}
		}
	case "flood": // more than was allowed
		x.StdoutTotal = 3 * m.MaxOutput
		return x, s.Write(ctx, aether.Stdout, bytes.Repeat([]byte("x"), int(x.StdoutTotal)))
	case "deaf":
		return x, e.takeInput(ctx, s)
	case "hang":
		<-s.Done() // the end of what the client sends is no reason to stop
		e.mu.Lock()
		e.cancelled++
		e.mu.Unlock()
		return nil, s.Err()
	case "lost":
		// More than the credit, so that the client has the start before the reset that would overtake it.
		if err := s.Write(ctx, aether.Stdout, make([]byte, 600<<10)); err != nil {
			return nil, err
		}
		return nil, api.Errorf(api.CodeSandboxDied, "the sandbox died")
	case "kill":
		return &aether.Exited{Signal: 9, OOMKilled: true, InfraError: "bad \xff byte"}, nil
	}
	x.Code = 3
	return x, nil
}

// attach replays "0123456789" from the offset, after a gap that hides the first two bytes.
func (e *fakeEdge) attach(ctx context.Context, s *aether.Stream, o *aether.Open) error {
	var m aether.Attach
	if err := m.Unmarshal(o.Body); err != nil {
		return err
	}
	if m.ID != "p1" {
		return api.Errorf(api.CodeNoSuchProcess, "there is no process %q", m.ID)
	}
	started := aether.Started{ID: m.ID}
	if err := s.Send(ctx, aether.MsgStarted, started.AppendTo(nil)); err != nil {
		return err
	}
	if m.Stdin {
		return e.takeInput(ctx, s)
	}
	if m.StdoutOffset < 2 {
		gap := aether.Gap{Channel: uint8(aether.Stdout), Offset: m.StdoutOffset, Length: 2 - m.StdoutOffset}
		if err := s.Send(ctx, aether.MsgGap, gap.AppendTo(nil)); err != nil {
			return err
		}
		m.StdoutOffset = 2
	}
	e.mu.Lock()
	e.attached++
	stay := e.stay
	e.mu.Unlock()
	if stay {
		_, err := s.Recv(ctx)
		return err
	}
	out := "0123456789"[min(m.StdoutOffset, 10):]
	x := aether.Exited{HasCode: true, StdoutTotal: 10}
	return errors.Join(s.Write(ctx, aether.Stdout, []byte(out)), s.Send(ctx, aether.MsgExited, x.AppendTo(nil)))
}

func (e *fakeEdge) takeInput(ctx context.Context, s *aether.Stream) error {
	e.mu.Lock()
	wait := e.unread
	e.mu.Unlock()
	if wait != nil {
		<-wait
	}
	var m aether.Ack
	for {
		f, err := s.Recv(ctx)
		if err != nil {
			return nil //nolint:nilerr // the client has gone, as clients do
		}
		e.mu.Lock()
		if f.Channel == aether.Stdin {
			m.Dropped = m.Dropped || e.closed
			e.input = append(e.input, f.Data...)
			e.closed = e.closed || f.End
		}
		e.mu.Unlock()
		ack := f.Channel == aether.Message && f.Type == aether.MsgAck
		f.Release()
		if ack {
			if err := s.Send(ctx, aether.MsgAck, m.AppendTo(nil)); err != nil {
				return err
			}
		}
	}
}

func (e *fakeEdge) last(t testing.TB, method string) aether.Open {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := len(e.seen) - 1; i >= 0; i-- {
		if e.seen[i].Method == method {
			return e.seen[i]
		}
	}
	t.Fatalf("the edge was never asked for %s", method)
	return aether.Open{}
}

// rig is a real server on a real port before a fake edge.
type rig struct {
	t     testing.TB
	url   string
	token string
	edge  *fakeEdge
	srv   *Server
}

func newRig(t testing.TB) *rig {
	t.Helper()
	if tt, ok := t.(*testing.T); ok {
		t.Cleanup(func() { goleak.VerifyNone(tt) })
	}
	return serveRig(t, startEdge(t))
}

func serveRig(t testing.TB, edge *fakeEdge) *rig {
	t.Helper()
	tokens := filepath.Join(t.TempDir(), "tokens.json")
	token, err := iam.EnsureToken(tokens, "")
	if err != nil {
		t.Fatal(err)
	}
	boot, err := iam.ReadBootstrap(tokens)
	if err != nil {
		t.Fatal(err)
	}
	authority, err := iam.New(iam.Config{Store: state.New(state.Config{DataDir: filepath.Join(t.TempDir(), "etcd"), SocketDir: t.TempDir()}), Bootstrap: boot})
	if err != nil {
		t.Fatal(err)
	}
	log, err := audit.Open(audit.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	var lc net.ListenConfig
	ln, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv, err := New(Config{EdgeSocket: edge.socket, Authority: authority, Audit: log, Listen: ln.Addr().String(), Hosts: []string{"dsec.test"}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, ln, srv) }()
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		cancel(errors.New("the test is over"))
		if err := <-done; err != nil {
			t.Errorf("Serve() = %v", err)
		}
		if err := errors.Join(authority.Close(), log.Close()); err != nil {
			t.Error(err)
		}
	})
	return &rig{t: t, url: "http://" + ln.Addr().String(), token: token, edge: edge, srv: srv}
}

// request is one HTTP request of a test.
type request struct {
	method, path string
	body         string
	header       http.Header
	anonymous    bool
}

type response struct {
	status  int
	header  http.Header
	body    string
	problem api.Error // if it is one
}

func (r *rig) do(q request) response {
	r.t.Helper()
	resp, err := r.send(r.t.Context(), q)
	if err != nil {
		r.t.Fatalf("%s %s: %v", q.method, q.path, err)
	}
	return resp
}

func (r *rig) send(ctx context.Context, q request) (response, error) {
	req, err := http.NewRequestWithContext(ctx, q.method, r.url+q.path, strings.NewReader(q.body))
	if err != nil {
		return response{}, err
	}
	if !q.anonymous {
		req.Header.Set("Authorization", "Bearer "+r.token)
	}
	for k, v := range q.header {
		if k == "Host" {
			req.Host = v[0]
		}
		req.Header[k] = v
	}
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(req)
	if err != nil {
		return response{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return response{}, fmt.Errorf("read answer: %w", err)
	}
	out := response{status: resp.StatusCode, header: resp.Header, body: string(body)}
	if resp.Header.Get("Content-Type") == "application/problem+json" {
		if err := json.Unmarshal(body, &out.problem); err != nil {
			return response{}, fmt.Errorf("problem %q: %w", body, err)
		}
	}
	return out, nil
}
