package libdsec_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/devmode"
	"github.com/dsec-io/dsec/internal/leakcheck"
	"github.com/dsec-io/dsec/internal/need"
	"github.com/dsec-io/dsec/libdsec"
)

// realServer runs a whole DSec until the test ends, and returns its address and token.
func realServer(t *testing.T) devmode.ContextFile {
	t.Helper()
	need.Root(t)
	need.Image(t, "busybox")
	dir := t.TempDir()
	ctx, cancel := context.WithCancelCause(context.Background())
	ready := make(chan devmode.ContextFile, 1)
	ended := make(chan error, 1)
	go func() {
		ended <- devmode.Run(ctx, devmode.Config{
			DataDir: dir, Listen: "127.0.0.1:0", OnReady: func(f devmode.ContextFile) { ready <- f },
		})
	}()
	var f devmode.ContextFile
	select {
	case f = <-ready:
	case err := <-ended:
		cancel(nil)
		t.Fatalf("devmode.Run() = %v", err)
	}
	instance, err := os.ReadFile(filepath.Join(dir, "instance"))
	if err != nil {
		t.Error(err)
	}
	t.Cleanup(func() {
		cancel(errors.New("the test is over"))
		if err := <-ended; err != nil {
			t.Errorf("devmode.Run() = %v", err)
		}
		left, err := leakcheck.Wait(testContext(t), leakcheck.Snapshot{}, func() (leakcheck.Snapshot, error) {
			s, err := leakcheck.Take()
			return s.Only(strings.TrimSpace(string(instance))), err
		})
		if err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
	})
	return f
}

func realSandbox(t *testing.T, endpoint, token string) *libdsec.Sandbox {
	t.Helper()
	c, err := libdsec.New(libdsec.WithEndpoint(endpoint, token))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("Close() = %v", err)
		}
	})
	sb, err := c.Create(testContext(t), api.Spec{Image: "busybox", Resources: api.Resources{MemoryMB: new(int64(64))}})
	if err != nil {
		t.Fatal(err)
	}
	return sb
}

// nat forwards connections, and forgets them on demand as a NAT does.
type nat struct {
	listener net.Listener
	target   string
	wg       sync.WaitGroup
	made     atomic.Int64

	mu    sync.Mutex // guards conns
	conns map[net.Conn]bool
}

func newNAT(t *testing.T, endpoint string) *nat {
	t.Helper()
	u, err := url.Parse(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &nat{listener: l, target: u.Host, conns: map[net.Conn]bool{}}
	n.wg.Go(n.accept)
	t.Cleanup(func() {
		l.Close()
		n.forget()
		n.wg.Wait()
	})
	return n
}

func (n *nat) url() string { return "http://" + n.listener.Addr().String() }

func (n *nat) accept() {
	for {
		a, err := n.listener.Accept()
		if err != nil {
			return
		}
		b, err := net.Dial("tcp", n.target)
		if err != nil {
			a.Close()
			continue
		}
		n.mu.Lock()
		n.conns[a], n.conns[b] = true, true
		n.mu.Unlock()
		n.made.Add(1)
		for _, pair := range [][2]net.Conn{{a, b}, {b, a}} {
			n.wg.Go(func() {
				_, _ = io.Copy(pair[0], pair[1])
				pair[0].Close()
				pair[1].Close()
			})
		}
	}
}

func (n *nat) forget() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for c := range n.conns {
		c.Close()
		delete(n.conns, c)
	}
}

// TestCase12OnARealServer: output and exit code are those of a local run, whatever the connection does. The command is
// silent most of the time.
func TestCase12OnARealServer(t *testing.T) {
	f := realServer(t)
	n := newNAT(t, f.Endpoint)
	sb := realSandbox(t, n.url(), f.Token)
	const rounds, lines = 12, 2000
	script := fmt.Sprintf("for i in $(seq %d); do seq %d; echo round $i; echo e$i >&2; sleep 0.2; done; exit 42", rounds, lines)
	var got, errs bytes.Buffer
	round := make(chan struct{}, rounds+1)
	p, err := sb.Start(testContext(t), libdsec.Cmd{Shell: script}, libdsec.StartOptions{Lossless: true, Handlers: libdsec.Handlers{
		OnStdout: func(b []byte) error {
			before := bytes.Count(got.Bytes(), []byte("round"))
			got.Write(b)
			for range bytes.Count(got.Bytes(), []byte("round")) - before {
				round <- struct{}{}
			}
			return nil
		},
		OnStderr: func(b []byte) error { errs.Write(b); return nil },
	}})
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		<-round
		n.forget()
	}
	st, err := p.Wait(testContext(t))
	if err != nil || st.ExitCode == nil || *st.ExitCode != 42 || st.Truncated {
		t.Fatalf("Wait() = %+v, %v, want exit code 42", st, err)
	}
	var want, wantErrs strings.Builder
	for i := 1; i <= rounds; i++ {
		for l := 1; l <= lines; l++ {
			fmt.Fprintln(&want, l)
		}
		fmt.Fprintln(&want, "round", i)
		fmt.Fprintf(&wantErrs, "e%d\n", i)
	}
	if got.String() != want.String() || errs.String() != wantErrs.String() {
		t.Errorf("got %d bytes and %q, want %d bytes and %q", got.Len(), errs.String(), want.Len(), wantErrs.String())
	}
	if made := n.made.Load(); made < 11 {
		t.Errorf("%d connections were made in all: the breaks weren't felt", made)
	}
}

// TestCase17OnARealServer streams more than any part on the way could hold.
func TestCase17OnARealServer(t *testing.T) {
	f := realServer(t)
	sb := realSandbox(t, f.Endpoint, f.Token)
	const total = 1 << 30
	var got int64
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	p, err := sb.Start(testContext(t), libdsec.Cmd{Shell: "dd if=/dev/zero bs=1M count=1024 2>/dev/null"}, libdsec.StartOptions{
		Lossless: true, Handlers: libdsec.Handlers{OnStdout: func(b []byte) error { got += int64(len(b)); return nil }},
	})
	if err != nil {
		t.Fatal(err)
	}
	st, err := p.Wait(testContext(t))
	if err != nil || got != total || st.StdoutTotal != total || st.Truncated {
		t.Errorf("got %d bytes, %+v, %v, want %d", got, st, err, total)
	}
	runtime.ReadMemStats(&after)
	if grown := int64(after.Sys) - int64(before.Sys); grown > 128<<20 {
		t.Errorf("client and server together grew by %d MiB", grown>>20)
	}
}

// TestCancelOnARealServer: the end of a context ends the whole tree of a command, run or started.
func TestCancelOnARealServer(t *testing.T) {
	f := realServer(t)
	sb := realSandbox(t, f.Endpoint, f.Token)
	why := errors.New("enough")
	for name, call := range map[string]func(context.Context, context.CancelCauseFunc, libdsec.Cmd) error{
		"exec": func(ctx context.Context, cancel context.CancelCauseFunc, cmd libdsec.Cmd) error {
			// Its first output comes when it runs; exec shows none before its end, so the sandbox is asked.
			var wg sync.WaitGroup
			defer wg.Wait()
			wg.Go(func() {
				for sleepers(t, sb) < 2 && t.Context().Err() == nil {
					continue
				}
				cancel(why)
			})
			_, err := sb.Exec(ctx, cmd)
			return err
		},
		"start": func(ctx context.Context, cancel context.CancelCauseFunc, cmd libdsec.Cmd) error {
			p, err := sb.Start(ctx, cmd, libdsec.StartOptions{Handlers: libdsec.Handlers{OnStdout: func([]byte) error {
				cancel(why)
				return nil
			}}})
			if err != nil {
				return err
			}
			_, err = p.Wait(testContext(t))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(testContext(t))
			defer cancel(nil)
			err := call(ctx, cancel, libdsec.Cmd{Shell: "sleep 999 & echo run; sleep 999"})
			if !errors.Is(err, why) {
				t.Errorf("the call = %v, want %v", err, why)
			}
			deadline := time.Now().Add(time.Minute)
			for sleepers(t, sb) > 0 {
				if time.Now().After(deadline) {
					t.Fatal("processes of the cancelled command are left")
				}
			}
		})
	}
}

// sleepers counts the processes called sleep.
func sleepers(t *testing.T, sb *libdsec.Sandbox) int {
	res, err := sb.Exec(testContext(t), libdsec.Cmd{Shell: "ps -o comm | grep -c '^sleep'"})
	if err != nil {
		t.Error(err)
		return 0
	}
	var n int
	if _, err := fmt.Sscan(string(res.Stdout), &n); err != nil {
		t.Errorf("count of processes: %q, %v", res.Stdout, err)
	}
	return n
}

// TestTypedResultsOnARealServer is what a caller branches on.
func TestTypedResultsOnARealServer(t *testing.T) {
	f := realServer(t)
	sb := realSandbox(t, f.Endpoint, f.Token)
	ctx := testContext(t)
	type outcome struct {
		Code     int
		Signal   string
		TimedOut bool
		Err      api.Code
	}
	for name, tc := range map[string]struct {
		cmd  libdsec.Cmd
		want outcome
	}{
		"exit-255":      {libdsec.Cmd{Shell: "exit 255"}, outcome{Code: 255}},
		"killed":        {libdsec.Cmd{Shell: "kill -9 $$"}, outcome{Code: -1, Signal: "SIGKILL"}},
		"timed-out":     {libdsec.Cmd{Argv: []string{"sleep", "9"}, Timeout: 200 * time.Millisecond}, outcome{Code: -1, Signal: "SIGKILL", TimedOut: true}},
		"not-found":     {argv("/nope"), outcome{Err: api.CodeCommandNotFound}},
		"no-executable": {argv("/etc/passwd"), outcome{Err: api.CodeCommandNotExecutable}},
		"no-workdir":    {libdsec.Cmd{Argv: []string{"true"}, Cwd: "/nope"}, outcome{Err: api.CodeWorkdirNotFound}},
		"no-user":       {libdsec.Cmd{Argv: []string{"true"}, User: "nobody-known"}, outcome{Err: api.CodeNoSuchUser}},
	} {
		t.Run(name, func(t *testing.T) {
			res, err := sb.Exec(ctx, tc.cmd)
			var got outcome
			if e, ok := errors.AsType[*api.Error](err); ok {
				got.Err = e.Code
			} else if err != nil {
				t.Fatal(err)
			} else {
				got = outcome{Code: -1, Signal: res.Signal, TimedOut: res.TimedOut}
				if res.ExitCode != nil {
					got.Code = *res.ExitCode
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("Exec() (-want +got):\n%s", diff)
			}
		})
	}
}

// TestLogsEventsSessionsOnARealServer walks through the rest of what a sandbox offers.
func TestLogsEventsSessionsOnARealServer(t *testing.T) {
	f := realServer(t)
	c, err := libdsec.New(libdsec.WithEndpoint(f.Endpoint, f.Token))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx := testContext(t)
	sb, err := c.Create(ctx, api.Spec{Image: "busybox", Command: []string{"sh", "-c", "echo out; echo err >&2"}})
	if err != nil {
		t.Fatal(err)
	}
	logs := map[string]string{}
	for chunk, err := range sb.Logs(ctx, libdsec.WatchOptions{Follow: true}) {
		if err != nil {
			t.Fatal(err)
		}
		logs[chunk.Stream] += string(chunk.Data)
	}
	if diff := cmp.Diff(map[string]string{"stdout": "out\n", "stderr": "err\n"}, logs); diff != "" {
		t.Errorf("logs (-want +got):\n%s", diff)
	}
	for chunk, err := range sb.Logs(ctx, libdsec.WatchOptions{Follow: true, Since: 1, SinceStderr: 4}) {
		if err != nil || chunk.Stream != "stdout" || chunk.Offset != 1 || string(chunk.Data) != "ut\n" {
			t.Errorf("the rest of the log = %+v %q, %v", chunk, chunk.Data, err)
		}
	}
	session, err := sb.NewSession(ctx, api.Session{})
	if err != nil {
		t.Fatal(err)
	}
	for _, script := range []string{"cd /tmp; export V=kept", "pwd; echo $V"} {
		res, err := sb.Exec(ctx, libdsec.Cmd{Shell: script, Session: session.ID})
		if err != nil {
			t.Fatal(err)
		}
		if script == "pwd; echo $V" && string(res.Stdout) != "/tmp\nkept\n" {
			t.Errorf("the session answers %q", res.Stdout)
		}
	}
	if err := sb.CloseSession(ctx, session.ID); err != nil {
		t.Error(err)
	}
	// A follower sees the end, and then ends itself.
	events := make(chan string, 100)
	go func() {
		defer close(events)
		for e, err := range sb.Events(ctx, libdsec.WatchOptions{Follow: true}) {
			if err != nil {
				t.Errorf("events: %v", err)
				return
			}
			events <- e.Type
		}
	}()
	if first := <-events; first != "created" {
		t.Errorf("the first event is %s", first)
	}
	if _, err := sb.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	last := ""
	for e := range events {
		last = e
	}
	if last != "stopped" {
		t.Errorf("the last event is %q", last)
	}
}
