package limits

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

// TestCase104ForkBomb: a sandbox that forks without end meets its limit and is told of, while its neighbour in the same
// shard works; it can be stopped as quickly as any other.
func TestCase104ForkBomb(t *testing.T) {
	t.Parallel()
	n := testbed.Shared(t)
	const pids = 200
	bomb, neighbour := n.Create(t, small(256, pids)), n.Create(t, small(64, 64))
	// Each ends after a while, so that the forking goes on at the limit.
	if _, err := bomb.Start(t.Context(), libdsec.Cmd{Shell: `b() { b | b & b | b & sleep 1; }; b`}, libdsec.StartOptions{Detach: true}); err != nil {
		t.Fatal(err)
	}
	testbed.Until(t, hang, "the limit is met", func() bool {
		u := usage(t, n, bomb)
		if u.PIDs > pids {
			t.Fatalf("%d processes with a limit of %d", u.PIDs, pids)
		}
		return u.PIDsRefused > 0
	})
	if e := event(t, bomb, "pids_limit"); number(e, "refused") < 1 || number(e, "total") < number(e, "refused") {
		t.Errorf("%+v", e)
	}
	if got := testbed.Output(t, neighbour, "for i in 1 2 3 4 5; do (echo $i) & wait; done"); got != "1\n2\n3\n4\n5" {
		t.Errorf("the neighbour says %q", got)
	}
	if u := usage(t, n, neighbour); u.PIDsRefused != 0 {
		t.Errorf("the neighbour was refused processes: %+v", u)
	}
	n.Create(t, small(64, 64)) // the node makes others
	begun := time.Now()
	if _, err := bomb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("stopped in %v", time.Since(begun))
	if d := time.Since(begun); d > 50*time.Second {
		t.Errorf("stopped in %v", d)
	}
	gone(t, n, bomb)
}

// TestCase104ThousandsOfThreads: programs with many threads work where the limit allows them, and are refused some where
// it doesn't, by create and by patch.
func TestCase104ThousandsOfThreads(t *testing.T) {
	t.Parallel()
	n := testbed.Shared(t)
	const threads = 2000
	sb := n.Create(t, small(512, threads+100))
	giveThreads(t, sb)
	script := "/threads " + strconv.Itoa(threads)
	if got := testbed.Output(t, sb, script); got != "true" {
		t.Errorf("%d threads: %q", threads, got)
	}
	if _, err := sb.Patch(t.Context(), api.Patch{Resources: &api.Resources{PIDs: new(int64(1000))}}); err != nil {
		t.Fatal(err)
	}
	if r := testbed.Shell(t, sb, script); r.ExitCode != nil && *r.ExitCode == 0 {
		t.Errorf("%d threads with a limit of 1000: %s", threads, r.Stdout)
	}
	if u := usage(t, n, sb); u.PIDsRefused < 1 {
		t.Errorf("%+v", u)
	}
	if got := testbed.Output(t, sb, "/threads 500"); got != "true" {
		t.Errorf("500 threads: %q", got)
	}
}

// giveThreads puts the program threads into a sandbox.
func giveThreads(t *testing.T, sb *libdsec.Sandbox) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "threads")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", path, "./threads")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	program, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sb.Files().WriteFile(t.Context(), "/threads", program, libdsec.WriteOptions{Mode: new(uint32(0o755))}); err != nil {
		t.Fatal(err)
	}
}

// TestTerminalsAreShared: the kernel has so many terminals for the whole machine; one sandbox can't take them all.
func TestTerminalsAreShared(t *testing.T) {
	t.Parallel()
	n := testbed.Shared(t)
	greedy, neighbour := n.Create(t, small(64, 64)), n.Create(t, small(64, 64))
	giveThreads(t, greedy)
	on := libdsec.StartOptions{TTY: &api.Size{Rows: 24, Cols: 80}}
	// The program ends, and its terminals with it, when nobody holds its input open.
	p, err := greedy.Start(t.Context(), libdsec.Cmd{Shell: "/threads terminals 1000"}, on)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(p.Stdout())
	var got strings.Builder
	for lines.Scan() && !strings.HasPrefix(lines.Text(), "got ") {
		got.WriteString(lines.Text() + "\n")
	}
	if lines.Text() != "got 255" { // and the one that it runs on
		t.Errorf("of 1000 terminals it %s\n%s", lines.Text(), got.String())
	}
	q, err := neighbour.Start(t.Context(), libdsec.Cmd{Shell: "tty"}, on)
	if err != nil {
		t.Fatal(err)
	}
	if out, err := io.ReadAll(q.Stdout()); err != nil || strings.TrimSpace(string(out)) != "/dev/pts/0" {
		t.Errorf("the neighbour's terminal is %q, %v", out, err)
	}
}

// TestCase65StopEndsWhatDoesntWantToEnd: whatever its processes do about it, a sandbox that is stopped is gone, groups and
// all, in a time that doesn't depend on them.
func TestCase65StopEndsWhatDoesntWantToEnd(t *testing.T) {
	t.Parallel()
	n := testbed.Shared(t)
	for how, spec := range map[string]struct{ script, state string }{
		"ignores-TERM":     {`trap '' TERM INT HUP QUIT; echo ready; while :; do sleep 1; done`, ""},
		"stopped":          {`sleep 1000 & kill -STOP $!; echo ready; kill -STOP $$`, "T"},
		"own-sessions":     {`for i in 1 2 3 4 5; do setsid sh -c 'trap "" TERM; setsid sleep 1000' & done; echo ready; wait`, ""},
		"starts-anew":      {`a() { trap '' TERM; sh -c 'sleep 0.01' ; }; echo ready; while :; do a & a; done`, ""},
		"as-start-process": {"", ""},
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			s := small(64, 128)
			if spec.script == "" {
				s.Command = []string{"sh", "-c", "trap '' TERM; while :; do sleep 1; done"}
			}
			sb := n.Create(t, s)
			if spec.script != "" {
				p, err := sb.Start(t.Context(), libdsec.Cmd{Shell: spec.script}, libdsec.StartOptions{})
				if err != nil {
					t.Fatal(err)
				}
				buf := make([]byte, len("ready"))
				if _, err := io.ReadFull(p.Stdout(), buf); err != nil || string(buf) != "ready" {
					said, rerr := io.ReadAll(p.Stderr())
					t.Fatalf("it says %q, %v; %s, %v", buf, err, said, rerr)
				}
			}
			begun := time.Now()
			if info, err := sb.Stop(t.Context()); err != nil || info.State != api.StateStopped {
				t.Errorf("%+v, %v", info, err)
			}
			if d := time.Since(begun); d > 50*time.Second {
				t.Errorf("stopped in %v", d)
			}
			gone(t, n, sb)
		})
	}
}

// groups are the cgroups of a sandbox, in every hierarchy.
func groups(t *testing.T, n *testbed.Node, sb *libdsec.Sandbox) []string {
	t.Helper()
	var found []string
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		list, err := filepath.Glob(root + "/dsec-" + n.Instance() + "/shard-*/" + sb.ID())
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, list...)
	}
	return found
}

// gone demands that nothing of a sandbox is left in the kernel.
func gone(t *testing.T, n *testbed.Node, sb *libdsec.Sandbox) {
	t.Helper()
	if left := groups(t, n, sb); len(left) > 0 {
		t.Errorf("groups are left: %v", left)
	}
}

// initOf finds a sandbox's first process.
func initOf(t *testing.T, n *testbed.Node, sb *libdsec.Sandbox) (pid int) {
	t.Helper()
	for _, g := range groups(t, n, sb) {
		raw, err := os.ReadFile(filepath.Join(g, "cgroup.procs"))
		if err != nil {
			t.Fatal(err)
		}
		for word := range strings.FieldsSeq(string(raw)) {
			status, err := os.ReadFile("/proc/" + word + "/status")
			if err != nil || !strings.Contains(string(status), "\nNSpid:\t"+word+"\t1\n") {
				continue
			}
			if pid, err = strconv.Atoi(word); err != nil {
				t.Fatal(err)
			}
			return pid
		}
	}
	t.Fatalf("no init of %s in its groups", sb.ID())
	return 0
}

// killInit ends a sandbox's first process.
func killInit(t *testing.T, n *testbed.Node, sb *libdsec.Sandbox) {
	t.Helper()
	p, err := os.FindProcess(initOf(t, n, sb))
	if err == nil {
		err = p.Kill()
	}
	if err != nil {
		t.Fatal(err)
	}
}
