package cases

import (
	"encoding/json"
	"fmt"
	"regexp"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

// TestCase10HiddenDefaultLimitKillsLongCommands: the longest time that code on a command's way knows without being told
// is the HTTP server's idle limit of 2 minutes; by default the test only outlasts those of 10 s.
func TestCase10HiddenDefaultLimitKillsLongCommands(t *testing.T) {
	t.Parallel()
	n := testbed.Shared(t)
	sb := n.Create(t, api.Spec{})
	lasts := span(t, 12*time.Second, 150*time.Second)
	t.Run("silent-command", func(t *testing.T) {
		t.Parallel()
		sleep := fmt.Sprintf("sleep %d; echo done", int(lasts/time.Second))
		p, err := sb.Start(t.Context(), libdsec.Cmd{Shell: sleep}, libdsec.StartOptions{})
		if err != nil {
			t.Fatal(err)
		}
		rest := make(chan api.ExecResult, 1) // one result
		go func() {
			r, err := sb.Exec(t.Context(), libdsec.Cmd{Shell: sleep})
			if err != nil {
				t.Error(err)
				r = new(libdsec.Result)
			}
			rest <- api.ExecResult{ExitStatus: r.ExitStatus, Stdout: string(r.Stdout)}
		}()
		noLimit(t, "http", execREST(t, n, sb, api.ExecRequest{Shell: sleep}))
		noLimit(t, "exec", <-rest)
		st, err := p.Wait(t.Context())
		if err != nil || st.StdoutTotal != int64(len("done\n")) || st.TimeoutMS != nil || !exited(st, 0) {
			t.Errorf("started: %+v %v", st, err)
		}
	})
	t.Run("limit-in-force-is-shown", func(t *testing.T) {
		t.Parallel()
		r := run(t, sb, hang, libdsec.Cmd{Shell: "true", Timeout: time.Hour})
		if r.TimeoutMS == nil || *r.TimeoutMS != time.Hour.Milliseconds() {
			t.Errorf("exec: %+v, want a time-out of an hour", r.ExitStatus)
		}
		res := execREST(t, n, sb, api.ExecRequest{Shell: "true", TimeoutMS: new(time.Hour.Milliseconds())})
		if res.TimeoutMS == nil || *res.TimeoutMS != time.Hour.Milliseconds() {
			t.Errorf("http: %+v, want a time-out of an hour", res.ExitStatus)
		}
	})
	t.Run("settings-name-no-limit", func(t *testing.T) {
		t.Parallel()
		// The effective settings of a sandbox, every default filled in: no time is among them that wasn't asked for.
		info, err := sb.Refresh(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		dump, err := json.Marshal(info.Spec)
		if err != nil {
			t.Fatal(err)
		}
		if found := regexp.MustCompile(`"[a-z_]*(_s|_ms|timeout|deadline|limit)":[^,}]*`).FindAll(dump, -1); len(found) > 0 {
			t.Errorf("settings that nobody asked for: %s", found)
		}
	})
	t.Run("slow-status-is-no-failure", func(t *testing.T) {
		t.Parallel()
		p := through(t, n)
		delay := span(t, 11*time.Second, 45*time.Second)
		p.delay.Store(int64(delay))
		began := time.Now()
		info, err := p.client.Get(t.Context(), sb.ID())
		if err != nil || info.Info().State != api.StateRunning {
			t.Errorf("Get() = %+v, %v", info, err)
		}
		if took := time.Since(began); took < delay {
			t.Errorf("answered after %v, so nothing was delayed by %v", took, delay)
		}
		if n := p.answered.Load(); n != 1 {
			t.Errorf("the client has asked %d times", n)
		}
	})
}

func noLimit(t *testing.T, way string, r api.ExecResult) {
	t.Helper()
	if r.Stdout != "done\n" || r.TimeoutMS != nil || !exited(r.ExitStatus, 0) {
		t.Errorf("%s: %q, %+v; want done, exit 0, no limit in force", way, r.Stdout, r.ExitStatus)
	}
}
