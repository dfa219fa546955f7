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
	left := inTime(t, 2*time.Second, func() {
		r := run(t, sb, hang, libdsec.Cmd{Shell: "sleep 3001 & echo hi"})
		if string(r.Stdout) != "hi\n" || !exited(r.ExitStatus, 0) || !r.LeftProcesses {
			t.Errorf("stdout %q, %+v; want hi, exit 0 and left processes", r.Stdout, r.ExitStatus)
		}
	})
	// A child that hasn't come to its exec yet has the shell's arguments.
	testbed.Until(t, hang, "all background children", func() bool { return inside(t, sb, "sleep 3001 ") == left })

	// The same of a command that takes longer than a moment, and over plain HTTP.
	r := run(t, sb, hang, libdsec.Cmd{Shell: "sleep 3002 & sleep 0.3; echo hi"})
	if string(r.Stdout) != "hi\n" || !exited(r.ExitStatus, 0) {
		t.Errorf("longer command: stdout %q, %+v", r.Stdout, r.ExitStatus)
	}
	left += 1 + inTime(t, 2*time.Second, func() {
		res := execREST(t, n, sb, api.ExecRequest{Shell: "sleep 3003 & echo hi"})
		if res.Stdout != "hi\n" || !exited(res.ExitStatus, 0) {
			t.Errorf("over HTTP: stdout %q, %+v", res.Stdout, res.ExitStatus)
		}
	})
	testbed.Until(t, hang, "all background children", func() bool { return inside(t, sb, "sleep 300") == left })
}
