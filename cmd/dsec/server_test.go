package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
)

// fake is an API server whose sandboxes exist on paper and whose commands are Go functions behind the real protocol.
type fake struct {
	t        *testing.T
	http     *httptest.Server
	commands map[string]command
	signals  chan int32 // those sent to processes
	sizes    chan api.Size
	stopped  atomic.Int64
	created  chan api.Spec
	conns    sync.WaitGroup

	mu   sync.Mutex // guards list
	list []api.Sandbox
}

// command plays a process on its stream and returns how it ended.
type command func(ctx context.Context, st *aether.Stream, m *aether.ExecStart) aether.Exited

func newFake(t *testing.T) *fake {
	f := &fake{
		t: t, commands: map[string]command{}, signals: make(chan int32, 16), sizes: make(chan api.Size, 16), created: make(chan api.Spec, 16),
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/sandboxes", f.create)
	mux.HandleFunc("GET /v1/sandboxes", func(w http.ResponseWriter, _ *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.answer(w, api.SandboxList{Items: f.list})
	})
	mux.HandleFunc("GET /v1/sandboxes/{id}", f.one)
	mux.HandleFunc("DELETE /v1/sandboxes/{id}", f.one)
	mux.HandleFunc("GET /v1/aether", f.upgrade)
	mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	f.http = httptest.NewServer(mux)
	t.Cleanup(func() {
		f.http.Close()
		f.conns.Wait()
	})
	return f
}

// env is the environment of a client of this server.
func (f *fake) env() []string {
	return []string{"DSEC_ENDPOINT=" + f.http.URL, "DSEC_TOKEN=t", "HOME=" + f.t.TempDir(), "TERM=dumb"}
}

// dsec runs a command line and returns what it printed and its exit code.
func (f *fake) dsec(stdin string, args ...string) (stdout, stderr string, code int) {
	f.t.Helper()
	var out, errs strings.Builder
	code = run(f.t.Context(), args, f.env(), strings.NewReader(stdin), &out, &errs)
	return out.String(), errs.String(), code
}

func (f *fake) answer(w io.Writer, v any) {
	if err := json.NewEncoder(w).Encode(v); err != nil {
		f.t.Errorf("answer: %v", err)
	}
}

func (f *fake) problem(w http.ResponseWriter, e *api.Error) {
	w.WriteHeader(e.HTTP)
	f.answer(w, e)
}

func (f *fake) create(w http.ResponseWriter, r *http.Request) {
	var spec api.Spec
	if err := json.NewDecoder(r.Body).Decode(&spec); err != nil {
		f.t.Errorf("create: %v", err)
	}
	f.created <- spec
	if spec.Image == "none" {
		f.problem(w, api.FieldError(api.CodeNoSuchImage, "image", "make setup", "no image %q\x1b[31m", spec.Image))
		return
	}
	sb := api.Sandbox{ID: "s1", State: api.StateRunning, Project: "p", Spec: spec, CreatedAt: time.Unix(0, 0)}
	f.mu.Lock()
	f.list = append(f.list, sb)
	f.mu.Unlock()
	f.answer(w, sb)
}

func (f *fake) one(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.list {
		if sb := &f.list[i]; sb.ID == r.PathValue("id") {
			if r.Method == http.MethodDelete {
				sb.State = api.StateStopped
				f.stopped.Add(1)
			}
			f.answer(w, *sb)
			return
		}
	}
	f.problem(w, api.Errorf(api.CodeNotFound, "no sandbox %q", r.PathValue("id")))
}

func (f *fake) upgrade(w http.ResponseWriter, _ *http.Request) {
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		f.t.Errorf("hijack: %v", err)
		return
	}
	fmt.Fprint(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: aether\r\n\r\n")
	if rw.Flush() != nil {
		return
	}
	f.conns.Go(func() {
		defer conn.Close()
		c, err := aether.Server(struct {
			io.Reader
			io.WriteCloser
		}{rw, conn}, aether.Options{MaxData: aether.MaxDataElse})
		if err == nil {
			_ = c.Serve(context.Background(), f.serve)
		}
	})
}

func (f *fake) serve(ctx context.Context, st *aether.Stream) {
	err := f.dispatch(ctx, st)
	if e, ok := errors.AsType[*api.Error](err); ok {
		st.Reset(e)
	} else if err == nil {
		_ = st.Close()
	}
}

func (f *fake) dispatch(ctx context.Context, st *aether.Stream) error {
	o := st.Open()
	switch o.Method {
	case "signal":
		var m aether.Signal
		if err := m.Unmarshal(o.Body); err != nil {
			return err
		}
		f.signals <- m.Signal
		return st.Send(ctx, aether.MsgReply, nil)
	case "resize":
		var m aether.Resize
		if err := m.Unmarshal(o.Body); err != nil {
			return err
		}
		f.sizes <- api.Size{Rows: uint16(m.Rows), Cols: uint16(m.Cols)}
		return st.Send(ctx, aether.MsgReply, nil)
	case "exec":
		var m aether.ExecStart
		if err := m.Unmarshal(o.Body); err != nil {
			return err
		}
		if len(m.Argv) == 0 && len(m.Shell) == 0 {
			return api.Errorf(api.CodeInvalid, "there is no command")
		}
		name := "shell"
		if len(m.Argv) > 0 {
			name = string(m.Argv[0])
		}
		play := f.commands[name]
		if play == nil {
			return api.Errorf(api.CodeCommandNotFound, "%s: not found", name)
		}
		if err := st.Send(ctx, aether.MsgStarted, (&aether.Started{ID: m.ID, PIDInside: 2}).AppendTo(nil)); err != nil {
			return err
		}
		exit := play(ctx, st, &m)
		return st.Send(ctx, aether.MsgExited, exit.AppendTo(nil))
	}
	return api.Errorf(api.CodeNotImplemented, "no method %s", o.Method)
}

// input receives stdin until fn has had enough or it ends.
func input(ctx context.Context, st *aether.Stream, fn func([]byte) bool) {
	for {
		f, err := st.Recv(ctx)
		if err != nil {
			return
		}
		more := fn(f.Data) && !f.End
		f.Release()
		if !more {
			return
		}
	}
}

// put prints on a stream; a failure shows in what the test reads.
func put(ctx context.Context, st *aether.Stream, ch aether.Channel, text string) {
	_ = st.Write(ctx, ch, []byte(text))
}

func exited(code int32) aether.Exited { return aether.Exited{HasCode: true, Code: code} }
