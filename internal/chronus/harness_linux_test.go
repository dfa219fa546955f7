package chronus_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/aether/unixfd"
	"github.com/dsec-io/dsec/internal/backend/container"
	"github.com/dsec-io/dsec/internal/edge"
	"github.com/dsec-io/dsec/internal/idrange"
	"github.com/dsec-io/dsec/internal/image"
	"github.com/dsec-io/dsec/internal/keeper"
	"github.com/dsec-io/dsec/internal/linux/cgroup"
	"github.com/dsec-io/dsec/internal/need"
)

// program builds dsec-aether from this tree, once.
var program = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "aether")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	out := filepath.Join(dir, "a")
	cmd := exec.Command("go", "build", "-o", out, "github.com/dsec-io/dsec/cmd/dsec-aether")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return nil, err
	}
	return os.ReadFile(out)
})

// node is one instance with real sandboxes.
type node struct {
	testing.TB

	instance, run, data string
	backend             *container.Backend
	groups              *cgroup.Driver
}

func newNode(t testing.TB) *node {
	t.Helper()
	need.Root(t)
	aetherd, err := program()
	if err != nil {
		t.Fatal(err)
	}
	n := &node{TB: t, instance: fmt.Sprintf("c%dt%d", os.Getpid(), time.Now().UnixNano()%1e6)}
	n.run = filepath.Join("/run/dsec", n.instance)
	n.data = t.TempDir()
	t.Cleanup(func() {
		if err := cgroup.RemoveAll(context.Background(), n.instance); err != nil {
			t.Error(err)
		}
		if log, err := os.ReadFile(filepath.Join(n.run, "aether.log")); err == nil && t.Failed() {
			t.Logf("log of shards and keeper:\n%s", log)
		}
		if err := os.RemoveAll(n.run); err != nil {
			t.Error(err)
		}
	})
	if n.groups, err = cgroup.Open(n.instance); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.groups.Close() })
	ids, err := idrange.Open(t.Context(), idrange.Config{Instance: n.instance, DataDir: n.data})
	if err != nil {
		t.Fatal(err)
	}
	logger := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelError}))
	n.backend, err = container.New(t.Context(), container.Config{
		InstanceID: n.instance, DataDir: n.data, RunDir: n.run, IDs: ids, Cgroups: n.groups, Logger: logger,
		Images: image.NewStore(logger, filepath.Dir(need.Image(t, "busybox"))), Aether: aetherd, TestHooks: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.backend.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return n
}

// sandbox is one box of a node with a connection of its own to the shard, so that a test sees the shard die.
type sandbox struct {
	*node

	id  string
	box edge.Box

	// mu guards seq and conn.
	mu   sync.Mutex
	seq  int
	conn *aether.Conn
}

func (n *node) sandbox(id string, change func(*api.Spec)) *sandbox {
	n.Helper()
	spec := api.Spec{
		Backend: "container", Image: "busybox", Workdir: "/", User: "root", Hostname: "sandbox", Isolation: "shared",
		Resources: api.Resources{CPU: new(2.0), MemoryMB: new(int64(256)), PIDs: new(int64(256))},
	}
	if change != nil {
		change(&spec)
	}
	box, err := n.backend.Start(n.Context(), edge.BoxParams{
		ID: id, Project: "p", Spec: spec, Persist: func(json.RawMessage) error { return nil },
	})
	if err != nil {
		n.Fatal(err)
	}
	s := &sandbox{node: n, id: id, box: box}
	n.Cleanup(func() {
		s.drop()
		if err := box.Stop(context.Background()); err != nil {
			n.Error(err)
		}
	})
	return s
}

// newSandbox is a node with one box.
func newSandbox(t testing.TB) *sandbox {
	t.Helper()
	return newNode(t).sandbox("box", nil)
}

func (s *sandbox) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil {
		_ = s.conn.Close()
		s.conn = nil
	}
}

// connect returns the connection to the shard, dialling until there is one.
func (s *sandbox) connect() *aether.Conn {
	s.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	var last error
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		if s.conn != nil {
			select {
			case <-s.conn.Done():
				_ = s.conn.Close()
				s.conn = nil
			default:
				return s.conn
			}
		}
		raw, err := unixfd.Dial(s.Context(), s.socket(), unixfd.Options{})
		if err == nil {
			s.conn, err = aether.Client(raw, aether.Options{Name: "test"})
		}
		last = err
	}
	s.Fatalf("no connection to the shard: %v", last)
	return nil
}

func (s *sandbox) socket() string {
	s.Helper()
	socks, err := filepath.Glob(filepath.Join(s.run, "s[0-9]*.sock"))
	if err != nil || len(socks) != 1 {
		s.Fatalf("sockets of shards: %q, %v", socks, err)
	}
	return socks[0]
}

// shardPID asks the keeper.
func (n *node) shardPID() int {
	n.Helper()
	c, err := keeper.Dial(n.Context(), filepath.Join(n.run, "keeper.sock"))
	if err != nil {
		n.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	list, err := c.List()
	if err != nil || len(list) != 1 {
		n.Fatalf("List() = %+v, %v", list, err)
	}
	return list[0].PID
}

// killShard kills the shard and returns when the next one runs.
func (n *node) killShard() {
	n.Helper()
	old := n.shardPID()
	if err := unix.Kill(old, unix.SIGKILL); err != nil {
		n.Fatal(err)
	}
	eventually(n, "the shard's restart", func() bool { pid := n.shardPID(); return pid != 0 && pid != old })
}

// killShard also gives up the connection to the dead one, whose end would be noticed a moment later.
func (s *sandbox) killShard() {
	s.Helper()
	s.node.killShard()
	s.drop()
}

// eventually polls until cond holds.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-ctx.Done():
			t.Fatalf("waited in vain for %s", what)
		case <-tick.C:
		}
	}
}

// result is all that a stream has told.
type result struct {
	out     [2][]byte // gaps left out
	off     [2]int64  // offsets behind the last byte or gap
	gaps    []aether.Gap
	started *aether.Started
	exited  *aether.Exited
	err     error
}

// call is an open stream of "exec" or "attach".
type call struct {
	*sandbox
	st *aether.Stream
	result
}

func (s *sandbox) nextID() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seq++
	return fmt.Sprintf("x%d-%d", os.Getpid()%1000, s.seq)
}

// exec opens a command without reading its answer.
func (s *sandbox) exec(start aether.ExecStart) *call {
	s.Helper()
	if start.ID == "" {
		start.ID = s.nextID()
	}
	return s.open("exec", start.AppendTo(nil))
}

func (s *sandbox) open(method string, body []byte) *call {
	s.Helper()
	st, err := s.connect().Open(s.Context(), aether.Open{Method: method, Sandbox: s.id, Body: body})
	if err != nil {
		return &call{sandbox: s, result: result{err: err}}
	}
	return &call{sandbox: s, st: st}
}

func (s *sandbox) attach(a aether.Attach) *call {
	s.Helper()
	c := s.open("attach", a.AppendTo(nil))
	c.off = [2]int64{a.StdoutOffset, a.StderrOffset}
	return c
}

// step receives one frame; false at the end.
func (c *call) step() bool {
	if c.err != nil {
		return false
	}
	// No command of these tests is silent for so long.
	ctx, cancel := context.WithTimeout(c.Context(), time.Minute)
	defer cancel()
	f, err := c.st.Recv(ctx)
	if err != nil {
		if !errors.Is(err, io.EOF) {
			c.err = err
		}
		return false
	}
	defer f.Release()
	switch f.Channel {
	case aether.Stdout, aether.Stderr:
		i := int(f.Channel - aether.Stdout)
		c.out[i] = append(c.out[i], f.Data...)
		c.off[i] += int64(len(f.Data))
	case aether.Message:
		c.message(&f)
	}
	return true
}

func (c *call) message(f *aether.Frame) {
	var err error
	switch f.Type {
	case aether.MsgStarted:
		c.started = new(aether.Started)
		err = c.started.Unmarshal(f.Data)
	case aether.MsgExited:
		c.exited = new(aether.Exited)
		err = c.exited.Unmarshal(f.Data)
	case aether.MsgGap:
		var g aether.Gap
		err = g.Unmarshal(f.Data)
		c.gaps = append(c.gaps, g)
		c.off[int(g.Channel)-int(aether.Stdout)] += g.Length
	}
	if err != nil {
		c.err = err
	}
}

// finish receives everything.
func (c *call) finish() result {
	c.Helper()
	for c.step() {
	}
	if c.st != nil {
		_ = c.st.Close() // a stream is over when both sides have closed
	}
	if c.err == nil && c.exited == nil {
		c.err = errors.New("the stream ended without an end of the command")
	}
	return c.result
}

// until receives until cond holds.
func (c *call) until(what string, cond func() bool) {
	c.Helper()
	for !cond() {
		if !c.step() {
			c.Fatalf("waiting for %s: stream ended: %v, %+v, output %.500q", what, c.err, c.exited, c.out)
		}
	}
}

// run runs a command to its end.
func (s *sandbox) exe(argv ...string) result {
	s.Helper()
	return s.exec(aether.ExecStart{Argv: bytesOf(argv...)}).finish()
}

// sh runs a script and demands that it ends with 0.
func (s *sandbox) sh(script string) string {
	s.Helper()
	r := s.exec(aether.ExecStart{Shell: []byte(script)}).finish()
	if r.err != nil || !r.exited.HasCode || r.exited.Code != 0 {
		s.Fatalf("sh %.200q: %v, %+v, %.500q", script, r.err, r.exited, r.out)
	}
	return string(r.out[0])
}

func bytesOf(v ...string) [][]byte {
	out := make([][]byte, len(v))
	for i, a := range v {
		out[i] = []byte(a)
	}
	return out
}

// unary calls a method and decodes a JSON answer into out unless that is nil.
func (s *sandbox) unary(method string, body []byte, out any) error {
	s.Helper()
	reply, err := aether.Unary(s.Context(), s.connect(), aether.Open{Method: method, Sandbox: s.id, Body: body})
	if err == nil && out != nil {
		err = json.Unmarshal(reply, out)
	}
	return err
}

func (s *sandbox) processes() []api.Process {
	s.Helper()
	var list []api.Process
	if err := s.unary("processes", nil, &list); err != nil {
		s.Fatal(err)
	}
	return list
}

// stats of the shard.
func (s *sandbox) stats() (st struct {
	Goroutines, FDs, Processes, GCs int
	PeakRSS                         int64 `json:"peak_rss_bytes"`
	Heap                            int64 `json:"heap_bytes"`
	Sys                             int64 `json:"sys_bytes"`
	Stopped                         int64 `json:"stopped_helpers"`
},
) {
	s.Helper()
	if err := s.unary("stats", nil, &st); err != nil {
		s.Fatal(err)
	}
	return st
}

func wantCode(t testing.TB, r result, code api.Code) *api.Error {
	t.Helper()
	if !api.IsCode(r.err, code) {
		t.Fatalf("got %v, %+v, %.200q; want %s", r.err, r.exited, r.out, code)
	}
	return api.AsError(r.err)
}

func wantExit(t testing.TB, r result, code int32) {
	t.Helper()
	if r.err != nil || !r.exited.HasCode || r.exited.Code != code {
		t.Fatalf("got %v, %+v, %.500q; want exit code %d", r.err, r.exited, r.out, code)
	}
}
