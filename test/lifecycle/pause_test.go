package lifecycle

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

// frozen reads from the kernel whether a sandbox stands still.
func frozen(t *testing.T, n *testbed.Node, id string) bool {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(group(t, n, id), "cgroup.events"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(string(raw), "frozen 1")
}

// group is a sandbox's directory in cgroup v2.
func group(t *testing.T, n *testbed.Node, id string) string {
	t.Helper()
	for _, root := range []string{"/sys/fs/cgroup/unified", "/sys/fs/cgroup"} {
		if found, _ := filepath.Glob(filepath.Join(root, "dsec-"+n.Instance(), "shard-*", id)); len(found) == 1 {
			return found[0]
		}
	}
	t.Fatalf("no cgroup of %s", id)
	return ""
}

func pause(t *testing.T, sb *libdsec.Sandbox) api.Sandbox {
	t.Helper()
	info, err := sb.Pause(t.Context())
	if err != nil || info.State != api.StatePaused || info.PausedAt == nil {
		t.Fatalf("paused: %s since %v, %v", info.State, info.PausedAt, err)
	}
	return info
}

// events counts a sandbox's events by type.
func events(t *testing.T, sb *libdsec.Sandbox) map[string]int {
	t.Helper()
	types := map[string]int{}
	for ev, err := range sb.Events(t.Context(), libdsec.WatchOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		types[ev.Type]++
	}
	return types
}

func state(t *testing.T, sb *libdsec.Sandbox) api.State {
	t.Helper()
	info, err := sb.Refresh(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return info.State
}

// TestCase12AttachingWakes: whoever attaches to a process of a paused sandbox has it go on, its output where it was.
func TestCase12AttachingWakes(t *testing.T) {
	t.Parallel()
	n := testbed.Shared(t)
	sb := n.Create(t, api.Spec{})
	p, err := sb.Start(t.Context(), libdsec.Cmd{Shell: "read x; echo got $x"}, libdsec.StartOptions{TTY: &api.Size{Rows: 24, Cols: 80}, Detach: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	pause(t, sb)
	if !frozen(t, n, sb.ID()) {
		t.Error("it isn't frozen")
	}
	var out bytes.Buffer
	p, err = sb.Attach(t.Context(), p.ID(), libdsec.AttachOptions{Stdin: true, Handlers: libdsec.Handlers{OnStdout: func(b []byte) error {
		_, err := out.Write(b)
		return err
	}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(p.Stdin(), "word\n"); err != nil {
		t.Fatal(err)
	}
	if status, err := p.Wait(t.Context()); err != nil || status.ExitCode == nil || *status.ExitCode != 0 || !strings.Contains(out.String(), "got word") {
		t.Errorf("%+v, %v: %q", status, err, out.String())
	}
	if state(t, sb) != api.StateRunning || frozen(t, n, sb.ID()) {
		t.Error("it wasn't woken")
	}
}

// TestCase28ExecIntoAPausedSandboxWakesIt once, however many come.
func TestCase28ExecIntoAPausedSandboxWakesIt(t *testing.T) {
	t.Parallel()
	n := testbed.Shared(t)
	for _, many := range []int{50, 1000} {
		sb := n.Create(t, api.Spec{Resources: api.Resources{PIDs: new(int64(4096)), MemoryMB: new(int64(2048))}})
		pause(t, sb)
		var clients []*libdsec.Client // a connection has room for 512
		for range many/300 + 1 {
			c, err := libdsec.New(libdsec.WithEndpoint(n.Endpoint, n.Token))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			clients = append(clients, c)
		}
		var wg sync.WaitGroup
		for i := range many {
			wg.Go(func() {
				r, err := clients[i%len(clients)].Sandbox(sb.ID()).Exec(t.Context(), libdsec.Cmd{Argv: []string{"echo", "here"}})
				if err != nil || string(r.Stdout) != "here\n" {
					t.Errorf("%v %v", r, err)
				}
			})
		}
		wg.Wait()
		if got := events(t, sb); got["resuming"] != 1 || got["resumed"] != 1 {
			t.Errorf("%d requests: %v", many, got)
		}
	}
}

// TestCase28PauseAndDelete at the same moment: it is gone each time.
func TestCase28PauseAndDelete(t *testing.T) {
	t.Parallel()
	n := testbed.Shared(t)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 50 {
				if t.Failed() {
					return
				}
				pauseAndDelete(t, n)
			}
		})
	}
	wg.Wait()
	if left := living(t, n, "raced"); len(left) != 0 {
		t.Errorf("%d live on", len(left))
	}
}

func pauseAndDelete(t *testing.T, n *testbed.Node) {
	t.Helper()
	sb, err := n.Client.Create(t.Context(), labelled("raced"))
	if err != nil {
		t.Error(err)
		return
	}
	paused := make(chan error, 1)
	go func() {
		_, err := sb.Pause(t.Context())
		paused <- err
	}()
	info, err := n.Client.Sandbox(sb.ID()).Stop(t.Context())
	if err != nil || info.State != api.StateStopped {
		t.Errorf("%s (%s), %v", info.State, info.Reason, err)
	}
	if err := <-paused; err != nil && !libdsec.IsCode(err, api.CodeWrongState) {
		t.Errorf("the pause: %v", err)
	}
}

// TestCase49DeleteInEveryState works at once.
func TestCase49DeleteInEveryState(t *testing.T) {
	t.Parallel()
	n := testbed.Start(t, testbed.Options{Faults: true})
	const long = 20 * time.Second // shorter is "at once"
	for _, in := range []api.State{api.StateRunning, api.StatePausing, api.StatePaused, api.StateResuming, api.StateFailed} {
		sb := n.Create(t, api.Spec{})
		asked := make(chan error, 1)
		switch in {
		case api.StatePausing:
			n.Fault(t, testbed.Fault{Point: "pause:freeze", Times: 1, Delay: 200 * time.Millisecond})
			go func() { _, err := sb.Pause(t.Context()); asked <- err }()
		case api.StatePaused:
			pause(t, sb)
		case api.StateResuming:
			pause(t, sb)
			n.Fault(t, testbed.Fault{Point: "resume:thaw", Times: 1, Delay: 200 * time.Millisecond})
			go func() { _, err := sb.Resume(t.Context()); asked <- err }()
		case api.StateFailed:
			if err := os.WriteFile(filepath.Join(group(t, n, sb.ID()), "cgroup.kill"), []byte("1"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if in != api.StatePausing && in != api.StateResuming {
			asked <- api.Errorf(api.CodeWrongState, "")
		}
		seen := n.Client.Sandbox(sb.ID())
		testbed.Until(t, hang, "it is "+string(in), func() bool { return state(t, seen) == in })
		begun := time.Now()
		info, err := seen.Stop(t.Context())
		if took := time.Since(begun); err != nil || !info.State.Ended() || took > long {
			t.Errorf("deleted while %s: %s (%s) after %v, %v", in, info.State, info.Reason, took, err)
		}
		if err := <-asked; !libdsec.IsCode(err, api.CodeWrongState) {
			t.Errorf("who waited while it was %s is told %v", in, err)
		}
	}
}

// TestCase50DoubleDelete of a paused sandbox: one does it, the others are told that it's done.
func TestCase50DoubleDelete(t *testing.T) {
	t.Parallel()
	n := testbed.Shared(t)
	sb := n.Create(t, api.Spec{})
	pause(t, sb)
	var wg sync.WaitGroup
	var did atomic.Int64
	for range 20 {
		wg.Go(func() {
			info, err := n.Client.Sandbox(sb.ID()).Stop(t.Context())
			if err != nil || info.State != api.StateStopped {
				t.Errorf("%s, %v", info.State, err)
			}
			if !info.Already {
				did.Add(1)
			}
		})
	}
	wg.Wait()
	if did.Load() != 1 {
		t.Errorf("%d did it", did.Load())
	}
}

// TestCase51NoStateIsForEver: the node dies at each step of a pause and a resume; afterwards the sandbox runs or is paused,
// the kernel agrees, it is of use, and it can be deleted.
func TestCase51NoStateIsForEver(t *testing.T) {
	t.Parallel()
	n := testbed.Start(t, testbed.Options{Faults: true})
	want := n.Create(t, api.Spec{Command: []string{"sh", "-c", "i=0; while :; do i=$((i+1)); echo $i > /tmp/n; sleep 0.05; done"}})
	for _, f := range []testbed.Fault{
		{Point: "pause:freeze"},
		{Point: "record:sync"},
		{Point: "record:sync", Skip: 1},
		{Point: "resume:thaw"},
		{Point: "record:append", Skip: 1},
		{Point: "record:append", Skip: 2},
		{Point: "events:append", Skip: 2},
		{Point: "events:append", Skip: 3},
	} {
		f.Die = true
		n.Fault(t, f)
		untilDeath(t, n, func(ctx context.Context) {
			sb := n.Client.Sandbox(want.ID())
			for ctx.Err() == nil {
				_, _ = sb.Pause(ctx)
				_, _ = sb.Resume(ctx)
			}
		})
		n.Restart(t)
		sb := n.Client.Sandbox(want.ID())
		now := state(t, sb)
		if now != api.StateRunning && now != api.StatePaused || frozen(t, n, sb.ID()) != (now == api.StatePaused) {
			t.Errorf("died at %s/%d: it is %s, frozen: %v", f.Point, f.Skip, now, frozen(t, n, sb.ID()))
		}
		before := testbed.Output(t, sb, "cat /tmp/n")
		testbed.Until(t, hang, "what runs in it goes on", func() bool { return testbed.Output(t, sb, "cat /tmp/n") != before })
	}
	n.Fault(t, testbed.Fault{Point: "record:sync", Die: true})
	untilDeath(t, n, func(ctx context.Context) { _, _ = n.Client.Sandbox(want.ID()).Pause(ctx) })
	n.Restart(t)
	if info, err := n.Client.Sandbox(want.ID()).Stop(t.Context()); err != nil || info.State != api.StateStopped {
		t.Errorf("delete: %s, %v", info.State, err)
	}
}

// untilDeath does something that the node dies of, and whose answers don't matter.
func untilDeath(t *testing.T, n *testbed.Node, do func(ctx context.Context)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { do(ctx) })
	n.Died(t)
	cancel()
	wg.Wait()
}

// TestCase52StatusProbe: who polls sees the states of the table and nothing else.
func TestCase52StatusProbe(t *testing.T) {
	t.Parallel()
	n := testbed.Shared(t)
	sb := n.Create(t, api.Spec{})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		probe := n.Client.Sandbox(sb.ID())
		for ctx.Err() == nil {
			info, err := probe.Refresh(t.Context())
			switch {
			case err != nil:
				t.Errorf("probe: %v", err)
				return
			case info.State == api.StateRunning, info.State == api.StatePausing, info.State == api.StatePaused, info.State == api.StateResuming:
			default:
				t.Errorf("probe: %s (%s)", info.State, info.Reason)
				return
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	})
	for i := range 200 {
		if info, err := sb.Pause(t.Context()); err != nil || info.State != api.StatePaused {
			t.Fatalf("cycle %d: %s, %v", i, info.State, err)
		}
		if info, err := sb.Resume(t.Context()); err != nil || info.State != api.StateRunning {
			t.Fatalf("cycle %d: %s, %v", i, info.State, err)
		}
	}
	cancel()
	wg.Wait()
	var last string
	next := map[string][]string{"running": {"pausing"}, "pausing": {"paused"}, "paused": {"resuming"}, "resuming": {"resumed"}, "resumed": {"pausing"}}
	for ev, err := range sb.Events(t.Context(), libdsec.WatchOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		if last != "" && !slices.Contains(next[last], ev.Type) {
			t.Fatalf("%s after %s", ev.Type, last)
		}
		if last != "" || ev.Type == "running" {
			last = ev.Type
		}
	}
}
