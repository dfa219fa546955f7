package libdsec_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/libdsec"
)

const testToken = "secret"

// server is an API server with the real upgrade and the real protocol, and commands that are Go functions.
type server struct {
	t    testing.TB // nil in examples
	http *httptest.Server
	mux  *http.ServeMux

	programs    map[string]program
	raw         map[string]func(context.Context, *aether.Stream) error // commands that speak the protocol themselves
	other       func(context.Context, *aether.Stream) error            // every other method
	refuse      atomic.Pointer[api.Error]                              // resets the next exec with this, once
	dropStarted atomic.Bool                                            // breaks all connections before the next start is answered, once
	execs       atomic.Int64                                           // exec streams that were opened
	upgrades    atomic.Int64
	handlers    sync.WaitGroup

	mu    sync.Mutex // guards the maps below
	procs map[string]*proc
	conns map[net.Conn]bool
}

// program is a command; what it returns is its exit code.
type program func(p *proc) int32

func newServer(t testing.TB) *server {
	s := &server{
		t: t, mux: http.NewServeMux(), procs: map[string]*proc{}, conns: map[net.Conn]bool{}, programs: map[string]program{},
		raw: map[string]func(context.Context, *aether.Stream) error{},
	}
	s.mux.HandleFunc("GET /v1/aether", s.upgrade)
	s.http = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+testToken {
			s.problem(w, api.Errorf(api.CodeUnauthenticated, "no valid token"))
			return
		}
		s.mux.ServeHTTP(w, r)
	}))
	if t != nil {
		t.Cleanup(s.close)
	}
	return s
}

// newExampleServer is a server that also makes sandboxes, of a kind.
func newExampleServer() *server {
	s := newServer(nil)
	s.usual()
	s.other = servePort
	s.mux.HandleFunc("/v1/sandboxes", func(w http.ResponseWriter, _ *http.Request) { s.write(w, api.Sandbox{ID: "s1"}) })
	s.mux.HandleFunc("/v1/sandboxes/s1", func(w http.ResponseWriter, _ *http.Request) { s.write(w, api.Sandbox{ID: "s1"}) })
	return s
}

func (s *server) close() {
	s.mu.Lock()
	for _, p := range s.procs {
		p.kill(9)
	}
	s.mu.Unlock()
	s.drop()
	s.http.Close()
	s.handlers.Wait()
}

func (s *server) errorf(format string, args ...any) {
	if s.t == nil {
		panic(fmt.Sprintf(format, args...))
	}
	s.t.Errorf(format, args...)
}

func (s *server) problem(w http.ResponseWriter, e *api.Error) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(e.HTTP)
	s.write(w, e)
}

func (s *server) write(w io.Writer, v any) {
	if err := json.NewEncoder(w).Encode(v); err != nil {
		s.errorf("write answer: %v", err)
	}
}

// client is a client of this server.
func (s *server) client() *libdsec.Client {
	s.t.Helper()
	c, err := libdsec.New(libdsec.WithEndpoint(s.http.URL, testToken))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if err := c.Close(); err != nil {
			s.t.Errorf("Close() = %v", err)
		}
	})
	return c
}

func (s *server) upgrade(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") != "aether" {
		s.problem(w, api.Errorf(api.CodeInvalid, "no upgrade"))
		return
	}
	s.upgrades.Add(1)
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		s.errorf("hijack: %v", err)
		return
	}
	fmt.Fprint(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: aether\r\n\r\n")
	if err := rw.Flush(); err != nil {
		conn.Close()
		return
	}
	s.mu.Lock()
	s.conns[conn] = true
	s.mu.Unlock()
	s.handlers.Go(func() {
		defer func() {
			s.mu.Lock()
			delete(s.conns, conn)
			s.mu.Unlock()
			conn.Close()
		}()
		ac, err := aether.Server(struct {
			io.Reader
			io.WriteCloser
		}{rw, conn}, aether.Options{Name: "test", MaxData: aether.MaxDataElse})
		if err != nil {
			return
		}
		_ = ac.Serve(context.Background(), s.serve)
	})
}

// drop breaks all upgraded connections, as a NAT that forgot them would.
func (s *server) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		c.Close()
	}
}

// dropAndMeet drops the connections until the client has made a new one. Once isn't always enough: the one before may not
// have been there yet.
func (s *server) dropAndMeet(t *testing.T) {
	t.Helper()
	ctx := testContext(t)
	for before := s.upgrades.Load(); s.upgrades.Load() == before; runtime.Gosched() {
		s.drop()
		if ctx.Err() != nil {
			t.Fatal("the connection wasn't made again")
		}
	}
}

func (s *server) serve(ctx context.Context, st *aether.Stream) {
	err := s.dispatch(ctx, st)
	switch e, ok := errors.AsType[*api.Error](err); {
	case ok:
		st.Reset(e)
	case err != nil:
		st.Reset(nil)
	default:
		_ = st.Close()
	}
}

func (s *server) dispatch(ctx context.Context, st *aether.Stream) error {
	o := st.Open()
	switch o.Method {
	case "exec":
		return s.exec(ctx, st)
	case "attach":
		var m aether.Attach
		if err := m.Unmarshal(o.Body); err != nil {
			return err
		}
		p, err := s.find(m.ID)
		if err != nil {
			return err
		}
		return p.follow(ctx, st, [2]int64{m.StdoutOffset, m.StderrOffset}, m.Stdin)
	case "signal":
		var m aether.Signal
		if err := m.Unmarshal(o.Body); err != nil {
			return err
		}
		p, err := s.find(m.ID)
		if err != nil {
			return err
		}
		p.signalled(m.Signal)
		return st.Send(ctx, aether.MsgReply, nil)
	case "resize":
		var m aether.Resize
		if err := m.Unmarshal(o.Body); err != nil {
			return err
		}
		p, err := s.find(m.ID)
		if err != nil {
			return err
		}
		p.sizes <- api.Size{Rows: uint16(m.Rows), Cols: uint16(m.Cols)}
		return st.Send(ctx, aether.MsgReply, nil)
	}
	if s.other != nil {
		return s.other(ctx, st)
	}
	return api.Errorf(api.CodeNotImplemented, "no method %q", o.Method)
}

func (s *server) find(id string) (*proc, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.procs[id]; p != nil {
		return p, nil
	}
	return nil, api.Errorf(api.CodeNoSuchProcess, "no process %q", id)
}

func (s *server) proc(id string) *proc {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.procs[id]
}

func (s *server) exec(ctx context.Context, st *aether.Stream) error {
	n := s.execs.Add(1)
	if e := s.refuse.Swap(nil); e != nil {
		return e
	}
	var m aether.ExecStart
	if err := m.Unmarshal(st.Open().Body); err != nil {
		return err
	}
	if len(m.Argv) == 0 {
		return api.Errorf(api.CodeInvalid, "there is no command")
	}
	if raw := s.raw[string(m.Argv[0])]; raw != nil {
		return raw(ctx, st)
	}
	run := s.programs[string(m.Argv[0])]
	if run == nil {
		return api.Errorf(api.CodeCommandNotFound, "%s: not found", m.Argv[0])
	}
	if m.ID == "" {
		m.ID = fmt.Sprintf("p%d", n)
	}
	p := newProc(&m)
	s.mu.Lock()
	s.procs[m.ID] = p
	s.mu.Unlock()
	s.handlers.Go(func() { p.end(run(p)) })
	if s.dropStarted.Swap(false) {
		s.drop()
	}
	err := p.follow(ctx, st, [2]int64{}, m.Stdin)
	if err != nil && !m.Keep {
		p.kill(9)
	}
	return err
}

// proc is a running program with all it ever printed.
type proc struct {
	start *aether.ExecStart
	stdin *io.PipeReader
	input *io.PipeWriter
	sizes chan api.Size // resizes, in order
	dead  chan struct{} // closed by a kill

	mu      sync.Mutex // guards everything below
	out     [2][]byte
	lost    [2]int64 // how much of the beginning isn't kept
	change  chan struct{}
	exited  *aether.Exited
	signals []int32
}

func newProc(m *aether.ExecStart) *proc {
	p := &proc{start: m, change: make(chan struct{}), dead: make(chan struct{}), sizes: make(chan api.Size, 16)}
	p.stdin, p.input = io.Pipe()
	if !m.Stdin {
		p.input.Close()
	}
	return p
}

func (p *proc) update(fn func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fn()
	close(p.change)
	p.change = make(chan struct{})
}

func (p *proc) print(stream int, b []byte) {
	p.update(func() { p.out[stream] = append(p.out[stream], b...) })
}

func (p *proc) end(code int32) {
	p.update(func() {
		if p.exited != nil {
			return
		}
		p.exited = &aether.Exited{HasCode: true, Code: code, StdoutTotal: int64(len(p.out[0])), StderrTotal: int64(len(p.out[1]))}
	})
}

func (p *proc) kill(signal int32) {
	p.update(func() {
		if p.exited == nil {
			p.exited = &aether.Exited{Signal: signal}
			close(p.dead)
			p.stdin.Close()
		}
	})
}

func (p *proc) signalled(n int32) {
	p.update(func() { p.signals = append(p.signals, n) })
	if n == 9 || n == 15 {
		p.kill(n)
	}
}

// follow sends what there is from the offsets on until the process has ended.
func (p *proc) follow(ctx context.Context, st *aether.Stream, at [2]int64, stdin bool) error {
	started := aether.Started{ID: p.start.ID, PIDInside: 7, StartedAtUnixNano: 1}
	if err := st.Send(ctx, aether.MsgStarted, started.AppendTo(nil)); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	wg.Go(func() { p.receive(ctx, cancel, st, stdin) })
	for {
		p.mu.Lock()
		change, exited := p.change, p.exited
		out, lost := p.out, p.lost
		p.mu.Unlock()
		for i, ch := range []aether.Channel{aether.Stdout, aether.Stderr} {
			if gap := lost[i] - at[i]; gap > 0 {
				m := aether.Gap{Channel: uint8(ch), Offset: at[i], Length: gap}
				if err := st.Send(ctx, aether.MsgGap, m.AppendTo(nil)); err != nil {
					return err
				}
				at[i] = lost[i]
			}
			if b := out[i][at[i]:]; len(b) > 0 {
				if err := st.Write(ctx, ch, b); err != nil {
					return err
				}
				at[i] += int64(len(b))
			}
		}
		if exited != nil {
			return st.Send(ctx, aether.MsgExited, exited.AppendTo(nil))
		}
		select {
		case <-change:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// receive takes stdin, and notices when the client goes.
func (p *proc) receive(ctx context.Context, cancel context.CancelCauseFunc, st *aether.Stream, stdin bool) {
	for {
		f, err := st.Recv(ctx)
		if err != nil {
			if errors.Is(err, io.EOF) { // the client has said all, and may still leave
				<-st.Done()
				err = st.Err()
			}
			if err != nil {
				cancel(err)
			}
			return
		}
		if stdin && f.Channel == aether.Stdin {
			if len(f.Data) > 0 {
				_, _ = p.input.Write(f.Data) // a program that doesn't read has closed its end
			}
			if f.End {
				p.input.Close()
			}
		}
		f.Release()
	}
}
