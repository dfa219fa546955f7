package cases

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

func TestCase09SessionUnusableAfterOneStuckCommand(t *testing.T) {
	t.Parallel()
	sb := testbed.Shared(t).Create(t, api.Spec{})
	one, two := newSession(t, sb), newSession(t, sb)
	r := run(t, sb, hang, libdsec.Cmd{Session: one, Shell: "mkdir -p /work && cd /work && export GREETING='a b' && mkfifo /stuck"})
	if !exited(r.ExitStatus, 0) {
		t.Fatalf("%+v %s", r.ExitStatus, r.Stderr)
	}

	// The other session is used all the time.
	var other sync.WaitGroup
	var slowest atomic.Int64
	stop := make(chan struct{})
	other.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			began := time.Now()
			r, err := sb.Exec(t.Context(), libdsec.Cmd{Session: two, Shell: "echo two"})
			if err != nil || string(r.Stdout) != "two\n" {
				t.Errorf("session two: %+v %v", r, err)
				return
			}
			slowest.Store(max(slowest.Load(), int64(time.Since(began))))
		}
	})
	for i, tc := range []struct {
		name, stuck string
		answers     time.Duration
	}{
		{"waiting", "STUCK; cat /stuck", 2 * time.Second},
		{"waiting child", "sleep 9 & STUCK; cat /stuck; wait", 2 * time.Second},
		// Deaf to what Ctrl-C sends, it is killed after a grace.
		{"deaf", "trap '' INT; STUCK; while :; do :; done", hang},
	} {
		fastest := time.Hour
		for try := 0; try < 5 && fastest > tc.answers; try++ { // the machine may be busy, so the best time counts
			ready := fmt.Sprintf("/ready%d-%d", i, try)
			fastest = min(fastest, unstick(t, sb, [2]string{one, two}, ready, tc.stuck))
		}
		if fastest > tc.answers {
			t.Errorf("%s: the session answers after %v", tc.name, fastest)
		}
	}
	close(stop)
	other.Wait()
	if d := time.Duration(slowest.Load()); d > hang {
		t.Errorf("session two once took %v", d)
	}
}

// unstick runs a command in the first session that makes the file ready and then is stuck, interrupts it, and returns how
// long it took until the session answered again.
func unstick(t *testing.T, sb *libdsec.Sandbox, sessions [2]string, ready, stuck string) time.Duration {
	t.Helper()
	one, two := sessions[0], sessions[1]
	stuck = strings.Replace(stuck, "STUCK", "touch "+ready, 1)
	ended := make(chan api.ExitStatus, 1) // one status
	go func() {
		r, err := sb.Exec(t.Context(), libdsec.Cmd{Session: one, Shell: stuck})
		if err != nil {
			t.Errorf("%q: %v", stuck, err)
			r = new(libdsec.Result)
		}
		ended <- r.ExitStatus
	}()
	testbed.Until(t, hang, "the command is stuck", func() bool {
		return exited(run(t, sb, hang, libdsec.Cmd{Argv: []string{"test", "-e", ready}}).ExitStatus, 0)
	})
	if !busy(t, sb, one) {
		t.Errorf("%q: the session isn't busy", stuck)
	}
	// Nothing but the interruption ends the stuck command, so this answer doesn't wait for it.
	if r := run(t, sb, hang, libdsec.Cmd{Session: two, Shell: "echo two"}); string(r.Stdout) != "two\n" {
		t.Errorf("%q: session two says %q, %+v", stuck, r.Stdout, r.ExitStatus)
	}
	began := time.Now()
	if err := sb.InterruptSession(within(t, hang), one); err != nil {
		t.Fatalf("%q: interrupt: %v", stuck, err)
	}
	r := run(t, sb, hang, libdsec.Cmd{Session: one, Shell: `echo "$PWD $GREETING"`})
	took := time.Since(began)
	if got := string(r.Stdout); got != "/work a b\n" || !exited(r.ExitStatus, 0) {
		t.Errorf("%q: after it the session says %q, %+v", stuck, got, r.ExitStatus)
	}
	if st := <-ended; exited(st, 0) {
		t.Errorf("%q: the interrupted command succeeded: %+v", stuck, st)
	}
	return took
}

func newSession(t *testing.T, sb *libdsec.Sandbox) string {
	t.Helper()
	s, err := sb.NewSession(t.Context(), api.Session{})
	if err != nil {
		t.Fatal(err)
	}
	return s.ID
}

func busy(t *testing.T, sb *libdsec.Sandbox, id string) bool {
	t.Helper()
	all, err := sb.Sessions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		if s.ID == id {
			return s.Busy
		}
	}
	t.Fatalf("session %s isn't listed", id)
	return false
}
