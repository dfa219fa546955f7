package lifecycle

import (
	"bufio"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

// initOf finds the first process of a sandbox.
func initOf(t *testing.T, n *testbed.Node, id string) (pid string) {
	t.Helper()
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		found, err := filepath.Glob(root + "/dsec-" + n.Instance() + "/shard-*/" + id + "/cgroup.procs")
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range found {
			raw, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			for pid := range strings.FieldsSeq(string(raw)) {
				if s, err := os.ReadFile("/proc/" + pid + "/status"); err == nil && strings.Contains(string(s), "\nNSpid:\t"+pid+"\t1\n") {
					return pid
				}
			}
		}
	}
	t.Fatalf("no init of %s", id)
	return ""
}

// namespaces opens those of a sandbox, so that the kernel gives no other one the same number, and tells their names, and
// the ids that it maps.
func namespaces(t *testing.T, n *testbed.Node, id string) (names map[string]bool, ids string) {
	t.Helper()
	pid := initOf(t, n, id)
	names = map[string]bool{}
	for _, kind := range []string{"user", "mnt", "pid", "net", "ipc", "uts", "cgroup"} {
		path := "/proc/" + pid + "/ns/" + kind
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		name, err := os.Readlink(path)
		if err != nil {
			t.Fatal(err)
		}
		names[name] = true
	}
	raw, err := os.ReadFile("/proc/" + pid + "/uid_map")
	if err != nil {
		t.Fatal(err)
	}
	return names, strings.Fields(string(raw))[1]
}

// TestNothingIsSharedBetweenProjects: what is made ahead and what is used again stays within a project. No namespace and
// no id is seen in the sandboxes of two, however many come and go.
func TestNothingIsSharedBetweenProjects(t *testing.T) {
	t.Parallel()
	n := testbed.Start(t, testbed.Options{})
	const rounds, most, at = 3, 30, 6
	for _, project := range []string{"pool-a", "pool-b"} {
		if _, err := n.Client.CreateProject(t.Context(), api.ProjectSpec{Name: project}); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[string]string{} // whose it was
	again := 0
	for i := 0; i < rounds || again == 0 && i < most; i++ { // what comes back may take its time
		for _, project := range []string{"", "pool-a", "pool-b"} {
			c := n.Client
			if project != "" {
				c = c.InProject(project)
			}
			var boxes []*libdsec.Sandbox
			for range at {
				sb, err := c.Create(t.Context(), labelled("pools"))
				if err != nil {
					t.Fatal(err)
				}
				boxes = append(boxes, sb)
				again += owned(t, n, sb, seen, fmt.Sprintf("project %q", project))
			}
			for _, sb := range boxes {
				if _, err := sb.Stop(t.Context()); err != nil {
					t.Error(err)
				}
			}
		}
	}
	if again == 0 {
		t.Error("no user namespace was used again within its project: there is no pool to be tested")
	}
}

// owned compares what a sandbox has with what those of others had, and tells how many of its user namespaces its own project
// has had before.
func owned(t *testing.T, n *testbed.Node, sb *libdsec.Sandbox, seen map[string]string, project string) (again int) {
	t.Helper()
	names, ids := namespaces(t, n, sb.ID())
	names["ids from "+ids] = true
	for name := range names {
		owner, had := seen[name]
		if had && owner != project {
			t.Errorf("%s of %s was that of %s", name, project, owner)
		}
		if had && strings.HasPrefix(name, "user:") {
			again++
		}
		seen[name] = project
	}
	return again
}

// promised reads how much of each kind the node has promised to sandboxes.
func promised(t *testing.T, n *testbed.Node) map[string]float64 {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, n.Endpoint+"/metrics", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+n.Token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	used := map[string]float64{}
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		var kind, value string
		if _, err := fmt.Sscanf(strings.NewReplacer(`{kind="`, " ", `"}`, "").Replace(lines.Text()), "dsec_capacity_used %s %s", &kind, &value); err != nil {
			continue
		}
		if used[kind], err = strconv.ParseFloat(value, 64); err != nil {
			t.Fatal(err)
		}
	}
	if len(used) != 4 {
		t.Fatalf("%d: what is promised: %v", resp.StatusCode, used)
	}
	return used
}
