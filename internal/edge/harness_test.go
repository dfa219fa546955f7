package edge

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
)

// node is an edge with its fake backend and a client of its socket.
type node struct {
	t      testing.TB
	dir    string
	tune   func(*Config)
	edge   *Edge
	fake   *fake
	inst   *Instance
	client *aether.Conn
	cancel context.CancelFunc
	wg     sync.WaitGroup
	down   bool
	kept   map[string]*fakeProcess // that the fake has from the start, where set
}

func testImage(_ context.Context, name string) (ImageConfig, error) {
	switch name {
	case "app":
		return ImageConfig{Entrypoint: []string{"say", "from"}, Cmd: []string{"the", "image"}}, nil
	case "busybox":
	default:
		return ImageConfig{}, api.FieldError(api.CodeNoSuchImage, "image", "run make setup", "no image %q", name)
	}
	return ImageConfig{Env: []string{"PATH=/bin", "FROM=image", "IMAGE=yes"}, User: "worker", Workdir: "/work"}, nil
}

func startNode(t testing.TB, tune func(*Config)) *node {
	t.Helper()
	dir, err := os.MkdirTemp("", "edge")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	n := &node{t: t, dir: dir, tune: tune}
	n.up()
	t.Cleanup(n.stop)
	return n
}

// up starts an edge on the node's folder.
func (n *node) up() {
	n.t.Helper()
	var err error
	n.inst, err = OpenInstance(filepath.Join(n.dir, "data"))
	if err != nil {
		n.t.Fatal(err)
	}
	if n.fake, err = newFake(filepath.Join(n.dir, "fake")); err != nil {
		n.t.Fatal(err)
	}
	if n.kept != nil {
		n.fake.kept = n.kept
	}
	cfg := Config{
		Instance: n.inst, Backend: n.fake, Image: testImage, Logger: slog.New(slog.NewTextHandler(n.t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
		ShortWait: 5 * time.Second, Capacity: Capacity{Sandboxes: 100, MemoryMB: 1 << 20},
	}
	if n.tune != nil {
		n.tune(&cfg)
	}
	ctx, cancel := context.WithCancel(context.Background())
	n.cancel = cancel
	if n.edge, err = New(ctx, cfg); err != nil {
		n.t.Fatal(err)
	}
	n.wg.Go(func() {
		if err := n.edge.Run(ctx); err != nil {
			n.t.Errorf("Run: %v", err)
		}
	})
	var c net.Conn
	until(n.t, "the socket answers", func() bool {
		c, err = net.Dial("unix", n.inst.Socket(SocketName))
		return err == nil
	})
	if n.client, err = aether.Client(c, aether.Options{Name: "test"}); err != nil {
		n.t.Fatal(err)
	}
	n.down = false
}

// stop ends the edge and leaves its sandboxes.
func (n *node) stop() {
	if n.down {
		return
	}
	n.down = true
	_ = n.client.Close()
	n.cancel()
	n.wg.Wait()
	if err := n.edge.Close(context.Background()); err != nil {
		n.t.Errorf("Close: %v", err)
	}
	if err := n.inst.Close(); err != nil {
		n.t.Errorf("close instance: %v", err)
	}
}

func (n *node) restart() {
	n.t.Helper()
	n.stop()
	n.up()
}

// until waits for a condition that something else brings about.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

func encode(t testing.TB, v any) []byte {
	t.Helper()
	switch b := v.(type) {
	case nil:
		return nil
	case []byte:
		return b
	case string:
		return []byte(b)
	}
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// as is a call of a project.
func as(project, method, id string, body []byte) aether.Open {
	return aether.Open{Project: project, Method: method, Sandbox: id, Body: body}
}

// call makes a unary call.
func (n *node) call(ctx context.Context, o aether.Open, into any) error {
	n.t.Helper()
	o.RequestID = "r1"
	raw, err := aether.Unary(ctx, n.client, o)
	if err == nil && into != nil {
		if err := json.Unmarshal(raw, into); err != nil {
			n.t.Fatalf("%s: %v in %s", o.Method, err, raw)
		}
	}
	return err
}

func (n *node) must(method, id string, body, into any) {
	n.t.Helper()
	if err := n.call(n.t.Context(), as("p", method, id, encode(n.t, body)), into); err != nil {
		n.t.Fatalf("%s %s: %v", method, id, err)
	}
}

func (n *node) create(spec any) api.Sandbox {
	n.t.Helper()
	var sb api.Sandbox
	n.must("sandbox.create", "", spec, &sb)
	return sb
}

func (n *node) get(id string) api.Sandbox {
	n.t.Helper()
	var sb api.Sandbox
	n.must("sandbox.get", id, nil, &sb)
	return sb
}

// transcript is what a client saw of a command.
type transcript struct {
	started aether.Started
	exited  *aether.Exited
	stdout  []byte
	err     error // how the stream ended, nil for its graceful end

	replayed bool
}

func (n *node) exec(project, id string, x aether.ExecStart, stdin []byte) transcript {
	n.t.Helper()
	s, err := n.client.Open(n.t.Context(), aether.Open{Method: "exec", Sandbox: id, Project: project, Body: x.AppendTo(nil), Closed: stdin == nil})
	if err != nil {
		n.t.Fatal(err)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	if stdin != nil {
		wg.Go(func() {
			_ = s.Write(n.t.Context(), aether.Stdin, stdin)
			_ = s.CloseWrite(aether.Stdin)
			_ = s.Close()
		})
	}
	return n.read(s)
}

func (n *node) read(s *aether.Stream) transcript {
	n.t.Helper()
	var tr transcript
	for {
		f, err := s.Recv(n.t.Context())
		if errors.Is(err, io.EOF) {
			return tr
		}
		if err != nil {
			tr.err = err
			return tr
		}
		switch {
		case f.Channel == aether.Stdout:
			tr.stdout = append(tr.stdout, f.Data...)
		case f.Channel == aether.Message && f.Type == aether.MsgStarted:
			err = tr.started.Unmarshal(f.Data)
		case f.Channel == aether.Message && f.Type == aether.MsgReplayed:
			tr.replayed = true
		case f.Channel == aether.Message && f.Type == aether.MsgExited:
			tr.exited = &aether.Exited{}
			err = tr.exited.Unmarshal(f.Data)
		}
		f.Release()
		if err != nil {
			n.t.Fatal(err)
		}
	}
}

func argv(words ...string) aether.ExecStart {
	var x aether.ExecStart
	for _, w := range words {
		x.Argv = append(x.Argv, []byte(w))
	}
	return x
}

// eventTypes lists a sandbox's events in order.
func (n *node) eventTypes(id string) []string {
	n.t.Helper()
	var types []string
	for _, ev := range n.events(id, 0, false) {
		types = append(types, ev.Type)
	}
	return types
}

func (n *node) events(id string, since int64, follow bool) []api.Event {
	n.t.Helper()
	s, err := n.client.Open(n.t.Context(), aether.Open{
		Method: "sandbox.events", Sandbox: id, Project: "p", Body: encode(n.t, eventsQuery{Follow: follow, Since: since}), Closed: true,
	})
	if err != nil {
		n.t.Fatal(err)
	}
	tr := n.read(s)
	if tr.err != nil {
		n.t.Fatalf("events of %s: %v", id, tr.err)
	}
	return parseEvents(n.t, tr.stdout)
}

func wantCode(t testing.TB, err error, code api.Code) *api.Error {
	t.Helper()
	if !api.IsCode(err, code) {
		t.Fatalf("error %v (%T), want code %s", err, err, code)
	}
	return api.AsError(err)
}

// kill makes a sandbox's init die.
func (f *fake) kill(id string) {
	f.mu.Lock()
	b := f.boxes[id]
	f.mu.Unlock()
	_ = os.Remove(f.alive(id))
	b.once.Do(func() { close(b.done) })
}

const plain = `{"image":"busybox"}`
