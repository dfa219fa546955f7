package lifecycle

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

// TestCase55PauseThatFails: the sandbox goes on, and the error says why.
func TestCase55PauseThatFails(t *testing.T) {
	t.Parallel()
	n := testbed.Start(t, testbed.Options{Faults: true})
	sb := n.Create(t, api.Spec{Command: []string{"sh", "-c", "while :; do date +%s%N > /tmp/n; sleep 0.05; done"}})
	for _, tc := range []struct {
		fault testbed.Fault
		code  api.Code
	}{
		{testbed.Fault{Point: "pause:freeze", Times: 1, Errno: 5}, api.CodePauseFailed},
		{testbed.Fault{Point: "record:sync", Times: 1, Errno: 5}, api.CodePauseFailed},
		{testbed.Fault{Point: "record:sync", Times: 1, Errno: 28}, api.CodeDiskFull},
		{testbed.Fault{Point: "record:sync", Times: 1, Skip: 1, Errno: 28}, api.CodeDiskFull},
	} {
		n.Fault(t, tc.fault)
		info, err := sb.Pause(t.Context())
		if !libdsec.IsCode(err, tc.code) {
			t.Errorf("%+v: %s, %v", tc.fault, info.State, err)
		}
		if now := state(t, sb); now != api.StateRunning || frozen(t, n, sb.ID()) {
			t.Errorf("%+v: it is %s", tc.fault, now)
		}
		before := testbed.Output(t, sb, "cat /tmp/n")
		testbed.Until(t, hang, "what runs in it goes on", func() bool { return testbed.Output(t, sb, "cat /tmp/n") != before })
	}
	if got := events(t, sb); got["pause_failed"] != 4 || got["paused"] != 0 || got["resuming"] != 0 {
		t.Errorf("events: %v", got)
	}
	pause(t, sb)
	n.Fault(t, testbed.Fault{Point: "resume:thaw", Times: 1, Errno: 5})
	if _, err := sb.Exec(t.Context(), libdsec.Cmd{Argv: []string{"true"}}); !libdsec.IsCode(err, api.CodeResumeFailed) {
		t.Errorf("exec: %v", err)
	}
	if now := state(t, sb); now != api.StatePaused || !frozen(t, n, sb.ID()) {
		t.Errorf("after a resume that failed it is %s", now)
	}
	testbed.Output(t, sb, "true")
}

// TestCase56OpenStreamsGoOn after a pause: a connection to a port that is in full use, and the output of a command.
func TestCase56OpenStreamsGoOn(t *testing.T) {
	t.Parallel()
	n := testbed.Shared(t)
	sb := n.Create(t, api.Spec{})
	if _, err := sb.Start(t.Context(), libdsec.Cmd{Argv: []string{"nc", "-ll", "-p", "7000", "-e", "cat"}}, libdsec.StartOptions{Detach: true}); err != nil {
		t.Fatal(err)
	}
	var conn io.ReadWriteCloser
	testbed.Until(t, hang, "it listens", func() bool {
		c, err := sb.Dial(t.Context(), 7000)
		conn = c
		return err == nil
	})
	defer conn.Close()
	var echoed, printed atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() {
		buf := make([]byte, 32<<10)
		for {
			c, err := conn.Read(buf)
			echoed.Add(int64(c))
			if err != nil {
				return
			}
		}
	})
	wg.Go(func() {
		block := bytes.Repeat([]byte("x"), 32<<10)
		for {
			if _, err := conn.Write(block); err != nil {
				return
			}
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	command, err := sb.Start(ctx, libdsec.Cmd{Shell: "while :; do echo line; sleep 0.01; done"}, libdsec.StartOptions{Handlers: libdsec.Handlers{
		OnStdout: func(b []byte) error { printed.Add(int64(len(b))); return nil },
	}})
	if err != nil {
		t.Fatal(err)
	}
	goesOn := func(what string) time.Duration {
		t.Helper()
		begun := time.Now()
		e, p := echoed.Load(), printed.Load()
		testbed.Until(t, hang, what, func() bool { return echoed.Load() > e+1<<20 && printed.Load() > p })
		return time.Since(begun)
	}
	goesOn("both are busy")
	for range 3 {
		pause(t, sb)
		still := func() (int64, int64) { return echoed.Load(), printed.Load() }
		var e, p int64
		testbed.Until(t, hang, "what was on its way has come", func() bool {
			e, p = still()
			<-time.After(50 * time.Millisecond)
			e2, p2 := still()
			return e == e2 && p == p2
		})
		if now := state(t, sb); now != api.StatePaused {
			t.Errorf("what is sent on an open stream woke it: %s", now)
		}
		if _, err := sb.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		if took := goesOn("both go on"); took > 20*time.Second {
			t.Errorf("they went on after %v", took)
		}
	}
	cancel()
	_, _ = command.Wait(t.Context())
	_ = conn.Close()
	wg.Wait()
}

// TestCase102SwapLimitStays after a pause, a resume, and a change of memory.
func TestCase102SwapLimitStays(t *testing.T) {
	t.Parallel()
	n := testbed.Shared(t)
	sb := n.Create(t, api.Spec{Resources: api.Resources{MemoryMB: new(int64(128))}})
	limits := func() string {
		t.Helper()
		var all []string
		for _, pattern := range []string{
			"/sys/fs/cgroup/memory/dsec-%s/shard-*/%s/memory.memsw.limit_in_bytes", "/sys/fs/cgroup/memory/dsec-%s/shard-*/%s/memory.limit_in_bytes",
			"/sys/fs/cgroup/dsec-%s/shard-*/%s/memory.swap.max", "/sys/fs/cgroup/dsec-%s/shard-*/%s/memory.max",
		} {
			found, err := filepath.Glob(fmt.Sprintf(pattern, n.Instance(), sb.ID()))
			if err != nil || len(found) == 0 {
				continue
			}
			raw, err := os.ReadFile(found[0])
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, filepath.Base(found[0])+"="+strings.TrimSpace(string(raw)))
		}
		if len(all) == 0 {
			t.Fatal("no limits found")
		}
		return strings.Join(all, " ")
	}
	first := limits()
	set := func(mb int64) {
		t.Helper()
		if _, err := sb.Patch(t.Context(), api.Patch{Resources: &api.Resources{MemoryMB: new(mb)}}); err != nil {
			t.Fatal(err)
		}
	}
	resume := func() {
		t.Helper()
		if _, err := sb.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	pause(t, sb)
	resume()
	set(64)
	small := limits()
	pause(t, sb)
	if got := limits(); got != small || small == first {
		t.Errorf("at first %s, with less %s, paused %s", first, small, got)
	}
	set(128)
	if got := limits(); got != first || state(t, sb) != api.StatePaused {
		t.Errorf("changed while it is %s: %s, want %s", state(t, sb), got, first)
	}
	resume()
	if got := limits(); got != first {
		t.Errorf("resumed: %s, want %s", got, first)
	}
}
