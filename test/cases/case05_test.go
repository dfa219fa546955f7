package cases

import (
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

func TestCase05TimeoutRaisesAtTheClientButTheProcessGoesOn(t *testing.T) {
	t.Parallel()
	n := testbed.Shared(t)
	sb := n.Create(t, api.Spec{})
	for name, script := range map[string]string{
		"loop":           "while :; do :; done",
		"children":       "while :; do :; done & while :; do :; done",
		"deaf-to-sigint": "trap '' INT TERM HUP; while :; do :; done",
	} {
		inTime(t, 3*time.Second, func() {
			began := time.Now()
			r := run(t, sb, hang, libdsec.Cmd{Argv: []string{"sh", "-c", script}, Timeout: time.Second})
			if !r.TimedOut || r.ExitCode != nil || r.Signal != "SIGKILL" || r.TimeoutMS == nil || *r.TimeoutMS != 1000 {
				t.Errorf("%s: %+v, want timed out", name, r.ExitStatus)
			}
			if took := time.Since(began); took < time.Second {
				t.Errorf("%s: ended after %v, before its time", name, took)
			}
		})
		if got := inside(t, sb, "sh -c "); got != 0 {
			t.Errorf("%s: %d processes are left", name, got)
		}
		for group, pids := range commands(t, n, sb) {
			t.Errorf("%s: processes %v are left in %s", name, pids, group)
		}
	}
	cpu := func() int64 {
		m, err := sb.Metrics(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ns, ok := m["cpu_ns"].(float64)
		if !ok {
			t.Fatalf("metrics %v have no cpu_ns", m)
		}
		return int64(ns)
	}
	before, began := cpu(), time.Now()
	r := run(t, sb, hang, libdsec.Cmd{Argv: []string{"sleep", "1"}})
	if used, took := time.Duration(cpu()-before), time.Since(began); used > took/10 {
		t.Errorf("%v of CPU used in %v of rest, %+v", used, took, r.ExitStatus)
	}
}
