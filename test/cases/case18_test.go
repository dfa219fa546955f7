package cases

import (
	"fmt"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/test/testbed"
)

// TestCase18ZombiesUseUpThePidLimit leaves 4,000 orphans to PID 1, in a long run 10,000; the limit is 512 processes.
func TestCase18ZombiesUseUpThePidLimit(t *testing.T) {
	t.Parallel()
	orphans := sized(4000, 10_000)
	n := nodeView{testbed.Shared(t)}
	sb := n.Create(t, api.Spec{Resources: api.Resources{CPU: new(2.0), PIDs: new(int64(512))}})
	testbed.Shell(t, sb, "true")
	var base int
	testbed.Until(t, time.Minute, "PID 1 alone", func() bool { base = n.pids(t, sb.ID()); return base == 1 })
	r := testbed.Shell(t, sb, fmt.Sprintf(`i=0; while [ $i -lt %d ]; do (sleep 0.01 &); i=$((i+1)); done; echo $i`, orphans))
	if want := fmt.Sprintf("%d\n", orphans); !exitsWith(r.ExitStatus, 0) || string(r.Stdout) != want || len(r.Stderr) > 0 {
		t.Errorf("%+v, stdout %q, stderr %.500q", r.ExitStatus, r.Stdout, r.Stderr)
	}
	// A zombie counts until it's reaped, so the kernel's number is the proof.
	testbed.Until(t, time.Minute, "the number of processes to come back to its base", func() bool { return n.pids(t, sb.ID()) == base })
	if got := testbed.Output(t, sb, `grep -l '^State:.Z' /proc/[0-9]*/status || true`); got != "" {
		t.Errorf("zombies: %s", got)
	}
}
