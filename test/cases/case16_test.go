package cases

import (
	"errors"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

// footprint is what a flood may not make grow.
type footprint struct{ node, shard, journals, disk int64 }

func (n nodeView) footprint(t testing.TB) footprint {
	t.Helper()
	shard := n.shard(t)
	return footprint{n.process().memory(t, "VmRSS"), shard.memory(t, "VmRSS"), shard.journals(t), n.disk(t)}
}

// TestCase16UnboundedOutput floods for 5 s, in a long run for 30 s. It has a node of its own, because it measures it.
func TestCase16UnboundedOutput(t *testing.T) {
	t.Parallel()
	n := nodeView{testbed.Start(t, testbed.Options{})}
	sb := n.Create(t, api.Spec{})
	testbed.Shell(t, sb, "yes | head -c 4m") // buffers and pools are there
	base, peak := n.footprint(t), footprint{}

	const most = 64 << 10
	var res *libdsec.Result
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		res, err = sb.Exec(t.Context(), libdsec.Cmd{
			Argv: []string{"yes"}, Timeout: time.Duration(sized(5, 30)) * time.Second, MaxOutput: most,
		})
	}()
	testbed.Until(t, 2*time.Minute, "the end of the flood", func() bool {
		now := n.footprint(t)
		peak = footprint{max(peak.node, now.node), max(peak.shard, now.shard), max(peak.journals, now.journals), max(peak.disk, now.disk)}
		select {
		case <-done:
			return true
		default:
			return false
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if !res.Truncated || !res.TimedOut || res.ExitCode != nil || res.Signal != "SIGKILL" {
		t.Errorf("result %+v; want truncated, timed out, killed", res.ExitStatus)
	}
	if got := len(res.Stdout); got > most || got < most/2 || res.StdoutTotal < 16<<20 || len(res.Stderr) != 0 {
		t.Errorf("%d of %d bytes recorded, and %d of stderr; want at most %d of very many, and none", got, res.StdoutTotal, len(res.Stderr), most)
	}
	t.Logf("flood of %d MiB: node %d→%d KiB, shard %d→%d KiB, journals at most %d KiB, disk %d→%d KiB", res.StdoutTotal>>20,
		base.node>>10, peak.node>>10, base.shard>>10, peak.shard>>10, peak.journals>>10, base.disk>>10, peak.disk>>10)
	for _, c := range []struct {
		what       string
		grew, most int64
	}{
		{"memory of the node", peak.node - base.node, 64 << 20},
		{"memory of the shard", peak.shard - base.shard, 32 << 20},
		{"output held in memory", peak.journals - base.journals, 8 << 20},
		{"disk", peak.disk - base.disk, 1 << 20},
	} {
		if c.grew > c.most {
			t.Errorf("%s grew by %d KiB under a flood of %d MiB, want at most %d KiB", c.what, c.grew>>10, res.StdoutTotal>>20, c.most>>10)
		}
	}
}

// TestCase16FloodIsControllable signals and ends commands that flood, whether or not somebody reads them.
func TestCase16FloodIsControllable(t *testing.T) {
	t.Parallel()
	sb := testbed.Shared(t).Create(t, api.Spec{})
	stuck := make(chan struct{})
	defer close(stuck)
	for name, handler := range map[string]func([]byte) error{
		"read":       func([]byte) error { return nil },
		"not-read":   nil,
		"stuck-read": func([]byte) error { <-stuck; return errors.New("the reader was stuck") },
	} {
		t.Run(name, func(t *testing.T) {
			p, err := sb.Start(t.Context(), libdsec.Cmd{
				Shell: `rm -f /caught; trap 'echo caught >/caught' USR1; echo ready >/ready; yes & while :; do wait; done`,
			}, libdsec.StartOptions{Handlers: libdsec.Handlers{OnStdout: handler}})
			if err != nil {
				t.Fatal(err)
			}
			if got := testbed.Output(t, sb, "until [ -s /ready ]; do usleep 1000; done; cat /ready; rm /ready"); got != "ready" {
				t.Errorf("a command beside it printed %q", got)
			}
			if err := p.Signal(t.Context(), "SIGUSR1"); err != nil {
				t.Fatal(err)
			}
			testbed.Output(t, sb, "until [ -s /caught ]; do usleep 1000; done")
			if err := p.Kill(t.Context()); err != nil {
				t.Fatal(err)
			}
			// Whoever is stuck can't be told of the end, so it's asked for beside it.
			testbed.Until(t, time.Minute, "the end", func() bool { return endedWith(t, sb, p.ID(), "SIGKILL") })
			testbed.Until(t, time.Minute, "the end of what it started", func() bool { return testbed.Output(t, sb, "pidof yes || true") == "" })
			if name == "stuck-read" {
				return
			}
			if st, err := p.Wait(t.Context()); err != nil || st.Signal != "SIGKILL" {
				t.Errorf("Wait() = %+v, %v", st, err)
			}
		})
	}
}

// endedWith tells whether the process list shows a process as ended by a signal.
func endedWith(t *testing.T, sb *libdsec.Sandbox, process, signal string) bool {
	t.Helper()
	list, err := sb.Processes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list {
		if p.ID == process {
			return !p.Running && p.Exit.Signal == signal
		}
	}
	return false
}
