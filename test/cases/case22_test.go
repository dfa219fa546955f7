package cases

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

// terminal is a command on a terminal, with somebody at the keys.
type terminal struct {
	*libdsec.Process
	t    *testing.T
	said transcript
}

func openTerminal(t *testing.T, sb *libdsec.Sandbox, cmd libdsec.Cmd) *terminal {
	t.Helper()
	term := &terminal{t: t}
	p, err := sb.Start(t.Context(), cmd, libdsec.StartOptions{
		StdinPipe: true, TTY: &api.Size{Rows: 24, Cols: 80}, Handlers: libdsec.Handlers{OnStdout: term.said.take},
	})
	if err != nil {
		t.Fatal(err)
	}
	term.Process = p
	return term
}

// types presses keys. What they make the command print must not be found in what they echo, hence the quotes in
// callers' words.
func (x *terminal) types(keys string) {
	x.t.Helper()
	if _, err := io.WriteString(x.Stdin(), keys); err != nil {
		x.t.Fatal(err)
	}
}

func (x *terminal) waitFor(text string) {
	x.t.Helper()
	defer func() {
		if x.t.Failed() {
			x.t.Logf("the terminal shows %q", x.said.String())
		}
	}()
	testbed.Until(x.t, time.Minute, fmt.Sprintf("%q on the terminal", text), x.said.has(text))
}

// ends waits for the end and demands an exit code.
func (x *terminal) ends(code int) {
	x.t.Helper()
	ctx, cancel := context.WithTimeout(x.t.Context(), time.Minute)
	defer cancel()
	if st, err := x.Wait(ctx); err != nil || !exitsWith(st, code) || st.Truncated || len(x.Gaps()) > 0 {
		x.t.Errorf("Wait() = %+v, %v, gaps %v; want exit code %d", st, err, x.Gaps(), code)
	}
}

func TestCase22TTYResizeIsSIGWINCH(t *testing.T) {
	t.Parallel()
	sb := testbed.Shared(t).Create(t, api.Spec{})
	x := openTerminal(t, sb, libdsec.Cmd{Shell: `trap 'echo "[$(stty size)]"' WINCH; stty size; tty; while :; do sleep 0.02; done`})
	x.waitFor("24 80\r\n/dev/pts/")
	for _, size := range []api.Size{{Rows: 40, Cols: 120}, {Rows: 5, Cols: 7}, {Rows: 1000, Cols: 2000}} {
		if err := x.Resize(t.Context(), size); err != nil {
			t.Fatal(err)
		}
		x.waitFor(fmt.Sprintf("[%d %d]\r\n", size.Rows, size.Cols))
	}
	for _, size := range []api.Size{{Rows: 0, Cols: 80}, {Rows: 24, Cols: 0}} {
		if err := x.Resize(t.Context(), size); !libdsec.IsCode(err, api.CodeInvalid) {
			t.Errorf("Resize(%+v) = %v, want it refused", size, err)
		}
	}
	if err := x.Kill(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestCase22TTYJobControl(t *testing.T) {
	t.Parallel()
	sb := testbed.Shared(t).Create(t, api.Spec{})
	x := openTerminal(t, sb, libdsec.Cmd{Argv: []string{"sh", "-i"}})
	x.types("sleep 1001 &\n")
	// The foreground job itself says that it runs, so the key can't hit the shell before it has started.
	x.types("sh -c 'echo fore''ground; exec sleep 1002'\n")
	x.waitFor("\nforeground\r\n")
	x.types("\x03")
	x.types(`echo "interrupted: $?"` + "\n")
	x.waitFor("\ninterrupted: 130\r\n")
	x.types("kill -0 $! && echo background'' lives\n")
	x.waitFor("\nbackground lives\r\n")

	x.types("sh -c 'echo sec''ond; exec sleep 1003'\n")
	x.waitFor("\nsecond\r\n")
	x.types("\x1a")
	x.waitFor("Stopped")
	x.types("jobs; echo job''list\n")
	x.waitFor("\njoblist\r\n")
	if list := x.said.String(); !strings.Contains(list, "Running") {
		t.Errorf("no running job is listed: %q", list)
	}
	x.types("fg\n")
	testbed.Until(t, time.Minute, "the stopped job to go on", func() bool {
		return testbed.Output(t, sb, `for p in $(pidof sleep); do grep -q 1003 /proc/$p/cmdline && grep '^State:.[RS]' /proc/$p/status; done; true`) != ""
	})
	x.types("\x03")
	x.types(`echo "continued: $?"` + "\n")
	x.waitFor("\ncontinued: 130\r\n")
	x.types("kill %1; exit 5\n")
	x.ends(5)
}

func TestCase22TTYOutputIsCompleteAtItsEnd(t *testing.T) {
	t.Parallel()
	sb := testbed.Shared(t).Create(t, api.Spec{})
	var want strings.Builder
	for i := range 100_000 {
		fmt.Fprintf(&want, "%d\r\n", i+1)
	}
	for name, tc := range map[string]struct {
		script string
		code   int
	}{
		"last-bytes":        {"seq 100000; exit 7", 7},
		"closed-before":     {"seq 100000; exec <&- >&- 2>&-; exit 8", 8}, // the terminal's master gets EIO before the end
		"no-shell-after-it": {"exec seq 100000 </dev/null", 0},
		"held-by-a-child":   {"seq 100000; setsid sleep 1000 & exit 9", 9},
	} {
		t.Run(name, func(t *testing.T) {
			for range 3 {
				x := openTerminal(t, sb, libdsec.Cmd{Shell: tc.script})
				x.ends(tc.code)
				if got := x.said.String(); got != want.String() {
					t.Fatalf("%d bytes, want %d; they end with %q", len(got), want.Len(), got[max(0, len(got)-40):])
				}
			}
		})
	}
}

// TestCase22TTYTakeoverHasOneWinner has several clients take over one terminal at the same moment.
func TestCase22TTYTakeoverHasOneWinner(t *testing.T) {
	t.Parallel()
	n := testbed.Shared(t)
	sb := n.Create(t, api.Spec{})
	first := openTerminal(t, sb, libdsec.Cmd{Shell: `stty -echo; echo ready; while read line; do echo "got <$line>"; done`})
	first.waitFor("ready")
	const clients = 6
	taken := make([]*libdsec.Process, clients)
	var wg sync.WaitGroup
	for i := range taken {
		client, err := libdsec.New(libdsec.WithEndpoint(n.Endpoint, n.Token))
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		wg.Go(func() {
			p, err := client.Sandbox(sb.ID()).Attach(t.Context(), first.ID(), libdsec.AttachOptions{Stdin: true})
			if err != nil && !libdsec.IsCode(err, api.CodeConflict) {
				t.Errorf("client %d: %v", i, err)
			}
			taken[i] = p
		})
	}
	wg.Wait()
	losers, winner := 0, -1
	testbed.Until(t, time.Minute, "all clients but one to be told", func() bool {
		losers, winner = 0, -1
		for i, p := range taken {
			if p == nil || lost(t, p) {
				losers++
			} else {
				winner = i
			}
		}
		return losers >= clients-1 && lost(t, first.Process)
	})
	if winner < 0 {
		t.Fatal("all clients lost")
	}
	for i, p := range append(taken, first.Process) {
		if p != nil && i != winner {
			_, _ = fmt.Fprintf(p.Stdin(), "loser\n") // whether it's an error here or nothing at all, it isn't taken
		}
	}
	var said transcript
	watcher, err := sb.Attach(t.Context(), first.ID(), libdsec.AttachOptions{Handlers: libdsec.Handlers{OnStdout: said.take}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(taken[winner].Stdin(), "winner\n\x04"); err != nil {
		t.Fatal(err)
	}
	if st, err := watcher.Wait(t.Context()); err != nil || !exitsWith(st, 0) {
		t.Errorf("Wait() = %+v, %v", st, err)
	}
	if got := said.String(); got != "ready\r\ngot <winner>\r\n" {
		t.Errorf("the terminal shows %q, want only the winner's line", got)
	}
}

// lost tells whether a client was told that another one has taken over.
func lost(t *testing.T, p *libdsec.Process) bool {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := p.Wait(ctx)
	if err != nil && !errors.Is(err, context.Canceled) && !libdsec.IsCode(err, api.CodeConflict) {
		t.Fatalf("a client that lost the terminal was told %v", err)
	}
	return libdsec.IsCode(err, api.CodeConflict)
}
