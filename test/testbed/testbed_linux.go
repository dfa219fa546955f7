// Package testbed runs a real `dsec dev` for tests: a process of its own (the test binary, started again), reached
// through the SDK as any client reaches it, that can be killed with -9 and started again on the same data folder.
//
// A test binary calls [Main] from its TestMain. [Shared] is one node for all tests of a binary; [Start] makes one for a
// single test. Both are stopped at the end, and what the kernel still holds of an instance then fails the run. Nodes are
// safe for concurrent use but for Kill, Restart and Stop.
package testbed

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/devmode"
	"github.com/dsec-io/dsec/internal/fault"
	"github.com/dsec-io/dsec/internal/leakcheck"
	"github.com/dsec-io/dsec/internal/need"
	"github.com/dsec-io/dsec/libdsec"
)

// serverEnv carries the settings of a node to the process that becomes it.
const serverEnv = "DSEC_TESTBED_NODE"

// ClockEnv is the variable (see [Options.Env]) that shifts a node's wall clock, as in "1h" or "-30m".
const ClockEnv = "DSEC_TEST_CLOCK_OFFSET"

// startTime is the hang detector of a start or an orderly stop; both usually take well under a second.
const startTime = 60 * time.Second

// Options say how a node differs from the default.
type Options struct {
	Keep bool     // sandboxes outlive an orderly stop
	Pool int      // user namespaces kept ready per shard; 0: the default, negative: none
	Env  []string // more environment for the node's process, "K=V"

	Orphans time.Duration // how long sandboxes go on without the node; 0: the default

	Hooks  bool // aethers have the methods by which tests disturb them
	Faults bool // steps of the edge can be made to fail; see [Node.Fault]
	DiskMB int  // the data folder is a disk of its own, of so many MiB; 0: it isn't
}

// settings are what the process of a node is told.
type settings struct {
	Dir  string
	Keep bool
	Pool int

	Orphans time.Duration

	Hooks, Faults bool

	Arm []Fault // from its start
}

// Node is a running instance.
type Node struct {
	Dir      string // its data folder
	Endpoint string
	Token    string
	Client   *libdsec.Client

	opts  Options
	arm   []Fault // of the next process
	cmd   *exec.Cmd
	stdin io.Closer // its end tells the node that this process is gone
	log   *os.File
}

// Main is the body of TestMain: it becomes a node when it was started as one, and otherwise runs the tests and stops
// the shared node.
func Main(m *testing.M) {
	if raw := os.Getenv(serverEnv); raw != "" {
		os.Exit(serve(raw))
	}
	code := m.Run()
	if err := stopShared(); err != nil {
		fmt.Fprintln(os.Stderr, "testbed:", err)
		code = 1
	}
	os.Exit(code)
}

// serve is a node's process. It ends on SIGTERM, or when its standard input does: a test binary that was killed leaves
// no node behind.
func serve(raw string) int {
	var s settings
	if err := json.Unmarshal([]byte(raw), &s); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	shift, err := time.ParseDuration(cmp.Or(os.Getenv(ClockEnv), "0s"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	var faults *fault.Set
	if s.Faults {
		faults = &fault.Set{}
		obey(faults, faultOrder{Arm: s.Arm})
		if err := serveFaults(faults, s.Dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 2
		}
	}
	err = devmode.Run(ctx, devmode.Config{
		TestClock: shift, TestFaults: faults,
		DataDir: s.Dir, Listen: "127.0.0.1:0", Keep: s.Keep, PoolSize: s.Pool, Ready: os.Stdout, TestHooks: s.Hooks, Orphans: s.Orphans,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelInfo})),
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

var (
	sharedMu   sync.Mutex
	sharedNode *Node
	sharedDir  string
)

// Shared is the node that all tests of this binary share.
func Shared(t testing.TB) *Node {
	t.Helper()
	need.Root(t)
	need.Image(t, "busybox")
	sharedMu.Lock()
	defer sharedMu.Unlock()
	if sharedNode != nil {
		return sharedNode
	}
	dir, err := os.MkdirTemp("", "dsec-t")
	if err != nil {
		t.Fatal(err)
	}
	n, err := start(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	sharedNode, sharedDir = n, dir
	return n
}

func stopShared() error {
	sharedMu.Lock()
	defer sharedMu.Unlock()
	if sharedNode == nil {
		return nil
	}
	return errors.Join(sharedNode.stop(), sharedNode.nothingLeft(), os.RemoveAll(sharedDir))
}

// Start runs a node for one test. At the end of the test it is stopped, sandboxes and all, and nothing of it may be
// left in the kernel.
func Start(t testing.TB, o Options) *Node {
	t.Helper()
	need.Root(t)
	need.Image(t, "busybox")
	dir, err := os.MkdirTemp("", "dsec-t")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if o.DiskMB > 0 {
		if err := syscall.Mount("dsec-t", dir, "tmpfs", 0, fmt.Sprintf("size=%dm,mode=700", o.DiskMB)); err != nil {
			t.Fatalf("a disk for the data folder: %v", err)
		}
		t.Cleanup(func() {
			if err := syscall.Unmount(dir, 0); err != nil {
				t.Errorf("take the data folder's disk away: %v", err)
			}
		})
	}
	n, err := start(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if n.cmd == nil || n.opts.Keep { // only an orderly stop of a node that keeps nothing ends the sandboxes
			n.Stop(t)
			n.opts.Keep = false
			n.Restart(t)
		}
		n.Stop(t)
		if err := n.nothingLeft(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the node's log ends:\n%s", n.LogTail())
		}
	})
	return n
}

func start(dir string, o Options) (*Node, error) {
	n := &Node{Dir: dir, opts: o}
	return n, n.run()
}

// run starts the node's process and waits until it is ready.
func (n *Node) run() error {
	raw, err := json.Marshal(settings{Dir: n.Dir, Keep: n.opts.Keep, Pool: n.opts.Pool, Orphans: n.opts.Orphans, Hooks: n.opts.Hooks, Faults: n.opts.Faults, Arm: n.arm})
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	n.log, err = os.OpenFile(filepath.Join(n.Dir, "test.log"), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	cmd := exec.Command(self)
	cmd.Env = append(append(os.Environ(), n.opts.Env...), serverEnv+"="+string(raw))
	cmd.Stderr = n.log
	if n.stdin, err = cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	n.cmd = cmd
	if err := n.ready(out); err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		n.cmd = nil
		return fmt.Errorf("%w; its log ends:\n%s", err, n.LogTail())
	}
	return nil
}

func (n *Node) ready(out io.Reader) error {
	said := make(chan string, 1) // one line is read
	go func() {
		line, _ := bufio.NewReader(out).ReadString('\n')
		said <- line
	}()
	select {
	case line := <-said:
		if !strings.HasPrefix(line, "ready ") {
			return fmt.Errorf("node said %q instead of ready", line)
		}
	case <-time.After(startTime):
		return errors.New("node isn't ready")
	}
	s, err := libdsec.ReadContextFile(filepath.Join(n.Dir, "context.json"))
	if err != nil {
		return err
	}
	n.Endpoint, n.Token = s.Endpoint, s.Token
	n.Client, err = libdsec.New(libdsec.WithEndpoint(s.Endpoint, s.Token))
	return err
}

// PID is the process of the node: API server and edge.
func (n *Node) PID() int { return n.cmd.Process.Pid }

// Instance is the name that everything of the node carries in the kernel.
func (n *Node) Instance() string {
	raw, err := os.ReadFile(filepath.Join(n.Dir, "instance"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(raw))
}

// Kill ends the node's process with SIGKILL and waits for it. Keeper, shards and sandboxes go on.
func (n *Node) Kill(t testing.TB) {
	t.Helper()
	_ = n.Client.Close()
	if err := n.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = n.cmd.Wait() // it says that the process was killed, as it should have been
	_ = n.log.Close()
	n.cmd = nil
}

// SetEnv gives the node's next process more environment, "K=V".
func (n *Node) SetEnv(env ...string) { n.opts.Env = append(n.opts.Env, env...) }

// Restart starts the node again on the same data folder after [Node.Kill] or [Node.Stop].
func (n *Node) Restart(t testing.TB) {
	t.Helper()
	if err := n.run(); err != nil {
		t.Fatal(err)
	}
}

// Stop ends the node in order.
func (n *Node) Stop(t testing.TB) {
	t.Helper()
	if err := n.stop(); err != nil {
		t.Error(err)
	}
}

func (n *Node) stop() error {
	if n.cmd == nil {
		return nil
	}
	_ = n.Client.Close()
	if err := n.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	ended := make(chan error, 1) // one result
	go func() { ended <- n.cmd.Wait() }()
	select {
	case err := <-ended:
		n.cmd = nil
		return errors.Join(err, n.log.Close())
	case <-time.After(startTime):
		_ = n.cmd.Process.Kill()
		return fmt.Errorf("node didn't stop within %v; its log ends:\n%s", startTime, n.LogTail())
	}
}

// LogTail is the end of the node's log.
func (n *Node) LogTail() string {
	raw, err := os.ReadFile(filepath.Join(n.Dir, "test.log"))
	if err != nil {
		return err.Error()
	}
	return string(raw[max(0, len(raw)-4000):])
}

// nothingLeft asks the kernel for what is left of the instance.
func (n *Node) nothingLeft() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	left, err := leakcheck.Wait(ctx, leakcheck.Snapshot{}, func() (leakcheck.Snapshot, error) {
		s, err := leakcheck.Take()
		return s.Only(n.Instance()), err
	})
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("left behind: %s", strings.Join(left, "; "))
	}
	return err
}

// Create makes a sandbox that is stopped at the end of the test. An empty image means busybox.
func (n *Node) Create(t testing.TB, spec api.Spec) *libdsec.Sandbox {
	t.Helper()
	if spec.Image == "" {
		spec.Image = "busybox"
	}
	sb, err := n.Client.Create(t.Context(), spec)
	if err != nil {
		t.Fatalf("create: %v\n%s", err, n.LogTail())
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), startTime)
		defer cancel()
		if n.cmd == nil {
			return // it goes with the node's own clean-up
		}
		if _, err := n.Client.Sandbox(sb.ID()).Stop(ctx); err != nil && !libdsec.IsCode(err, api.CodeNotFound) {
			t.Errorf("stop %s: %v", sb.ID(), err)
		}
	})
	return sb
}

// Shell runs a script and fails the test if it doesn't start; how it ends is the caller's to judge.
func Shell(t testing.TB, sb *libdsec.Sandbox, script string) *libdsec.Result {
	t.Helper()
	r, err := sb.Exec(t.Context(), libdsec.Cmd{Shell: script})
	if err != nil {
		t.Fatalf("exec %q: %v", script, err)
	}
	return r
}

// Output runs a script that must exit with 0, and returns what it printed without the last newline.
func Output(t testing.TB, sb *libdsec.Sandbox, script string) string {
	t.Helper()
	r := Shell(t, sb, script)
	if r.ExitCode == nil || *r.ExitCode != 0 {
		t.Fatalf("%q: %+v\nstdout: %s\nstderr: %s", script, r.ExitStatus, r.Stdout, r.Stderr)
	}
	return strings.TrimSuffix(string(r.Stdout), "\n")
}

// Until polls until ok says true, and fails the test after limit: a hang detector.
func Until(t testing.TB, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(limit); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("after %v still waiting: %s", limit, what)
		}
	}
}
