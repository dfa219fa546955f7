package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/aether/unixfd"
	"github.com/dsec-io/dsec/test/testbed"
)

// hang is when something that takes milliseconds is given up.
const hang = 2 * time.Minute

// settling is how long everything may take to be as it was: things are tried again after ten seconds.
const settling = 45 * time.Second

// tally is how many there are of everything that a sandbox takes. It asks the kernel for what belongs to one instance:
// others are at work on the same machine.
type tally map[string]int

// count takes a tally. The descriptors are those of the processes that serve: the node, its keeper and its shards.
func count(n *testbed.Node) (tally, error) {
	c := tally{}
	processes, netns := map[string]bool{}, map[string]bool{}
	for _, pattern := range []string{"/sys/fs/cgroup/dsec-", "/sys/fs/cgroup/*/dsec-"} {
		roots, err := filepath.Glob(pattern + n.Instance())
		if err != nil {
			return nil, err
		}
		for _, root := range roots {
			_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
				if err != nil || !d.IsDir() {
					return nil // groups may go while it looks
				}
				c["cgroups"]++
				raw, _ := os.ReadFile(filepath.Join(path, "cgroup.procs"))
				for pid := range strings.FieldsSeq(string(raw)) {
					processes[pid] = true
					if base := filepath.Base(path); base == "self" || base == "keeper" {
						c["descriptors of "+base] += descriptors(pid)
					}
				}
				return nil
			})
		}
	}
	for pid := range processes {
		if ns, err := os.Readlink("/proc/" + pid + "/ns/net"); err == nil {
			netns[ns] = true
		}
	}
	c["processes"], c["network namespaces"] = len(processes), len(netns)
	c["descriptors of the node"] = descriptors(strconv.Itoa(n.PID()))
	children, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", n.PID()))
	for _, list := range children {
		raw, _ := os.ReadFile(list)
		c["children of the node"] += len(strings.Fields(string(raw)))
	}
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", n.PID()))
	if err != nil {
		return nil, err
	}
	c["mounts"] = strings.Count(string(mounts), "\n")
	for _, dir := range []string{"upper", "sandboxes"} {
		entries, err := os.ReadDir(filepath.Join(n.Dir, dir))
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			// An ended sandbox's record and events can be read for an hour.
			if dir == "upper" || strings.HasSuffix(e.Name(), ".tmp") {
				c["files in "+dir]++
			}
		}
	}
	return c, c.promised(n)
}

// descriptors counts those of a process, but for sockets, of which connections of clients come and go.
func descriptors(pid string) int {
	dir := "/proc/" + pid + "/fd"
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0
	}
	n := 0
	for _, e := range entries {
		if target, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil && !strings.HasPrefix(target, "socket:") &&
			!strings.HasPrefix(target, "/proc/") && !strings.HasSuffix(target, ".wal") {
			n++
		}
	}
	return n
}

// open lists what the processes that serve have open, by kind.
func open(n *testbed.Node) string {
	var out strings.Builder
	lists, _ := filepath.Glob("/sys/fs/cgroup/*/dsec-" + n.Instance() + "/*/self/cgroup.procs")
	more, _ := filepath.Glob("/sys/fs/cgroup/*/dsec-" + n.Instance() + "/keeper/cgroup.procs")
	seen := map[string]bool{}
	for _, list := range append(lists, more...) {
		raw, _ := os.ReadFile(list)
		for pid := range strings.FieldsSeq(string(raw)) {
			if seen[pid] {
				continue
			}
			seen[pid] = true
			kinds := map[string]int{}
			fds, _ := filepath.Glob("/proc/" + pid + "/fd/*")
			for _, fd := range fds {
				target, _ := os.Readlink(fd)
				kind, _, _ := strings.Cut(target, ":[")
				kinds[kind]++
			}
			fmt.Fprintf(&out, "  %s %s: %v\n", list, pid, kinds)
		}
	}
	return out.String()
}

// promised adds what the edge's admission has given away.
func (c tally) promised(n *testbed.Node) error {
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	defer cancel()
	t, err := unixfd.Dial(ctx, filepath.Join(n.Dir, "run", "edge.sock"), unixfd.Options{})
	if err != nil {
		return err
	}
	conn, err := aether.Client(t, aether.Options{Name: "chaos"})
	if err != nil {
		return err
	}
	defer conn.Close()
	raw, err := aether.Unary(ctx, conn, aether.Open{Method: "node.get", Project: "default"})
	if err != nil {
		return err
	}
	var node struct {
		Used struct {
			Sandboxes int     `json:"sandboxes"`
			MemoryMB  int     `json:"memory_mb"`
			CPU       float64 `json:"cpu"`
			PIDs      int     `json:"pids"`
		} `json:"used"`
	}
	if err := json.Unmarshal(raw, &node); err != nil {
		return err
	}
	c["promised sandboxes"], c["promised MiB"], c["promised pids"] = node.Used.Sandboxes, node.Used.MemoryMB, node.Used.PIDs
	c["promised milli-CPU"] = int(1000 * node.Used.CPU)
	return nil
}

// steady takes a tally once nothing goes on any more.
func steady(t testing.TB, n *testbed.Node) tally {
	t.Helper()
	before, err := count(n)
	if err != nil {
		t.Fatal(err)
	}
	for same, end := 0, time.Now().Add(hang); same < 5; {
		<-time.After(30 * time.Millisecond)
		now, err := count(n)
		if err != nil {
			t.Fatal(err)
		}
		if same++; !maps.Equal(now, before) {
			same = 0
		}
		if before = now; time.Now().After(end) {
			t.Fatalf("nothing comes to rest: %v", now)
		}
	}
	return before
}

// sameAgain waits until everything is as it was, but for what is named.
func sameAgain(t testing.TB, n *testbed.Node, before tally, what string, but ...string) {
	t.Helper()
	for end := time.Now().Add(settling); ; {
		now, err := count(n)
		if err != nil {
			t.Fatal(err)
		}
		var diff []string
		for k := range merged(now, before) {
			if fine := before[k] + slack(k); strings.HasPrefix(k, "descriptors") && now[k] <= fine {
				continue // fewer: what was kept open for the next one
			}
			if now[k] != before[k] && !slices.Contains(but, k) {
				diff = append(diff, fmt.Sprintf("%s: %d, were %d", k, now[k], before[k]))
			}
		}
		if len(diff) == 0 {
			return
		}
		if time.Now().After(end) {
			slices.Sort(diff)
			t.Errorf("%s: left behind: %s\nwhat is open:\n%s", what, strings.Join(diff, "; "), open(n))
			return
		}
		<-time.After(50 * time.Millisecond)
	}
}

// slack is how many descriptors more are no leak: etcd and the logs of a node open a few when they first need them.
func slack(what string) int {
	if what == "descriptors of the node" {
		return 4
	}
	return 0
}

func merged(a, b tally) tally {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}
