// Package mainjob holds the tests of what DSec is for, on real input: agents repair a bug in sandboxes, are graded in
// others, and nothing that they do to theirs earns them anything. It also holds documents to what they show.
package mainjob

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/need"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

func TestMain(m *testing.M) { testbed.Main(m) }

// hang is when something that takes seconds is given up.
const hang = 5 * time.Minute

// example builds examples/fix-a-bug once. The file is open, and has no name any more.
var example = sync.OnceValues(func() (*os.File, error) {
	dir, err := os.MkdirTemp("", "dsec-m")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	bin := filepath.Join(dir, "fix-a-bug")
	out, err := exec.Command("go", "build", "-o", bin, "github.com/dsec-io/dsec/examples/fix-a-bug").CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%w\n%s", err, out)
	}
	return os.Open(bin)
})

// row is a line of the table that the example prints.
type row struct {
	id, agent, reward, why string
	steps                  int
}

// job is a run of the example against a node.
type job struct {
	cmd *exec.Cmd
	out *bufio.Reader
	all bytes.Buffer // what was read of out
}

func begin(t *testing.T, n *testbed.Node, args ...string) *job {
	t.Helper()
	need.Image(t, "debian")
	bin, err := example()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	t.Cleanup(cancel)
	j := &job{cmd: exec.CommandContext(ctx, fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), bin.Fd()), args...)}
	j.cmd.Env = append(os.Environ(), "DSEC_ENDPOINT="+n.Endpoint, "DSEC_TOKEN="+n.Token)
	j.cmd.Stderr = os.Stderr
	out, err := j.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := j.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	j.out = bufio.NewReader(io.TeeReader(out, &j.all))
	return j
}

// end reads the table and returns it with the exit code.
func (j *job) end(t *testing.T) (rows []row, code int) {
	t.Helper()
	_, _ = io.Copy(io.Discard, j.out)
	err := j.cmd.Wait()
	_, table, ok := strings.Cut(j.all.String(), "\nID ")
	if !ok {
		t.Fatalf("no table (%v):\n%s", err, j.all.String())
	}
	table, _, _ = strings.Cut(table, "\n\n")
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) < 6 || f[0] == "AGENT" {
			continue
		}
		steps, err := strconv.Atoi(f[2])
		if err != nil {
			t.Errorf("table: %q: %v", line, err)
		}
		rows = append(rows, row{id: f[0], agent: f[1], steps: steps, reward: f[4], why: strings.Join(f[5:], " ")})
	}
	return rows, j.cmd.ProcessState.ExitCode()
}

// living are the sandboxes that haven't ended.
func living(t *testing.T, n *testbed.Node) []string {
	t.Helper()
	var ids []string
	for sb, err := range n.Client.List(t.Context(), libdsec.ListOptions{State: api.StateRunning}) {
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, sb.ID())
	}
	return ids
}

func TestRepairIsPaidAndCheatingIsNot(t *testing.T) {
	n := testbed.Start(t, testbed.Options{})
	const honest = 4
	j := begin(t, n, "-n", strconv.Itoa(honest))
	rows, code := j.end(t)
	if code != 0 {
		t.Errorf("exit code %d\n%s", code, j.all.String())
	}
	paid, cheats := 0, make(map[string]bool)
	for _, r := range rows {
		switch {
		case r.agent == "honest" && r.reward == "1" && r.steps == 5:
			paid++
		case r.agent == "honest":
			t.Errorf("honest agent: %+v, want reward 1 after 5 steps", r)
		case r.reward != "0" || r.why == "-":
			t.Errorf("%s: %+v, want reward 0 for a reason", r.agent, r)
		default:
			cheats[r.agent] = true
		}
	}
	if paid != honest {
		t.Errorf("%d honest agents were paid, want %d", paid, honest)
	}
	for _, name := range []string{
		"edits-tests", "replaces-python", "leaves-daemon", "sitecustomize", "shadows-unittest", "patches-unittest",
		"links-elsewhere", "links-to-zero", "hands-in-a-fifo", "hands-in-a-terabyte", "hands-in-a-folder", "hands-in-nothing",
	} {
		if !cheats[name] {
			t.Errorf("%s: wasn't tried, or wasn't refused", name)
		}
	}
	if left := living(t, n); len(left) > 0 {
		t.Errorf("sandboxes left: %q", left)
	}
}

func TestDeathOfShardsIsNeverBlamedOnAgents(t *testing.T) {
	n := testbed.Start(t, testbed.Options{})
	j := begin(t, n, "-n", "6", "-cheats", "2")
	stop := make(chan struct{})
	killed := make(chan int, 1) // its one result
	go func() {
		count := 0
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				count += killShards(n.Instance())
			case <-stop:
				killed <- count
				return
			}
		}
	}()
	rows, code := j.end(t)
	close(stop)
	if count := <-killed; count == 0 {
		t.Error("no shard was killed")
	} else {
		t.Logf("%d kills", count)
	}
	masked := 0
	for _, r := range rows {
		if r.reward == "masked" {
			masked++
		} else if (r.agent == "honest") != (r.reward == "1") {
			t.Errorf("%+v: want the right reward, or none", r)
		}
	}
	if len(rows) != 8 || masked == 0 || code == 0 {
		t.Errorf("%d rows, %d masked, exit code %d; want 8, at least 1, not 0\n%s", len(rows), masked, code, j.all.String())
	}
}

// killShards kills the shards of an instance with -9 and tells how many there were.
func killShards(instance string) int {
	killed := 0
	for _, root := range []string{"/sys/fs/cgroup/unified", "/sys/fs/cgroup"} {
		found, _ := filepath.Glob(filepath.Join(root, "dsec-"+instance, "shard-*", "self", "cgroup.procs"))
		for _, procs := range found {
			raw, err := os.ReadFile(procs)
			if err != nil {
				continue
			}
			for w := range strings.FieldsSeq(string(raw)) {
				if pid, err := strconv.Atoi(w); err == nil && unix.Kill(pid, unix.SIGKILL) == nil {
					killed++
				}
			}
		}
	}
	return killed
}

// TestDebianHasWhatAgentsNeed does, as an ordinary user of image debian, what agents do.
func TestDebianHasWhatAgentsNeed(t *testing.T) {
	n := testbed.Shared(t)
	need.Image(t, "debian")
	sb := n.Create(t, api.Spec{Image: "debian", User: "app"})
	for what, script := range map[string]string{
		"sudo":    `[ "$(id -un) $(sudo id -u) $(sudo -u nobody id -un)" = "app 0 nobody" ]`,
		"python3": `python3 -c 'import ssl, sqlite3, json, venv; print(1)'`,
		"git": `cd && git init -q r && cd r && git config user.name a && git config user.email a@example.org && echo 1 >f &&
			git add f && git commit -qm m && git log --oneline | grep -q m`,
		"gcc-make": `cd /tmp && echo 'int main(void) { return 7; }' >t.c && make -s t && { ./t; [ $? = 7 ]; }`,
		"curl": `cd && python3 -m http.server -b 127.0.0.1 8000 >/dev/null 2>&1 & server=$!
			curl -sf --retry 50 --retry-connrefused --retry-delay 1 http://127.0.0.1:8000/ >/dev/null; ok=$?; kill $server; exit $ok`,
		"ping": `ping -c 1 -W 5 127.0.0.1`,
		"bash": `bash -c '[[ $(ps -o pid= -p 1) -eq 1 ]]'`,
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			if r := testbed.Shell(t, sb, script); r.ExitCode == nil || *r.ExitCode != 0 {
				t.Errorf("%+v\n%s%s", r.ExitStatus, r.Stdout, r.Stderr)
			}
		})
	}
}
