package edge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
)

// fake is a backend that keeps its state: its sandboxes are files in a folder, so that they outlive the process as real
// ones do, and their aether is a server in this process, reached over a real Unix socket. It can't run programs; its
// commands are the few that execFake knows.
type fake struct {
	dir string
	ln  net.Listener
	run context.CancelFunc
	wg  sync.WaitGroup

	mu     sync.Mutex
	conn   *aether.Conn
	served map[*aether.Conn]bool
	boxes  map[string]*fakeBox
	kept   map[string]*fakeProcess // by sandbox/id
	warm   bool
	waits  int
	told   []string // "signal" and "forget", as they came

	// What goes wrong, by name; see the uses.
	faults map[string]error
	calls  map[string]int // of boxes' methods, and execs

	slow     chan struct{} // requests wait for it, where set
	onFrozen func()        // called before a request is refused as to a frozen sandbox
	hold     chan struct{} // Start, SetLimits, Pause and Resume wait for it, where set
}

type fakeProcess struct {
	api.Process
	out  []byte
	done chan struct{} // closed at its end
}

type fakeBox struct {
	f     *fake
	id    string
	state json.RawMessage
	done  chan struct{}
	once  sync.Once

	mu     sync.Mutex
	limits api.Resources
}

var _ = Backend(&fake{})

func newFake(dir string) (*fake, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	sock := filepath.Join(dir, "a.sock")
	_ = os.Remove(sock)
	ln, err := net.Listen("unix", sock)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	f := &fake{
		dir: dir, ln: ln, run: cancel, served: map[*aether.Conn]bool{}, boxes: map[string]*fakeBox{}, kept: map[string]*fakeProcess{},
		faults: map[string]error{}, calls: map[string]int{},
	}
	f.wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			f.wg.Go(func() {
				conn, err := aether.Server(c, aether.Options{Name: "fake", MaxData: aether.MaxDataAether, MaxStreams: 65_536})
				if err != nil {
					return
				}
				f.mu.Lock()
				f.served[conn] = true
				f.mu.Unlock()
				_ = conn.Serve(ctx, f.serve)
				_ = conn.Close()
			})
		}
	})
	return f, nil
}

func (f *fake) fault(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.faults[name]
}

func (f *fake) setFault(name string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults[name] = err
}

func (f *fake) alive(id string) string { return filepath.Join(f.dir, id+".alive") }

// living is the ids of all sandboxes that exist outside of any edge.
func (f *fake) living() map[string]bool {
	files, _ := filepath.Glob(f.alive("*"))
	ids := map[string]bool{}
	for _, p := range files {
		name := filepath.Base(p)
		ids[name[:len(name)-len(".alive")]] = true
	}
	return ids
}

func (f *fake) Name() string { return "container" }

func (f *fake) List() ([]string, error) { return slices.Sorted(maps.Keys(f.living())), f.fault("list") }

func (f *fake) Warm() { f.warm = true }

func (f *fake) wait(ctx context.Context) error {
	f.mu.Lock()
	hold := f.hold
	f.mu.Unlock()
	if hold == nil {
		return nil
	}
	select {
	case <-hold:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (f *fake) Start(ctx context.Context, p BoxParams) (Box, error) {
	if err := p.Persist(json.RawMessage(`{"reserved":true}`)); err != nil {
		return nil, err
	}
	if err := os.WriteFile(f.alive(p.ID), nil, 0o600); err != nil {
		return nil, err
	}
	if err := errors.Join(f.wait(ctx), f.fault("start")); err != nil {
		return nil, err // half-made: Clean has to find it
	}
	state := json.RawMessage(`{"pid":` + strconv.Itoa(os.Getpid()) + `}`)
	if err := p.Persist(state); err != nil {
		return nil, err
	}
	return f.add(p.ID, state), nil
}

func (f *fake) add(id string, state json.RawMessage) *fakeBox {
	b := &fakeBox{f: f, id: id, state: state, done: make(chan struct{})}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.boxes[id] = b
	return b
}

func (f *fake) Adopt(_ context.Context, id string, state json.RawMessage) (Box, error) {
	if err := f.fault("adopt"); err != nil {
		return nil, err
	}
	if _, err := os.Stat(f.alive(id)); err != nil {
		return nil, ErrGone
	}
	return f.add(id, state), nil
}

func (f *fake) Clean(_ context.Context, id string, _ json.RawMessage) error {
	if err := f.fault("clean"); err != nil {
		return err
	}
	f.mu.Lock()
	b := f.boxes[id]
	delete(f.boxes, id)
	f.mu.Unlock()
	if err := os.Remove(f.alive(id)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	_ = os.Remove(f.alive(id) + ".still")
	if b != nil {
		b.once.Do(func() { close(b.done) })
	}
	return nil
}

func (f *fake) Close(context.Context) error {
	f.mu.Lock()
	conn := f.conn
	f.mu.Unlock()
	if conn != nil {
		_ = conn.Close()
	}
	f.run()
	_ = f.ln.Close()
	f.wg.Wait()
	return nil
}

// cut breaks every connection to the aether, as its death does.
func (f *fake) cut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for c := range f.served {
		go c.Close() // it waits for handlers, one of which may be the caller
	}
	clear(f.served)
}

func (b *fakeBox) State() json.RawMessage { return b.state }

func (b *fakeBox) Done() <-chan struct{} { return b.done }

func (b *fakeBox) Open(ctx context.Context, o aether.Open) (*aether.Stream, error) {
	if err := b.f.fault("open-once"); err != nil {
		b.f.setFault("open-once", nil)
		return nil, err
	}
	if err := b.f.fault("open"); err != nil {
		return nil, err
	}
	b.f.mu.Lock()
	defer b.f.mu.Unlock()
	if c := b.f.conn; c == nil || c.Err() != nil {
		nc, err := net.Dial("unix", b.f.ln.Addr().String())
		if err != nil {
			return nil, err
		}
		if b.f.conn, err = aether.Client(nc, aether.Options{Name: "edge"}); err != nil {
			return nil, err
		}
	}
	return b.f.conn.Open(ctx, o)
}

func (b *fakeBox) SetLimits(ctx context.Context, r api.Resources) error {
	if err := errors.Join(b.f.wait(ctx), b.f.fault("limits")); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.limits = r
	return nil
}

func (b *fakeBox) Usage() (Usage, error) { return Usage{MemoryBytes: 4096, PIDs: 1}, nil }

func (b *fakeBox) Stop(ctx context.Context) error {
	if err := b.f.fault("stop"); err != nil {
		return err
	}
	return b.f.Clean(ctx, b.id, nil)
}

// serve is the aether of all sandboxes.
func (f *fake) serve(ctx context.Context, s *aether.Stream) {
	o := s.Open()
	err := f.meet(o.Method)
	if err != nil {
		s.Reset(api.AsError(err))
		return
	}
	switch o.Method {
	case "exec":
		err = f.exec(ctx, s, o)
	case "processes":
		err = f.processes(ctx, s, o)
	case "attach":
		err = f.attach(ctx, s, o)
	case "wait":
		err = f.awaitEnd(ctx, s, o)
	case "signal", "forget":
		f.mu.Lock()
		f.told = append(f.told, o.Method)
		f.mu.Unlock()
		err = s.Reply(ctx, nil)
	case "session.create":
		err = s.Reply(ctx, o.Body)
	default:
		err = api.Errorf(api.CodeNotImplemented, "fake: %s", o.Method)
	}
	if err != nil {
		s.Reset(api.AsError(err))
	}
}

func (f *fake) processes(ctx context.Context, s *aether.Stream, o aether.Open) error {
	f.mu.Lock()
	list := []api.Process{}
	for key, p := range f.kept {
		if key == o.Sandbox+"/"+p.ID {
			list = append(list, p.Process)
		}
	}
	f.mu.Unlock()
	raw, err := json.Marshal(list)
	if err != nil {
		return err
	}
	return s.Reply(ctx, raw)
}

func (f *fake) awaitEnd(ctx context.Context, s *aether.Stream, o aether.Open) error {
	f.mu.Lock()
	p := f.kept[o.Sandbox+"/"+string(o.Body)]
	f.waits++
	f.mu.Unlock()
	if p == nil {
		return api.Errorf(api.CodeNoSuchProcess, "fake: %s", o.Body)
	}
	select {
	case <-p.done:
	case <-s.Done():
		return nil
	}
	f.mu.Lock()
	raw, err := json.Marshal(p.Process)
	f.mu.Unlock()
	if err != nil {
		return err
	}
	return s.Reply(ctx, raw)
}

func (f *fake) attach(ctx context.Context, s *aether.Stream, o aether.Open) error {
	var a aether.Attach
	if err := a.Unmarshal(o.Body); err != nil {
		return err
	}
	f.mu.Lock()
	p := f.kept[o.Sandbox+"/"+a.ID]
	f.mu.Unlock()
	if p == nil {
		return api.Errorf(api.CodeNoSuchProcess, "fake: %s", a.ID)
	}
	st := aether.Started{ID: a.ID}
	if err := s.Send(ctx, aether.MsgStarted, st.AppendTo(nil)); err != nil {
		return err
	}
	f.mu.Lock()
	out, running := p.out, p.Running
	f.mu.Unlock()
	if from := min(a.StdoutOffset, int64(len(out))); a.StdoutOffset >= 0 {
		if err := s.Write(ctx, aether.Stdout, out[from:]); err != nil {
			return err
		}
	}
	switch {
	case running && a.NoFollow:
		return s.Close()
	case running:
		<-s.Done()
		return nil
	}
	return finishFake(ctx, s, 0, int64(len(out)))
}

func finishFake(ctx context.Context, s *aether.Stream, code int32, total int64) error {
	x := aether.Exited{HasCode: true, Code: code, StdoutTotal: total}
	if err := s.Send(ctx, aether.MsgExited, x.AppendTo(nil)); err != nil {
		return err
	}
	return s.Close()
}

func (f *fake) exec(ctx context.Context, s *aether.Stream, o aether.Open) error {
	var x aether.ExecStart
	if err := x.Unmarshal(o.Body); err != nil {
		return err
	}
	switch string(x.Argv[0]) {
	case "missing", "/bin/sh":
		return api.Errorf(api.CodeCommandNotFound, "fake: not found")
	case "lost-before":
		f.cut()
		<-s.Done()
		return nil
	}
	st := aether.Started{ID: x.ID, StartedAtUnixNano: time.Now().UnixNano()}
	if err := s.Send(ctx, aether.MsgStarted, st.AppendTo(nil)); err != nil {
		return err
	}
	key := o.Sandbox + "/" + x.ID
	p := &fakeProcess{Process: api.Process{ID: x.ID, Running: true}, done: make(chan struct{})}
	if x.Keep {
		f.mu.Lock()
		f.kept[key] = p
		f.mu.Unlock()
	}
	var out []byte
	switch string(x.Argv[0]) {
	case "say":
		out = bytes.Join(x.Argv[1:], []byte(" "))
	case "call":
		out = fmt.Appendf(nil, "cwd=%s create=%v user=%s max=%d id=%s\n%s", x.Cwd, x.CwdCreate, x.User, x.MaxOutput, x.ID, bytes.Join(x.Env, []byte("\n")))
	case "cat":
		return f.cat(ctx, s)
	case "hang":
		if x.Keep {
			f.mu.Lock()
			p.out = []byte("hanging\n")
			f.mu.Unlock()
		}
		<-s.Done()
		return nil
	case "long", "long-hang":
		return f.long(ctx, s, key, p, string(x.Argv[0]) == "long-hang")
	case "lost-after":
		// The client's input says that it has seen the start.
		fr, err := s.Recv(ctx)
		if err != nil {
			return err
		}
		fr.Release()
		f.cut()
		<-s.Done()
		return nil
	}
	if x.Keep {
		f.mu.Lock()
		p.out, p.Running = out, false
		p.Exit = &api.ExitStatus{ExitCode: new(0)}
		close(p.done)
		f.mu.Unlock()
	}
	if err := s.Write(ctx, aether.Stdout, out); err != nil {
		return err
	}
	if err := s.CloseWrite(aether.Stdout); err != nil {
		return err
	}
	return finishFake(ctx, s, 0, int64(len(out)))
}

// long breaks the connection in the middle of more output than fits into the windows on the way, so that the client has
// seen the start and some of this.
func (f *fake) long(ctx context.Context, s *aether.Stream, key string, p *fakeProcess, running bool) error {
	p.out = longOutput()
	if p.Running = running; !running {
		close(p.done)
	}
	f.mu.Lock()
	f.kept[key] = p
	f.mu.Unlock()
	if err := s.Write(ctx, aether.Stdout, p.out[:len(p.out)/2]); err != nil {
		return err
	}
	f.cut()
	<-s.Done()
	return nil
}

func (f *fake) cat(ctx context.Context, s *aether.Stream) error {
	var total int64
	for {
		fr, err := s.Recv(ctx)
		if err != nil {
			return err
		}
		total += int64(len(fr.Data))
		if len(fr.Data) > 0 {
			err = s.Write(ctx, aether.Stdout, fr.Data)
		}
		end := fr.End
		fr.Release()
		if err != nil {
			return err
		}
		if end {
			return finishFake(ctx, s, 0, total)
		}
	}
}

func longOutput() []byte {
	out := make([]byte, 4<<20)
	for i := range out {
		out[i] = byte(i * 7 >> (i % 13))
	}
	return out
}
