package main

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/dsec-io/dsec/cmd/dsec/cli"
)

// forwarding is a `dsec sandbox port-forward` that runs.
type forwarding struct {
	lines  []string // what it printed
	cancel context.CancelCauseFunc
	ended  chan int
	stderr lockedBuffer
}

// lockedBuffer is a buffer that is read while it is written.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write implements [io.Writer].
func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func startForwarding(t *testing.T, env []string, ports int, args ...string) *forwarding {
	t.Helper()
	f := &forwarding{ended: make(chan int, 1)}
	var ctx context.Context
	ctx, f.cancel = context.WithCancelCause(context.Background())
	out, in := io.Pipe()
	go func() {
		f.ended <- run(ctx, append([]string{"sandbox", "port-forward"}, args...), env, strings.NewReader(""), in, &f.stderr)
		in.Close()
	}()
	t.Cleanup(func() { f.cancel(nil) })
	lines := bufio.NewReader(out)
	for range ports {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatalf("port-forward printed %q: %s", f.lines, f.stderr.String())
		}
		f.lines = append(f.lines, strings.TrimSpace(line))
	}
	go func() { _, _ = io.Copy(io.Discard, lines) }()
	return f
}

// code is what it exits with.
func (f *forwarding) code(t *testing.T) int {
	t.Helper()
	select {
	case n := <-f.ended:
		return n
	case <-time.After(time.Minute):
		t.Fatal("port-forward goes on")
		return 0
	}
}

// visit connects, says something, ends its side, and returns what comes.
func visit(t *testing.T, address, say string) (string, error) {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		return "", err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := io.WriteString(c, say); err != nil {
		return "", err
	}
	_ = c.(*net.TCPConn).CloseWrite() // broken off already, then
	got, err := io.ReadAll(c)
	return string(got), err
}

func TestRealPortForward(t *testing.T) {
	env, _ := realDev(t)
	id, stderr, code := dsec(t, env, "", "sandbox", "create", "busybox", "--", "nc", "-ll", "-p", "7000", "-e", "cat")
	if code != 0 {
		t.Fatalf("create: %s", stderr)
	}
	id = strings.TrimSpace(id)
	f := startForwarding(t, env, 2, id, "0:7000", "0:7001")
	address, to, _ := strings.Cut(f.lines[0], " -> ")
	shut, _, _ := strings.Cut(f.lines[1], " -> ")
	if to != "7000" || !strings.HasPrefix(address, "127.0.0.1:") {
		t.Errorf("it printed %q", f.lines)
	}
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			say := strings.Repeat(string(rune('a'+i)), 100_000)
			got, err := visit(t, address, say)
			for end := time.Now().Add(time.Minute); err != nil && time.Now().Before(end); { // the program takes a while to listen
				<-time.After(5 * time.Millisecond)
				got, err = visit(t, address, say)
			}
			if err != nil || got != say {
				t.Errorf("%d bytes came back of %d, %v", len(got), len(say), err)
			}
		})
	}
	all.Wait()
	if got, err := visit(t, shut, "x"); err == nil {
		t.Errorf("a port where nobody listens says %q", got)
	}
	want := "dsec: " + shut + " -> 7001: nothing in the sandbox listens on port 7001\n"
	for end := time.Now().Add(time.Minute); !strings.Contains(f.stderr.String(), want) && time.Now().Before(end); {
		<-time.After(5 * time.Millisecond)
	}
	if got := f.stderr.String(); !strings.Contains(got, want) {
		t.Errorf("stderr is %q, want %q in it", got, want)
	}

	stopped := startForwarding(t, env, 1, "-o", "json", id, "0:7000")
	if !strings.HasPrefix(stopped.lines[0], `{"address":"127.0.0.1:`) {
		t.Errorf("as JSON: %q", stopped.lines)
	}
	f.cancel(&cli.InterruptedError{Signal: syscall.SIGINT})
	if n := f.code(t); n != 130 {
		t.Errorf("interrupted, it exits with %d: %s", n, f.stderr.String())
	}
	if _, err := net.Dial("tcp", address); err == nil {
		t.Error("it still listens")
	}
	if _, stderr, code := dsec(t, env, "", "sandbox", "stop", id); code != 0 {
		t.Fatalf("stop: %s", stderr)
	}
	if n := stopped.code(t); n != 125 || !strings.Contains(stopped.stderr.String(), "dsec: sandbox "+id+" is stopped: stopped on request\n") {
		t.Errorf("after the sandbox's end it exits with %d: %s", n, stopped.stderr.String())
	}
	for name, tc := range map[string][]string{
		"stopped":     {id, "0:7000"},
		"no-port":     {id, "0:0"},
		"no-number":   {id, "http"},
		"no-sandbox":  {"s2222222222222222222222", "0:7000"},
		"no-address":  {"--address", "localhost", id, "0:7000"},
		"taken":       {id, "1"},
		"no-argument": {id},
	} {
		if _, stderr, code := dsec(t, env, "", append([]string{"sandbox", "port-forward"}, tc...)...); code != 125 || !strings.HasPrefix(stderr, "dsec: ") {
			t.Errorf("%s: exit code %d, %q", name, code, stderr)
		}
	}
}
