package cases

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

// handles are what a command may not leave behind.
type handles struct{ nodeFDs, nodeGoroutines, shardFDs, shardGoroutines, processes, pids int }

func (n nodeView) handles(t testing.TB, sandbox string) handles {
	t.Helper()
	s := n.askShard(t)
	return handles{
		nodeFDs: n.process().fds(t), nodeGoroutines: int(n.figures(t)["go_goroutines"]),
		shardFDs: n.shard(t).fds(t), shardGoroutines: s.Goroutines, processes: s.Processes, pids: n.pids(t, sandbox),
	}
}

// within tells whether h is at most slack over base in everything.
func (h handles) within(base handles, slack int) bool {
	return h.nodeFDs <= base.nodeFDs+slack && h.nodeGoroutines <= base.nodeGoroutines+slack &&
		h.shardFDs <= base.shardFDs+slack && h.shardGoroutines <= base.shardGoroutines+slack &&
		h.processes <= base.processes && h.pids <= base.pids
}

// TestCase20NothingLeaksPerExec runs 5,000 commands, half of them missing, and 500 that are cancelled. It has a node of
// its own, because it counts what that holds.
func TestCase20NothingLeaksPerExec(t *testing.T) {
	t.Parallel()
	n := nodeView{testbed.Start(t, testbed.Options{})}
	sb := n.Create(t, api.Spec{Resources: api.Resources{CPU: new(2.0)}})
	run := func(execs, cancels int) {
		var wg sync.WaitGroup
		defer wg.Wait()
		const workers = 8
		for w := range workers {
			wg.Go(func() {
				for i := w; i < execs; i += workers {
					if i%2 == 0 {
						_, err := sb.Exec(t.Context(), libdsec.Cmd{Argv: []string{"/missing/program"}})
						wantRefused(t, err, api.CodeCommandNotFound)
					} else if r, err := sb.Exec(t.Context(), libdsec.Cmd{Argv: []string{"true"}}); err != nil || !exitsWith(r.ExitStatus, 0) {
						t.Errorf("true: %+v, %v", r, err)
					}
				}
				for i := w; i < cancels; i += workers {
					cancelOne(t, sb)
				}
			})
		}
	}
	run(100, 20) // pools and connections are there
	var base handles
	testbed.Until(t, time.Minute, "rest before the start", func() bool {
		base = n.handles(t, sb.ID())
		return base.processes == 0 && base.pids == 1
	})
	run(5000, 500)
	var now handles
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		if now = n.handles(t, sb.ID()); now.within(base, 8) {
			break
		}
	}
	t.Logf("before %+v, after %+v", base, now)
	if !now.within(base, 8) {
		t.Errorf("grew from %+v to %+v", base, now)
	}
	if left := n.groups(t, "shard-*/"+sb.ID()+"/*/cgroup.procs"); len(left) > 0 {
		t.Errorf("%d cgroups of commands are left: %.500q", len(left), left)
	}
}

// cancelOne cancels a command at some moment before, at or after its start.
func cancelOne(t *testing.T, sb *libdsec.Sandbox) {
	cause := errors.New("cancelled by the test")
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Duration(rand.IntN(40_000))*time.Microsecond, cause)
	defer cancel()
	if r, err := sb.Exec(ctx, libdsec.Cmd{Shell: "sleep 1000 & sleep 1000"}); !errors.Is(err, cause) {
		t.Errorf("a cancelled command: %+v, %v", r, err)
	}
}
