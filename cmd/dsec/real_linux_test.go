package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dsec-io/dsec/internal/leakcheck"
	"github.com/dsec-io/dsec/internal/need"
)

// realDev runs `dsec dev` until the test ends, and returns the environment of its clients: nothing but a home, because
// dsec dev made itself the current context.
func realDev(t *testing.T) (env []string, data string) {
	t.Helper()
	need.Root(t)
	need.Image(t, "busybox")
	home := t.TempDir()
	data = filepath.Join(home, "data")
	env = []string{"HOME=" + home, "TERM=xterm"}
	ctx, cancel := context.WithCancelCause(context.Background())
	out, ready := io.Pipe()
	var log strings.Builder
	code := make(chan int, 1)
	go func() {
		code <- run(ctx, []string{"dev", "--data", data, "--listen", "127.0.0.1:0"}, env, strings.NewReader(""), ready, &log)
		ready.Close()
	}()
	line := make([]byte, len("ready http://"))
	if _, err := io.ReadFull(out, line); err != nil || string(line) != "ready http://" {
		cancel(nil)
		t.Fatalf("dsec dev printed %q, %v; exit code %d, log:\n%s", line, err, <-code, log.String())
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	instance, err := os.ReadFile(filepath.Join(data, "instance"))
	if err != nil {
		t.Error(err)
	}
	t.Cleanup(func() {
		cancel(errors.New("the test is over"))
		if n := <-code; n != 0 {
			t.Errorf("dsec dev exits with %d, log:\n%s", n, log.String())
		}
		limited, done := context.WithTimeout(context.Background(), time.Minute)
		defer done()
		left, err := leakcheck.Wait(limited, leakcheck.Snapshot{}, func() (leakcheck.Snapshot, error) {
			s, err := leakcheck.Take()
			return s.Only(strings.TrimSpace(string(instance))), err
		})
		if err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
	})
	return env, data
}

// dsec runs a command line against a real server.
func dsec(t *testing.T, env []string, stdin string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), args, env, strings.NewReader(stdin), &out, &errs)
	return out.String(), errs.String(), code
}

// TestRealTour is what a newcomer types.
func TestRealTour(t *testing.T) {
	env, data := realDev(t)
	for name, tc := range map[string]struct {
		args   string
		stdin  string
		stdout string
		code   int
	}{
		"hello":     {"run busybox -- echo hello", "", "hello\n", 0},
		"exit-code": {"run busybox -- sh -c exit$IFS'42'", "", "", 42},
		"stdin":     {"run -i busybox -- wc -c", strings.Repeat("x", 1<<20), "1048576\n", 0},
		"no-stdin":  {"run busybox -- cat", "ignored", "", 0},
		"timed-out": {"run --timeout 300ms busybox -- sleep 60", "", "", 124},
		"not-found": {"run busybox -- /nope", "", "", 127},
		"directory": {"run busybox -- /etc", "", "", 126},
		"no-image":  {"run no-such-image -- true", "", "", 125},
		"shell":     {"run -i busybox", "echo from a shell; exit 5\n", "from a shell\n", 5},
		"limits":    {"run -u 1000 -w /tmp -e A=b busybox -- sh -c id${IFS}-u;pwd;echo${IFS}$A", "", "1000\n/tmp\nb\n", 0},
	} {
		t.Run(name, func(t *testing.T) {
			stdout, stderr, code := dsec(t, env, tc.stdin, strings.Fields(tc.args)...)
			if stdout != tc.stdout || code != tc.code {
				t.Errorf("dsec %s = %q, %d (stderr %q), want %q, %d", tc.args, stdout, code, stderr, tc.stdout, tc.code)
			}
			if failed := code > 123 && code < 128; failed != strings.HasPrefix(stderr, "dsec: ") {
				t.Errorf("dsec %s says %q", tc.args, stderr)
			}
		})
	}
	if stdout, _, _ := dsec(t, env, "", "sandbox", "ls", "-o", "name"); stdout != "" {
		t.Errorf("run left sandboxes: %q", stdout)
	}
	st, err := os.Stat(filepath.Join(data, "context.json"))
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("context.json: %v, %v", st, err)
	}
}

func TestRealSandboxCommands(t *testing.T) {
	env, _ := realDev(t)
	id, stderr, code := dsec(t, env, "", "sandbox", "create", "-l", "k=v", "busybox", "--", "sh", "-c", "echo started; sleep 600")
	if code != 0 {
		t.Fatalf("create: %s", stderr)
	}
	id = strings.TrimSpace(id)
	if stdout, _, _ := dsec(t, env, "", "sb", "ls", "-l", "k=v", "-o", "name"); stdout != id+"\n" {
		t.Errorf("ls = %q, want %s", stdout, id)
	}
	var got struct {
		State string `json:"state"`
		Spec  struct {
			Resources struct {
				Memory int64 `json:"memory_mb"`
			} `json:"resources"`
			Env map[string]string `json:"env"`
		} `json:"spec"`
	}
	if _, stderr, code := dsec(t, env, "", "sb", "set", "-m", "256m", "-e", "NEW=1", id); code != 0 {
		t.Errorf("set: %s", stderr)
	}
	stdout, _, _ := dsec(t, env, "", "sb", "get", "-o", "json", id)
	if err := json.Unmarshal([]byte(stdout), &got); err != nil || got.State != "running" || got.Spec.Resources.Memory != 256 || got.Spec.Env["NEW"] != "1" {
		t.Errorf("get after set = %s, %v", stdout, err)
	}
	if stdout, _, code := dsec(t, env, "", "sb", "exec", id, "--", "sh", "-c", "echo $NEW; exit 3"); stdout != "1\n" || code != 3 {
		t.Errorf("exec = %q, %d", stdout, code)
	}
	if stdout, stderr, code := dsec(t, env, "", "sb", "logs", id); stdout != "started\n" || code != 0 {
		t.Errorf("logs = %q, %q, %d", stdout, stderr, code)
	}
	if stdout, _, code := dsec(t, env, "", "sb", "stats", id); !strings.Contains(stdout, "memory_bytes:") || code != 0 {
		t.Errorf("stats = %q, %d", stdout, code)
	}
	for range 2 { // stopping twice is no error
		if stdout, stderr, code := dsec(t, env, "", "sb", "stop", id); stdout != id+"\n" || code != 0 {
			t.Errorf("stop = %q, %q, %d", stdout, stderr, code)
		}
	}
	if stdout, _, code := dsec(t, env, "", "events"); !strings.Contains(stdout, "created") || !strings.Contains(stdout, "stopped") || code != 0 {
		t.Errorf("events = %q, %d", stdout, code)
	}
	if _, stderr, code := dsec(t, env, "", "sb", "exec", id, "--", "true"); code != 125 || !strings.HasPrefix(stderr, "dsec: ") {
		t.Errorf("exec in a stopped sandbox = %q, %d", stderr, code)
	}
}

// TestRunAtATerminalGivesTheBestShell: an image that says nothing of a command gives bash where it has it, as
// `dsec sandbox shell` does.
func TestRunAtATerminalGivesTheBestShell(t *testing.T) {
	need.Image(t, "debian")
	env, _ := realDev(t)
	c := newConsole(t)
	code := make(chan int, 1)
	go func() { code <- run(context.Background(), []string{"run", "debian"}, env, c.slave, c.slave, c.slave) }()
	c.see("# ")
	c.typed("echo shell=$0; exit 4\r")
	c.see("shell=bash\r\n")
	if got := <-code; got != 4 {
		t.Errorf("exit code %d", got)
	}
}

// TestCase22TTYDetailsFromALocalTerminal drives a real shell through our own terminal.
func TestCase22TTYDetailsFromALocalTerminal(t *testing.T) {
	env, _ := realDev(t)
	c := newConsole(t)
	code := make(chan int, 1)
	go func() { code <- run(context.Background(), []string{"run", "busybox"}, env, c.slave, c.slave, c.slave) }()
	prompt := "# \x1b[6n" // ash asks where the cursor is, as it may at a terminal
	type step struct{ typed, want string }
	c.see(prompt)
	for _, s := range []step{
		{"stty size; echo $TERM\r", "\r\n40 100\r\nxterm\r\n/ " + prompt},
		{"sleep 999\r", "sleep 999\r\n"},
		{"\x03", "^C\r\n/ " + prompt}, // the foreground job alone: the shell goes on
		{"sleep 999\r", "sleep 999\r\n"},
		{"\x1a", prompt},
		{"jobs\r", "Stopped                    sleep 999\r\n/ " + prompt},
		{"kill -9 %1; wait; echo gone\r", "\r\ngone\r\n"},
		{"", prompt},
		// ash takes SIGWINCH for itself while it edits a line.
		{"sh -c 'trap \"stty size; exit\" WINCH; echo listening; while :; do sleep 0.1; done'\r", "listening\r\n"},
	} {
		if s.typed == "\x03" || s.typed == "\x1a" {
			c.untilForeground(env, "sleep")
		}
		c.typed(s.typed)
		c.see(s.want)
	}
	c.resize(50, 132)
	if err := syscall.Kill(os.Getpid(), syscall.SIGWINCH); err != nil {
		t.Fatal(err)
	}
	c.see("50 132\r\n")
	c.see(prompt)
	// Complete, and the exit code right after the last byte.
	c.typed("seq 100000; exit 9\r")
	c.see("exit 9\r\n")
	var want strings.Builder
	for i := 1; i <= 100000; i++ {
		fmt.Fprintf(&want, "%d\r\n", i)
	}
	if got := c.see("\n100000\r\n"); got != want.String() {
		t.Errorf("seq: %d bytes, want %d", len(got), want.Len())
	}
	if n := <-code; n != 9 {
		t.Errorf("exit code %d, want 9", n)
	}
	if after := c.termios(); after != c.before {
		t.Errorf("the terminal is left with %+v, was %+v", after, c.before)
	}
	if err := c.master.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if stray, err := io.ReadAll(c.master); len(stray) > 0 {
		t.Errorf("stray bytes %q, %v", stray, err)
	}
}

// untilForeground waits until a program of the one sandbox runs, so that a key finds it there.
func (c *console) untilForeground(env []string, program string) {
	c.t.Helper()
	id, _, _ := dsec(c.t, env, "", "sb", "ls", "-o", "name")
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		stdout, _, _ := dsec(c.t, env, "", "sb", "exec", strings.TrimSpace(id), "--", "ps", "-o", "comm,stat")
		if strings.Contains(stdout, program) {
			return
		}
	}
	c.t.Errorf("%s never ran", program)
}
