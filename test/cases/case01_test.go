package cases

import (
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

func TestCase01BackgroundChildKeepsTheOutputPipeOpen(t *testing.T) {
	t.Parallel()
	n := testbed.Shared(t)
	sb := n.Create(t, api.Spec{})
	r := run(t, sb, 2*time.Second, libdsec.Cmd{Shell: "sleep 3001 & echo hi"})
	if string(r.Stdout) != "hi\n" || !exited(r.ExitStatus, 0) || !r.LeftProcesses {
		t.Errorf("stdout %q, %+v; want hi, exit 0 and left processes", r.Stdout, r.ExitStatus)
	}
	if got := inside(t, sb, "sleep 3001 "); got != 1 {
		t.Errorf("%d of 1 background child goes on", got)
	}

	// The same of a command that takes longer than a moment, and over plain HTTP.
	r = run(t, sb, 3*time.Second, libdsec.Cmd{Shell: "sleep 3002 & sleep 0.3; echo hi"})
	if string(r.Stdout) != "hi\n" || !exited(r.ExitStatus, 0) {
		t.Errorf("longer command: stdout %q, %+v", r.Stdout, r.ExitStatus)
	}
	began := time.Now()
	res := execREST(t, n, sb, api.ExecRequest{Shell: "sleep 3003 & echo hi"})
	if took := time.Since(began); took > 2*time.Second || res.Stdout != "hi\n" || !exited(res.ExitStatus, 0) {
		t.Errorf("over HTTP: stdout %q after %v, %+v", res.Stdout, took, res.ExitStatus)
	}
	if got := inside(t, sb, "sleep 300"); got != 3 {
		t.Errorf("%d of 3 background children go on", got)
	}
}
