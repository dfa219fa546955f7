package gates

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/leakcheck"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

// counts is what the kernel counts for a node at rest.
type counts struct {
	mounts, groups, netns, processes int
	descriptors                      map[string]int // of node, keeper and shard
	ready                            int            // descriptors of the node that are namespaces and roots kept ready
	goroutines                       int            // of the node
}

// take counts now. Other instances on this machine are left out where the kernel's lists name them.
func (b *bed) take(t testing.TB, shard string) counts {
	t.Helper()
	s, err := leakcheck.Take()
	if err != nil {
		t.Fatal(err)
	}
	own := s.Only(b.Instance())
	c := counts{
		mounts: len(s.Mounts), groups: len(own.Cgroups), processes: len(own.Processes), netns: b.netns(t),
		descriptors: make(map[string]int), goroutines: b.goroutines(t),
	}
	for name, pid := range map[string]int{"node": b.PID(), "keeper": b.process("keeper"), "shard": b.process(filepath.Join(shard, "self"))} {
		fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		if err != nil {
			t.Fatal(err)
		}
		c.descriptors[name] = len(fds)
		if name != "node" {
			continue
		}
		for _, fd := range fds {
			target, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, fd.Name()))
			if strings.HasPrefix(target, "user:") || target == "/" {
				c.ready++
			}
		}
	}
	return c
}

// netns counts network namespaces with a process in them that is in no other instance's cgroup.
func (b *bed) netns(t testing.TB) int {
	t.Helper()
	all := make(map[string]bool)
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		group, err := os.ReadFile(filepath.Join(dir, "cgroup"))
		if err != nil || strings.Contains(strings.ReplaceAll(string(group), "/dsec-"+b.Instance(), ""), "/dsec-") {
			continue
		}
		if ns, err := os.Readlink(filepath.Join(dir, "ns/net")); err == nil {
			all[ns] = true
		}
	}
	return len(all)
}

// goroutines asks the node's metrics.
func (b *bed) goroutines(t testing.TB) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, b.Endpoint+"/metrics", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+b.Token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "go_goroutines "); ok {
			n, err := strconv.Atoi(strings.TrimSpace(value))
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("no goroutines in the metrics: %d %.200s", resp.StatusCode, text)
	return 0
}

// above lists what there is more of than before. What the runtime makes for its own use may differ a little.
func (c counts) above(before counts) []string {
	const slack, pool = 2, 16
	var out []string
	add := func(what string, now, was int) {
		if now > was {
			out = append(out, fmt.Sprintf("%s: %d, were %d", what, now, was))
		}
	}
	add("mounts", c.mounts, before.mounts)
	add("cgroup directories", c.groups, before.groups)
	add("network namespaces", c.netns, before.netns)
	add("processes", c.processes, before.processes)
	add("descriptors of the node", c.descriptors["node"]-c.ready, before.descriptors["node"]-before.ready)
	add("namespaces and roots kept ready", c.ready, before.ready+pool)
	add("descriptors of the keeper", c.descriptors["keeper"], before.descriptors["keeper"])
	add("descriptors of the shard", c.descriptors["shard"], before.descriptors["shard"])
	add("goroutines of the node", c.goroutines, before.goroutines+slack)
	slices.Sort(out)
	return out
}

// life is one sandbox from its beginning to its end.
func (b *bed) life(t testing.TB, n int) {
	t.Helper()
	spec := api.Spec{Image: "busybox", Resources: tiny()}
	if n%20 == 7 {
		spec.Isolation = "own" // a shard lives and ends with it
	}
	sb, err := b.Client.Create(t.Context(), spec)
	if err != nil {
		t.Errorf("life %d: %v", n, err)
		return
	}
	var r *libdsec.Result
	script := "echo hi; exit 7"
	switch n % 4 {
	case 1: // what is left running must go with the sandbox
		script = "sleep 1000 >/dev/null 2>&1 & setsid sleep 1000 >/dev/null 2>&1 & echo hi; exit 7"
	case 2:
		if _, err := sb.Start(t.Context(), libdsec.Cmd{Argv: []string{"sleep", "1000"}}, libdsec.StartOptions{Detach: true, TTY: &api.Size{Rows: 24, Cols: 80}}); err != nil {
			t.Errorf("life %d: %v", n, err)
		}
	}
	if r, err = sb.Exec(t.Context(), libdsec.Cmd{Shell: script}); err != nil || r.ExitCode == nil || *r.ExitCode != 7 || string(r.Stdout) != "hi\n" {
		t.Errorf("life %d: %v, %+v", n, err, r)
	}
	if _, err := sb.Stop(context.WithoutCancel(t.Context())); err != nil {
		t.Errorf("life %d: %v", n, err)
	}
}

func TestFiveHundredLivesLeaveNothing(t *testing.T) {
	b := newBed(t, testbed.Options{})
	stays := b.Create(t, api.Spec{}) // keeps the shard whose descriptors are counted
	shard := b.shardOf(t, stays)
	const warm, lives = 40, 500
	inParallel(4, warm, func(i int) { b.life(t, i) })
	http.DefaultClient.CloseIdleConnections()
	// The number of slots kept ready comes to rest when it no longer changes.
	before := b.take(t, shard)
	for equal := 0; equal < 20; {
		now := b.take(t, shard)
		if equal++; len(now.above(before))+len(before.above(now)) > 0 {
			equal = 0
		}
		before = now
	}
	began := time.Now()
	inParallel(4, lives, func(i int) { b.life(t, i) })
	t.Logf("%d lives in %v; before: %+v", lives, time.Since(began), before)
	var after counts
	// Long enough for what was made ahead to be given up: on a machine that is busy that may have been before, too.
	deadline := time.Now().Add(4 * time.Minute)
	for after = b.take(t, shard); len(after.above(before)) > 0 && time.Now().Before(deadline); {
		after = b.take(t, shard)
	}
	for _, more := range after.above(before) {
		t.Error(more)
	}
	t.Logf("after: %+v", after)
	answers(t, stays)
}
