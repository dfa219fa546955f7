package chronus_test

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
)

// terminal starts a shell on a terminal.
func (s *sandbox) terminal(start aether.ExecStart) *call {
	s.Helper()
	start.TTY, start.Stdin = true, true
	c := s.exec(start)
	return c
}

// typed types text and waits for want in what comes after.
func (c *call) typed(text, want string) {
	c.Helper()
	from := len(c.out[0])
	if err := c.st.Write(c.Context(), aether.Stdin, []byte(text)); err != nil {
		c.Fatal(err)
	}
	c.until(want, func() bool { return bytes.Contains(c.out[0][from:], []byte(want)) })
}

// Case 22.
func TestTerminal(t *testing.T) {
	s := newSandbox(t)
	c := s.terminal(aether.ExecStart{ID: "tty", Argv: bytesOf("sh", "-i"), Rows: 30, Cols: 90, User: "1234", Env: bytesOf("PS1=$ ")})
	c.until("a prompt", func() bool { return bytes.Contains(c.out[0], []byte("$ ")) })
	c.typed("tty; stat -c %u:%a $(tty); echo $TERM\r", "/dev/pts/0\r\n1234:620\r\nxterm\r\n")
	c.typed("stty size; echo >/dev/tty ok\r", "30 90\r\nok\r\n")
	c.typed("sh -c 'trap \"stty size; exit\" WINCH; echo re\"\"ady; while :; do sleep 0.05; done'\r", "ready\r\n")
	if err := s.unary("resize", (&aether.Resize{ID: "tty", Rows: 33, Cols: 99}).AppendTo(nil), nil); err != nil {
		t.Fatal(err)
	}
	c.typed("", "33 99\r\n")
	// Ctrl-C ends the foreground job only.
	c.typed("sleep 998 & echo started\r", "started\r\n")
	if err := c.st.Write(t.Context(), aether.Stdin, []byte("sleep 999\r")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the foreground job", func() bool { return strings.Contains(s.sh(`ps`), "sleep 999") })
	c.typed("\x03", "$ ")
	c.typed("jobs\r", "sleep 998")
	if out := s.sh(`ps`); strings.Contains(out, "sleep 999") || !strings.Contains(out, "sleep 998") {
		t.Errorf("after Ctrl-C: %s", out)
	}
	// Ctrl-Z stops it.
	if err := c.st.Write(t.Context(), aether.Stdin, []byte("sleep 997\r")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the second job", func() bool { return strings.Contains(s.sh(`ps`), "sleep 997") })
	c.typed("\x1a", "Stopped")
	c.typed("kill %1; kill -9 %2; wait; seq 100000; exit 7\r", "exit 7")
	r := c.finish()
	wantExit(t, r, 7)
	var want bytes.Buffer
	for i := 1; i <= 100000; i++ {
		fmt.Fprintf(&want, "%d\r\n", i)
	}
	if !bytes.Contains(r.out[0], want.Bytes()) {
		t.Errorf("output of seq isn't complete: %d bytes end in %.200q", len(r.out[0]), r.out[0][max(0, len(r.out[0])-200):])
	}
}

func TestTerminalOutputIsCompleteAtItsEnd(t *testing.T) {
	s := newSandbox(t)
	for i := range 100 {
		r := s.terminal(aether.ExecStart{Shell: fmt.Appendf(nil, "printf x%d", i)}).finish()
		wantExit(t, r, 0)
		if string(r.out[0]) != fmt.Sprintf("x%d", i) {
			t.Fatalf("round %d: %q", i, r.out[0])
		}
	}
}

func TestTerminalHasOneOwner(t *testing.T) {
	s := newSandbox(t)
	c := s.terminal(aether.ExecStart{ID: "tty", Shell: []byte("read x; echo got $x; exit 3")})
	c.until("its start", func() bool { return c.started != nil })
	d := s.attach(aether.Attach{ID: "tty", Stdin: true})
	wantCode(t, c.finish(), api.CodeConflict)
	d.typed("hello\r", "got hello\r\n")
	wantExit(t, d.finish(), 3)
	if err := s.unary("resize", (&aether.Resize{ID: "tty", Rows: 4, Cols: 5}).AppendTo(nil), nil); !api.IsCode(err, api.CodeNoSuchProcess) {
		t.Errorf("resize after the end: %v", err)
	}
	if r := s.exec(aether.ExecStart{ID: "plain", Shell: []byte("true"), Keep: true}).finish(); r.err != nil {
		t.Fatal(r.err)
	}
	wantCode(t, s.attach(aether.Attach{ID: "plain", Stdin: true}).finish(), api.CodeConflict)
}

func TestTerminalOutlivesItsShard(t *testing.T) {
	s := newSandbox(t)
	c := s.terminal(aether.ExecStart{ID: "tty", Argv: bytesOf("sh", "-i"), Env: bytesOf("PS1=$ ")})
	c.until("a prompt", func() bool { return bytes.Contains(c.out[0], []byte("$ ")) })
	c.typed("echo $$\r", "\r\n$ ")
	pid := regexp.MustCompile(`\n[0-9]+\r\n`).Find(c.out[0])
	off := c.off[0]
	s.killShard()
	c = s.attach(aether.Attach{ID: "tty", Stdin: true, StdoutOffset: off})
	c.typed("echo $$\r", string(pid))
	if err := c.st.Send(t.Context(), aether.MsgResize, (&aether.Resize{Rows: 44, Cols: 55}).AppendTo(nil)); err != nil {
		t.Fatal(err)
	}
	c.typed("stty size\r", "44 55\r\n")
	c.typed("exit 9\r", "exit 9")
	wantExit(t, c.finish(), 9)
	// The mount is known to the new shard: a second terminal is on the same devpts. Its number is the first's only if the
	// keeper has closed that already.
	r := s.terminal(aether.ExecStart{Argv: bytesOf("sh", "-c", "tty; grep -c devpts /proc/mounts")}).finish()
	wantExit(t, r, 0)
	if !regexp.MustCompile(`^/dev/pts/[01]\r\n1\r\n$`).Match(r.out[0]) {
		t.Errorf("second terminal: %q", r.out[0])
	}
}
