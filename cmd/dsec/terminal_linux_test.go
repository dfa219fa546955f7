package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
)

// console is a terminal: what a person types goes into master, what they see comes out of it.
type console struct {
	t      *testing.T
	master *os.File
	slave  *os.File
	before unix.Termios
}

func newConsole(t *testing.T) *console {
	t.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	master := os.NewFile(uintptr(fd), "ptmx") // non-blocking, so that reads have deadlines
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	c := &console{t: t, master: master, slave: slave}
	c.before = c.termios()
	c.resize(40, 100)
	t.Cleanup(func() {
		slave.Close()
		master.Close()
	})
	return c
}

func (c *console) termios() unix.Termios {
	c.t.Helper()
	tio, err := unix.IoctlGetTermios(int(c.slave.Fd()), unix.TCGETS)
	if err != nil {
		c.t.Fatal(err)
	}
	return *tio
}

func (c *console) resize(rows, cols uint16) {
	c.t.Helper()
	if err := unix.IoctlSetWinsize(int(c.slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols}); err != nil {
		c.t.Fatal(err)
	}
}

func (c *console) typed(s string) {
	c.t.Helper()
	if _, err := c.master.WriteString(s); err != nil {
		c.t.Fatal(err)
	}
}

// see reads what's shown until it ends in want.
func (c *console) see(want string) string {
	c.t.Helper()
	if err := c.master.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		c.t.Fatal(err)
	}
	var seen []byte
	buf := make([]byte, 1)
	for !bytes.HasSuffix(seen, []byte(want)) {
		n, err := c.master.Read(buf)
		if err != nil {
			c.t.Fatalf("saw %q, then %v, want %q", seen, err, want)
		}
		seen = append(seen, buf[:n]...)
	}
	return string(seen)
}

// start runs a command line on the console and returns a function that waits for its exit code.
func (c *console) start(f *fake, args ...string) (wait func() int) {
	code := make(chan int, 1)
	go func() { code <- run(context.Background(), args, f.env(), c.slave, c.slave, c.slave) }()
	return func() int {
		c.t.Helper()
		select {
		case n := <-code:
			if after := c.termios(); after != c.before {
				c.t.Errorf("the terminal is left with %+v, was %+v", after, c.before)
			}
			return n
		case <-time.After(time.Minute):
			c.t.Fatal("dsec doesn't end")
			return 0
		}
	}
}

// echo is a remote terminal program: it tells its size and TERM, returns what is typed in brackets, tells new sizes, and
// ends with 7 at q, with a reset at x, and by a hangup.
func (f *fake) echo(ctx context.Context, st *aether.Stream, m *aether.ExecStart) aether.Exited {
	if !m.TTY || !m.Stdin {
		return exited(1)
	}
	put(ctx, st, aether.Stdout, fmt.Sprintf("%dx%d %s\r\n", m.Rows, m.Cols, bytes.Join(m.Env, []byte(" "))))
	typed := make(chan byte)
	reading, stop := context.WithCancel(ctx)
	go func() {
		defer close(typed)
		input(reading, st, func(b []byte) bool {
			for _, c := range b {
				typed <- c
			}
			return true
		})
	}()
	defer func() {
		stop()
		for range typed { // its sender must end
		}
	}()
	for {
		select {
		case c, ok := <-typed:
			switch {
			case !ok:
				return exited(2)
			case c == 'q':
				return exited(7)
			case c == 'x':
				st.Reset(api.Errorf(api.CodeSandboxDied, "the sandbox died"))
				return exited(3)
			}
			put(ctx, st, aether.Stdout, fmt.Sprintf("[%02x]", c))
		case size := <-f.sizes:
			put(ctx, st, aether.Stdout, fmt.Sprintf("<%dx%d>", size.Rows, size.Cols))
		case n := <-f.signals:
			return aether.Exited{Signal: n}
		}
	}
}

func TestTerminalFeelsLocal(t *testing.T) {
	f := newFake(t)
	f.commands["sh"] = f.echo
	c := newConsole(t)
	wait := c.start(f, "run", "busybox", "--", "sh") // at a terminal -it needs no saying
	if got, want := c.see("\n"), "40x100 TERM=dumb\r\n"; got != want {
		t.Errorf("saw %q, want %q", got, want)
	}
	c.typed("\x03")
	c.see("[03]")
	// Raw: nothing is edited, echoed, or made into signals.
	if lflag := c.termios().Lflag; lflag&(unix.ICANON|unix.ECHO|unix.ISIG|unix.IEXTEN) != 0 {
		t.Errorf("local modes %#x aren't raw", lflag)
	}
	c.typed("\x1a\x1c\x04\r\n\x7f\x11\x13\xff")
	if got, want := c.see("[ff]"), "[1a][1c][04][0d][0a][7f][11][13][ff]"; got != want {
		t.Errorf("typing control keys shows %q, want %q", got, want)
	}
	c.resize(50, 132)
	if err := syscall.Kill(os.Getpid(), syscall.SIGWINCH); err != nil {
		t.Fatal(err)
	}
	if got, want := c.see(">"), "<50x132>"; got != want {
		t.Errorf("resize shows %q, want %q", got, want)
	}
	c.typed("q")
	if code := wait(); code != 7 {
		t.Errorf("exit code %d, want 7", code)
	}
	if f.stopped.Load() != 1 {
		t.Error("the sandbox wasn't stopped")
	}
	// What is typed for the next program isn't eaten, and nothing stray was shown before it.
	c.typed("next\r")
	if got, want := c.see("next\r\n"), "next\r\n"; got != want {
		t.Errorf("saw %q, want only the echo %q", got, want)
	}
	buf := make([]byte, 16)
	if n, err := c.slave.Read(buf); err != nil || string(buf[:n]) != "next\n" {
		t.Errorf("the next program reads %q, %v", buf[:n], err)
	}
}

func TestTerminalIsRestored(t *testing.T) {
	for name, tc := range map[string]struct {
		end  func(t *testing.T, c *console)
		code int
		says string
	}{
		"sandbox-died": {func(_ *testing.T, c *console) { c.typed("x") }, 125, "dsec: the sandbox died\r\n"},
		"terminated": {func(t *testing.T, _ *console) {
			if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
				t.Error(err)
			}
		}, 143, "dsec: interrupted\r\n"},
		"detached": {func(_ *testing.T, c *console) { c.typed("\x10\x11") }, 0, " goes on\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			f.commands["sh"] = f.echo
			f.list = []api.Sandbox{{ID: "s1", State: api.StateRunning}}
			c := newConsole(t)
			wait := c.start(f, "sandbox", "exec", "-it", "--detach-keys", "ctrl-p,ctrl-q", "s1", "--", "sh")
			c.see("\n")
			tc.end(t, c)
			if code := wait(); code != tc.code {
				t.Errorf("exit code %d, want %d", code, tc.code)
			}
			c.see(tc.says)
		})
	}
	t.Run("closed", func(t *testing.T) {
		f := newFake(t)
		f.commands["sh"] = f.echo
		f.list = []api.Sandbox{{ID: "s1", State: api.StateRunning}}
		c := newConsole(t)
		code := make(chan int, 1)
		go func() {
			code <- run(context.Background(), []string{"sb", "exec", "-it", "s1", "--", "sh"}, f.env(), c.slave, c.slave, io.Discard)
		}()
		c.see("\n")
		c.master.Close() // the window is gone: the remote command gets its hangup
		if got := <-code; got != 129 {
			t.Errorf("exit code %d, want 129", got)
		}
	})
}

// TestTerminalOutputIsNotAltered: tty output to a terminal in raw mode is the remote's, byte for byte.
func TestTerminalOutputIsNotAltered(t *testing.T) {
	f := newFake(t)
	var all strings.Builder
	for i := range 20000 {
		fmt.Fprintf(&all, "%d\r\n", i)
	}
	f.commands["seq"] = func(ctx context.Context, st *aether.Stream, _ *aether.ExecStart) aether.Exited {
		put(ctx, st, aether.Stdout, all.String()+"end")
		return exited(0)
	}
	f.list = []api.Sandbox{{ID: "s1", State: api.StateRunning}}
	c := newConsole(t)
	wait := c.start(f, "sb", "exec", "s1", "--", "seq")
	if got := c.see("end"); got != all.String()+"end" {
		t.Errorf("saw %d bytes, want %d", len(got), all.Len()+3)
	}
	if code := wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}
