package lifecycle

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

// pids lists the processes below a group of a node, as the kernel's v2 hierarchy has them.
func pids(t *testing.T, n *testbed.Node, group string) (all []int) {
	t.Helper()
	var files []string
	for _, root := range []string{"/sys/fs/cgroup/unified", "/sys/fs/cgroup"} {
		for _, below := range []string{"", "/*"} {
			found, err := filepath.Glob(filepath.Join(root, "dsec-"+n.Instance(), group) + below + "/cgroup.procs")
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, found...)
		}
	}
	for _, f := range files {
		raw, _ := os.ReadFile(f) // gone: nobody is in it
		for w := range strings.FieldsSeq(string(raw)) {
			if pid, err := strconv.Atoi(w); err == nil {
				all = append(all, pid)
			}
		}
	}
	return all
}

func mustCreate(t *testing.T, n *testbed.Node, spec api.Spec) *libdsec.Sandbox {
	t.Helper()
	sb, err := n.Client.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sb.Start(t.Context(), libdsec.Cmd{Shell: "(setsid sleep 1000 &); while :; do sleep 0.1; done"}, libdsec.StartOptions{}); err != nil {
		t.Fatal(err)
	}
	return sb
}

// wantEnded demands that a sandbox has been stopped for a reason.
func wantEnded(t *testing.T, n *testbed.Node, id, reason string) {
	t.Helper()
	sb, err := n.Client.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if info := sb.Info(); info.State != api.StateStopped || !strings.Contains(info.Reason, reason) {
		t.Errorf("%s is %s: %q, want stopped: %q", id, info.State, info.Reason, reason)
	}
}

// After the edge's death its sandboxes go on, but not for ever: the aether ends them when no edge has come for the limit,
// running or paused, also when it has died itself meanwhile; the record says so when one does come.
func TestSandboxesWithoutAnEdgeEndAtTheOrphanLimit(t *testing.T) {
	t.Parallel()
	n := testbed.Start(t, testbed.Options{Orphans: 3 * time.Second, Pool: 4})
	running, paused := mustCreate(t, n, labelled("orphan")), mustCreate(t, n, labelled("orphan"))
	if _, err := paused.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.Kill(t)
	died := time.Now()
	if len(pids(t, n, "shard-*/"+running.ID())) < 2 || len(pids(t, n, "shard-*/"+paused.ID())) < 2 {
		t.Error("sandboxes didn't outlive the edge")
	}
	shard := pids(t, n, "shard-*/self")
	for _, pid := range shard {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Error(err)
		}
	}
	testbed.Until(t, hang, "all sandboxes to end, those made ahead too", func() bool {
		left := pids(t, n, "shard-*")
		for _, pid := range pids(t, n, "shard-*/self") {
			left = without(left, pid)
		}
		if time.Since(died) > time.Minute {
			t.Fatalf("left: %v", left)
		}
		return len(left) == 0
	})
	if d := time.Since(died); d < 3*time.Second {
		t.Errorf("they ended after %v", d)
	}
	n.Restart(t)
	wantEnded(t, n, running.ID(), "no edge looked after it for 3s")
	wantEnded(t, n, paused.ID(), "no edge looked after it for 3s")
	fresh := mustCreate(t, n, labelled("orphan"))
	if _, err := fresh.Stop(t.Context()); err != nil {
		t.Error(err)
	}
}

func without(list []int, v int) []int {
	var out []int
	for _, x := range list {
		if x != v {
			out = append(out, x)
		}
	}
	return out
}

// A sandbox's longest time ends it without an edge, too; the others go on.
func TestLongestTimeEndsASandboxWithoutAnEdge(t *testing.T) {
	t.Parallel()
	n := testbed.Start(t, testbed.Options{Pool: 4})
	other := mustCreate(t, n, labelled("longest"))
	spec := labelled("longest")
	spec.TTL.MaxS = new(int64(6))
	short := mustCreate(t, n, spec)
	n.Kill(t)
	testbed.Until(t, hang, "its end", func() bool { return len(pids(t, n, "shard-*/"+short.ID())) == 0 })
	if len(pids(t, n, "shard-*/"+other.ID())) < 2 {
		t.Error("the other sandbox has ended, too")
	}
	n.Restart(t)
	wantEnded(t, n, short.ID(), "its longest time was over")
	sb, err := n.Client.Get(t.Context(), other.ID())
	if err != nil {
		t.Fatal(err)
	}
	if r, err := sb.Exec(t.Context(), libdsec.Cmd{Argv: []string{"echo", "on"}}); err != nil || string(r.Stdout) != "on\n" {
		t.Errorf("exec in the other: %+v, %v", r, err)
	}
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Error(err)
	}
}
