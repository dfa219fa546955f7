package gates

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/linux/caps"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

// answer is what the kernel said to one attempt of the attacker.
type answer struct{ What, Err string }

func TestCommandIsBornWithNothing(t *testing.T) {
	// A node may be started by something that ignores signals: nohup, a shell's &, a daemon. No command may inherit that.
	signal.Ignore(unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGPIPE)
	b := newBed(t, testbed.Options{})
	signal.Reset(unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGPIPE)
	b.attackers(t)
	sb := b.Create(t, api.Spec{Image: "attacker"})
	// The aether's own limits are as high as can be.
	if got := testbed.Output(t, sb, "ulimit -Sn; ulimit -Sc"); got != "1024\n0" {
		t.Errorf("limits of descriptors and of core files: %q", got)
	}
	for name, cmd := range map[string]libdsec.Cmd{
		"plain":      {Argv: []string{"/attacker", "birth"}},
		"with-input": {Argv: []string{"/attacker", "birth"}, Stdin: strings.NewReader("x")},
		"as-a-user":  {Argv: []string{"/attacker", "birth"}, User: "app"},
	} {
		t.Run(name, func(t *testing.T) {
			var r struct {
				FDs      []string
				Nonblock []int
				Status   map[string]string
				Cgroup   string
				Visible  []string
			}
			run(t, sb, cmd, &r)
			stdin := "0 /dev/null"
			if cmd.Stdin != nil {
				stdin = "0 pipe"
			}
			if want := []string{stdin, "1 pipe", "2 pipe"}; fmt.Sprint(r.FDs) != fmt.Sprint(want) || len(r.Nonblock) > 0 {
				t.Errorf("descriptors %q, of which don't block %v; want %q", r.FDs, r.Nonblock, want)
			}
			all := fmt.Sprintf("%016x", caps.DefaultMask)
			own := all
			if cmd.User != "" {
				own = fmt.Sprintf("%016x", 0)
			}
			for key, want := range map[string]string{
				"SigIgn": "0000000000000000", "SigBlk": "0000000000000000", "Seccomp": "2", "NoNewPrivs": "0", "CapBnd": all, "CapEff": own,
				"CapPrm": own, "CapInh": "0000000000000000", "CapAmb": "0000000000000000", "PPid": "0", "TracerPid": "0",
			} {
				if got := r.Status[key]; got != want {
					t.Errorf("%s is %q, want %q", key, got, want)
				}
			}
			if len(r.Visible) != 2 {
				t.Errorf("processes %v, want the first and its own", r.Visible)
			}
			for line := range strings.Lines(r.Cgroup) {
				if strings.Contains(line, "dsec") || strings.Contains(line, "..") {
					t.Errorf("the cgroup shows the host: %q", line)
				}
			}
		})
	}
}

func TestRootOfASandboxReachesNobodyElse(t *testing.T) {
	b := newBed(t, testbed.Options{})
	b.attackers(t)
	sb, victim := b.Create(t, api.Spec{Image: "attacker"}), b.Create(t, api.Spec{})
	shard := b.shardOf(t, sb)
	p, got := start(t, victim, "echo up; exec sleep 1000", libdsec.StartOptions{})
	testbed.Until(t, hang, "the victim's output", func() bool { return got.len() > 0 })
	targets := map[string]int{
		"aether": b.process(filepath.Join(shard, "self")), "keeper": b.process("keeper"), "node": b.PID(), "this test": os.Getpid(),
		"own init, by the host's number": b.process(filepath.Join(shard, sb.ID())),
		"another's init":                 b.process(filepath.Join(shard, victim.ID())),
		"another's command":              b.process(filepath.Join(shard, victim.ID(), p.ID())),
	}
	for who, pid := range targets {
		before := facts(t, pid)
		var report []answer
		attack(t, sb, &report, "attack", strconv.Itoa(pid))
		if len(report) < 40 {
			t.Errorf("%s: only %d attempts", who, len(report))
		}
		for _, a := range report {
			// No such process, no such file; what looks for privilege first may refuse by that; what the filter lets nobody do.
			switch a.Err {
			case "ESRCH", "ENOENT", "EPERM", "ENOSYS":
			default:
				t.Errorf("%s: %s: %s", who, a.What, a.Err)
			}
			if strings.HasPrefix(a.What, "kill") && a.Err != "ESRCH" {
				t.Errorf("%s: %s: %s: it is seen", who, a.What, a.Err)
			}
		}
		if after := facts(t, pid); after != before {
			t.Errorf("%s was changed:\n%s\n%s", who, before, after)
		}
	}

	var report []answer
	attack(t, sb, &report, "files")
	for _, a := range report {
		if a.What == "chroot" {
			continue // within its own root, as in any container
		}
		switch a.Err {
		case "EPERM", "EACCES", "ENOENT", "EROFS", "ENOSYS", "ENXIO":
		default:
			t.Errorf("%s: %s", a.What, a.Err)
		}
	}
	// Its own init is PID 1 for it; all it can do to it is nothing.
	attack(t, sb, &report, "killall")
	for _, a := range report {
		if a.What != "kill -1" && a.What != "see 1" {
			t.Errorf("%s: %s", a.What, a.Err)
		}
	}
	answers(t, sb)
	answers(t, victim)
	for who, pid := range targets {
		if err := unix.Kill(pid, 0); err != nil {
			t.Errorf("%s is gone: %v", who, err)
		}
	}
}

// facts are what an attacker might have changed of a process.
func facts(t testing.TB, pid int) string {
	t.Helper()
	limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
	if err != nil {
		t.Fatal(err)
	}
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(pid, &set); err != nil {
		t.Fatal(err)
	}
	nice, err := unix.Getpriority(unix.PRIO_PROCESS, pid)
	if err != nil {
		t.Fatal(err)
	}
	score, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid))
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%snice %d, processors %v, score %s", limits, nice, set, score)
}

// load runs a command again and again until over is closed, and tells how long each took.
func load(t testing.TB, sb *libdsec.Sandbox, over <-chan struct{}) (took []time.Duration) {
	t.Helper()
	for {
		select {
		case <-over:
			return took
		default:
		}
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), hang)
		r, err := sb.Exec(ctx, libdsec.Cmd{Argv: []string{"true"}})
		cancel()
		if err != nil || r.ExitCode == nil || *r.ExitCode != 0 {
			t.Errorf("exec in a sandbox that nobody attacked: %v, %+v", err, r)
			return took
		}
		took = append(took, time.Since(began))
	}
}

// A tenant that stops whatever is born in his sandbox catches commands between their clone and their exec, when they share
// the aether's memory and its thread waits for them. That must cost nobody else anything, least of all while the
// collector, for which all threads must come to rest, is at work.
func TestStopSprayStallsNobody(t *testing.T) {
	b := newBed(t, testbed.Options{Hooks: true})
	b.attackers(t)
	sb, other := b.Create(t, api.Spec{Image: "attacker"}), b.Create(t, api.Spec{})
	shard := b.shardOf(t, sb)
	if b.shardOf(t, other) != shard {
		t.Fatal("two shards")
	}
	conn := b.aether(t, shard)
	const lasts, bound = 5 * time.Second, 4 * time.Second // the watchdog's last limit is 5 s
	before := stats(t, conn)
	p, err := sb.Start(t.Context(), libdsec.Cmd{Argv: []string{"/attacker", "spray", lasts.String()}}, libdsec.StartOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := aether.Unary(t.Context(), conn, aether.Open{Method: "gc.loop", Body: []byte(lasts.String())}); err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	var others []time.Duration
	var attacked atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() { others = load(t, other, over) })
	for range 3 {
		wg.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
				}
				ctx, cancel := context.WithTimeout(t.Context(), hang)
				_, err := sb.Exec(ctx, libdsec.Cmd{Argv: []string{"true"}, Timeout: 100 * time.Millisecond})
				cancel()
				if err != nil && !libdsec.IsCode(err, api.CodeNotStarted) {
					t.Errorf("exec in the attacked sandbox: %v", err)
				}
				attacked.Add(1)
			}
		})
	}
	caught := 0
	wg.Go(func() { caught = b.bornWithNothing(t, filepath.Join(shard, sb.ID()), over) })
	raw, readErr := io.ReadAll(p.Stdout())
	close(over)
	wg.Wait()
	if readErr != nil {
		t.Fatal(readErr)
	}
	var report struct {
		Stopped, Window int
		Open            []string
	}
	if err := json.Unmarshal(raw, &report); err != nil {
		t.Fatalf("%v: %s", err, raw)
	}
	after := stats(t, conn)
	worst := time.Duration(0)
	for _, d := range others {
		worst = max(worst, d)
	}
	t.Logf("%d stopped, %d of them before their exec, %d seen so from the host; %d helpers ended by the watchdog; %d collections; attacked: %d execs; other: %d execs, worst %v",
		report.Stopped, report.Window, caught, after.Stopped-before.Stopped, after.GCs-before.GCs, attacked.Load(), len(others), worst)
	if report.Stopped < 10 || after.GCs-before.GCs < 20 {
		t.Error("that was no attack")
	}
	if worst > bound || len(others) < 5 {
		t.Errorf("the other sandbox: %d execs, worst %v", len(others), worst)
	}
	for _, o := range report.Open {
		t.Errorf("a helper could be read: %s", o)
	}
	if after.Expired != before.Expired {
		t.Errorf("%d helpers were stuck until the watchdog's last limit", after.Expired-before.Expired)
	}
	answers(t, sb)
	answers(t, other)
}

// bornWithNothing looks at commands that were stopped before their exec, until over is closed: they must have no more
// descriptors than they will have after it. A helper can't be stopped by a tenant, so it isn't mistaken for one.
func (b *bed) bornWithNothing(t testing.TB, box string, over <-chan struct{}) (caught int) {
	t.Helper()
	for {
		select {
		case <-over:
			return caught
		default:
		}
		files, err := filepath.Glob(filepath.Join(b.groups, box, "*", "cgroup.procs"))
		if err != nil {
			t.Error(err)
			return caught
		}
		for _, file := range files {
			raw, err := os.ReadFile(file)
			if err != nil {
				continue // the group has gone
			}
			for pid := range strings.FieldsSeq(string(raw)) {
				if !unborn(pid) {
					continue
				}
				fds, err := os.ReadDir("/proc/" + pid + "/fd")
				if err != nil || !unborn(pid) {
					continue
				}
				caught++
				if len(fds) > 3 {
					t.Errorf("a command has %d descriptors before its exec", len(fds))
				}
			}
		}
	}
}

// unborn tells whether a process is stopped and still has the aether's name.
func unborn(pid string) bool {
	raw, err := os.ReadFile("/proc/" + pid + "/stat")
	name, after, _ := strings.Cut(string(raw), ") ")
	return err == nil && strings.HasPrefix(after, "T") && (strings.Contains(name, "(memfd:") || strings.Contains(name, "(dsec-aether"))
}
