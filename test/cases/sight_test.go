package cases

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

// hang is when a wait counts as endless, where the case itself names no time.
const hang = 30 * time.Second

// span chooses how long a test of something slow lasts: the case's own time with DSEC_LONG=1, else a shorter one.
func span(t testing.TB, short, full time.Duration) time.Duration {
	t.Helper()
	if os.Getenv("DSEC_LONG") == "1" {
		return full
	}
	t.Logf("runs for %v; with DSEC_LONG=1 for the case's %v", short, full)
	return short
}

// within bounds a step of a test by the time that the case allows.
func within(t testing.TB, limit time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

// run executes a command within the limit.
func run(t testing.TB, sb *libdsec.Sandbox, limit time.Duration, cmd libdsec.Cmd) *libdsec.Result {
	t.Helper()
	r, err := sb.Exec(within(t, limit), cmd)
	if err != nil {
		t.Fatalf("exec %q %q: %v", cmd.Argv, cmd.Shell, err)
	}
	return r
}

// inTime does f again until it takes less than the case allows: the machine may be busy, so the best time counts. What
// else is wrong fails the test at once. It returns how often f was done.
func inTime(t testing.TB, limit time.Duration, f func()) int {
	t.Helper()
	const tries = 8
	fastest := time.Hour
	for i := range tries {
		began := time.Now()
		f()
		if fastest = min(fastest, time.Since(began)); fastest < limit {
			return i + 1
		}
	}
	t.Errorf("it took %v, want less than %v", fastest, limit)
	return tries
}

// exited tells whether a command ended by itself with this code, and nothing else is said of it.
func exited(st api.ExitStatus, code int) bool {
	return st.ExitCode != nil && *st.ExitCode == code && st.Signal == "" && !st.TimedOut && !st.OOMKilled && !st.Cancelled && st.InfraError == ""
}

// inside counts the sandbox's processes whose arguments begin with prefix, as /proc in the sandbox shows them.
func inside(t testing.TB, sb *libdsec.Sandbox, prefix string) int {
	t.Helper()
	n := 0
	for line := range strings.Lines(testbed.Output(t, sb, `for d in /proc/[0-9]*; do tr '\0' ' ' 2>/dev/null <$d/cmdline; echo; done`)) {
		if strings.HasPrefix(line, prefix) {
			n++
		}
	}
	return n
}

// groups lists the processes of an instance's shards by v2 cgroup: "NUMBER/self" is the shard's own, "NUMBER/SANDBOX"
// holds a sandbox's init, "NUMBER/SANDBOX/EXEC" a command.
func groups(t testing.TB, n *testbed.Node) map[string][]int {
	t.Helper()
	found := make(map[string][]int)
	files, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		for line := range strings.Lines(string(raw)) {
			_, after, ok := strings.Cut(strings.TrimSpace(line), "0::/dsec-"+n.Instance()+"/shard-")
			if ok {
				pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
				if err != nil {
					t.Fatal(err)
				}
				found[after] = append(found[after], pid)
			}
		}
	}
	return found
}

// commands lists the processes of a sandbox other than its init, by cgroup, as the host sees them.
func commands(t testing.TB, n *testbed.Node, sb *libdsec.Sandbox) map[string][]int {
	t.Helper()
	found := make(map[string][]int)
	for group, pids := range groups(t, n) {
		if _, below, _ := strings.Cut(group, "/"); strings.HasPrefix(below, sb.ID()+"/") {
			found[below] = pids
		}
	}
	return found
}

// resident is the memory of a process in RAM that is its own: without files and shared memory, which others pay for.
func resident(t testing.TB, pid int) int64 {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "VmRSS:" {
			kib, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kib << 10
		}
	}
	t.Fatalf("process %d has no memory", pid)
	return 0
}

// execREST runs a command over plain HTTP and fails the test unless it started; the result is empty then.
func execREST(t testing.TB, n *testbed.Node, sb *libdsec.Sandbox, req api.ExecRequest) api.ExecResult {
	t.Helper()
	body, err := json.Marshal(req)
	if err != nil {
		t.Fatal(err)
	}
	resp := request(t, n, http.MethodPost, "/v1/sandboxes/"+sb.ID()+"/exec", bytes.NewReader(body))
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("exec %.200s: %s %v\n%.2000s", body, resp.Status, err, raw)
		return api.ExecResult{}
	}
	var res api.ExecResult
	if err := json.Unmarshal(raw, &res); err != nil {
		t.Fatal(err)
	}
	return res
}

func request(t testing.TB, n *testbed.Node, method, path string, body io.Reader) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(within(t, time.Minute), method, n.Endpoint+path, body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+n.Token)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}
