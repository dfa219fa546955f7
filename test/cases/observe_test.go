package cases

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/aether/unixfd"
	"github.com/dsec-io/dsec/test/testbed"
)

// longRun tells whether the cases run at their full size, which takes minutes: DSEC_LONG=1.
func longRun() bool { return os.Getenv("DSEC_LONG") == "1" }

// sized is the size of a case: the full one in a long run.
func sized(usual, full int) int {
	if longRun() {
		return full
	}
	return usual
}

// hostProcess is a process as the host's /proc shows it.
type hostProcess int

func (p hostProcess) path(name string) string {
	return filepath.Join("/proc", strconv.Itoa(int(p)), name)
}

// fds counts the open descriptors.
func (p hostProcess) fds(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir(p.path("fd"))
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// memory reads a size in bytes from status: VmRSS, or VmHWM, which is its highest value so far.
func (p hostProcess) memory(t testing.TB, key string) int64 {
	t.Helper()
	raw, err := os.ReadFile(p.path("status"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		if after, ok := strings.CutPrefix(line, key+":"); ok {
			kB, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(after), " kB"), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kB << 10
		}
	}
	t.Fatalf("process %d has no %s", p, key)
	return 0
}

// journals is the memory of the files in memory that the process holds open.
func (p hostProcess) journals(t testing.TB) int64 {
	t.Helper()
	entries, err := os.ReadDir(p.path("fd"))
	if err != nil {
		t.Fatal(err)
	}
	var sum int64
	for _, e := range entries {
		path := p.path("fd/" + e.Name())
		target, err := os.Readlink(path)
		var st syscall.Stat_t
		if err == nil && strings.HasPrefix(target, "/memfd:journal") && syscall.Stat(path, &st) == nil {
			sum += st.Blocks * 512
		}
	}
	return sum
}

// nodeView looks at a node from outside, as root on its host.
type nodeView struct{ *testbed.Node }

func (n nodeView) process() hostProcess { return hostProcess(n.PID()) }

// groups are the node's cgroup paths that match, in all hierarchies of either cgroup version.
func (n nodeView) groups(t testing.TB, pattern string) []string {
	t.Helper()
	var all []string
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		paths, err := filepath.Glob(filepath.Join(root, "dsec-"+n.Instance(), pattern))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, paths...)
	}
	return all
}

// members are the processes of the cgroups that match.
func (n nodeView) members(t testing.TB, pattern string) []hostProcess {
	t.Helper()
	var all []hostProcess
	for _, path := range n.groups(t, filepath.Join(pattern, "cgroup.procs")) {
		raw, err := os.ReadFile(path)
		if err != nil {
			continue // it has just been removed
		}
		for field := range strings.FieldsSeq(string(raw)) {
			pid, err := strconv.Atoi(field)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, hostProcess(pid))
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// shards are the living shards.
func (n nodeView) shards(t testing.TB) []hostProcess { t.Helper(); return n.members(t, "shard-*/self") }

// shard is the node's only shard.
func (n nodeView) shard(t testing.TB) hostProcess {
	t.Helper()
	all := n.shards(t)
	if len(all) != 1 {
		t.Fatalf("%d shards, want one", len(all))
	}
	return all[0]
}

// pids is how many processes and threads the kernel counts in a sandbox, zombies too.
func (n nodeView) pids(t testing.TB, sandbox string) int {
	t.Helper()
	paths := n.groups(t, filepath.Join("shard-*", sandbox, "pids.current"))
	if len(paths) == 0 {
		t.Fatalf("no pids.current of sandbox %s", sandbox)
	}
	raw, err := os.ReadFile(paths[0])
	if err != nil {
		t.Fatal(err)
	}
	count, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil {
		t.Fatal(err)
	}
	return count
}

// disk is what the node's data folder takes. What goes while it looks doesn't count.
func (n nodeView) disk(t testing.TB) int64 {
	t.Helper()
	var sum int64
	err := filepath.WalkDir(n.Dir, func(path string, _ fs.DirEntry, err error) error {
		var st syscall.Stat_t
		if err == nil && syscall.Lstat(path, &st) == nil {
			sum += st.Blocks * 512
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

// figures are the node's metrics by name and labels, as its text shows them.
func (n nodeView) figures(t testing.TB) map[string]float64 {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, n.Endpoint+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	all := make(map[string]float64)
	for _, line := range readLines(t, resp.Body) {
		name, value, ok := strings.Cut(line, " ")
		if f, err := strconv.ParseFloat(value, 64); ok && err == nil {
			all[name] = f
		}
	}
	return all
}

// shardFigures are what a shard says of itself.
type shardFigures struct{ Goroutines, Processes, Boxes int }

// askShard asks the only shard on its own socket, where root gets an answer.
func (n nodeView) askShard(t testing.TB) shardFigures {
	t.Helper()
	var socks []string
	for _, dir := range []string{filepath.Join(n.Dir, "run"), filepath.Join("/run/dsec", n.Instance())} {
		found, err := filepath.Glob(filepath.Join(dir, "s[0-9]*.sock"))
		if err != nil {
			t.Fatal(err)
		}
		socks = append(socks, found...)
	}
	if len(socks) != 1 {
		t.Fatalf("sockets of shards: %q, want one", socks)
	}
	raw, err := unixfd.Dial(t.Context(), socks[0], unixfd.Options{})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := aether.Client(raw, aether.Options{Name: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	reply, err := aether.Unary(t.Context(), conn, aether.Open{Method: "stats"})
	if err != nil {
		t.Fatal(err)
	}
	var s shardFigures
	if err := json.Unmarshal(reply, &s); err != nil {
		t.Fatal(fmt.Errorf("stats %q: %w", reply, err))
	}
	return s
}
