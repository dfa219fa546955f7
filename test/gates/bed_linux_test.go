// Package gates holds the tests that decide whether DSec may be relied on: what is killed at any time loses nothing, what
// runs in a sandbox reaches nothing outside of it, and what has ended leaves nothing behind.
//
// They look at a real node from outside: through the SDK, and at its processes and cgroups as root sees them.
package gates

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
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
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/aether/unixfd"
	"github.com/dsec-io/dsec/internal/image"
	"github.com/dsec-io/dsec/internal/image/imagetest"
	"github.com/dsec-io/dsec/internal/linux/proc"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

func TestMain(m *testing.M) { testbed.Main(m) }

// hang is when something that takes milliseconds is given up.
const hang = time.Minute

// bed is a node whose processes the test can find.
type bed struct {
	*testbed.Node

	groups string // its cgroup v2 directory
}

func newBed(t testing.TB, o testbed.Options) *bed {
	t.Helper()
	b := &bed{Node: testbed.Start(t, o)}
	for _, root := range []string{"/sys/fs/cgroup/unified", "/sys/fs/cgroup"} {
		if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err == nil {
			b.groups = filepath.Join(root, "dsec-"+b.Instance())
			return b
		}
	}
	t.Fatal("no cgroup v2")
	return nil
}

// tiny are the limits of one of many sandboxes.
func tiny() api.Resources {
	return api.Resources{CPU: new(0.25), MemoryMB: new(int64(64)), PIDs: new(int64(64))}
}

// many makes n sandboxes, several at a time.
func (b *bed) many(t testing.TB, n int) []*libdsec.Sandbox {
	t.Helper()
	boxes := make([]*libdsec.Sandbox, n)
	inParallel(4, n, func(i int) {
		sb, err := b.Client.Create(t.Context(), api.Spec{Image: "busybox", Resources: tiny()})
		if err != nil {
			t.Errorf("create: %v", err)
			return
		}
		boxes[i] = sb
	})
	if t.Failed() {
		t.FailNow()
	}
	return boxes
}

// inParallel calls f for 0…n-1 in some goroutines.
func inParallel(workers, n int, f func(i int)) {
	var wg sync.WaitGroup
	next := make(chan int)
	for range workers {
		wg.Go(func() {
			for i := range next {
				f(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
}

// shardOf is the group of the shard that a sandbox belongs to.
func (b *bed) shardOf(t testing.TB, sb *libdsec.Sandbox) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(b.groups, "shard-*", sb.ID()))
	if err != nil || len(found) != 1 {
		t.Fatalf("groups of %s: %q, %v", sb.ID(), found, err)
	}
	return filepath.Base(filepath.Dir(found[0]))
}

// process is the oldest process of a group, 0 if there is none.
func (b *bed) process(group string) int {
	raw, err := os.ReadFile(filepath.Join(b.groups, group, "cgroup.procs"))
	if err != nil {
		return 0
	}
	for w := range strings.FieldsSeq(string(raw)) {
		if pid, err := strconv.Atoi(w); err == nil {
			return pid
		}
	}
	return 0
}

// killed ends the process of a group with SIGKILL and returns its number.
func (b *bed) killed(t testing.TB, group string) int {
	t.Helper()
	pid := b.process(group)
	if pid == 0 {
		t.Fatalf("no process in %s", group)
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	return pid
}

// successor waits for the next process of a group.
func (b *bed) successor(t testing.TB, group string, old int) int {
	t.Helper()
	pid := 0
	testbed.Until(t, hang, "another process in "+group, func() bool {
		pid = b.process(group)
		return pid != 0 && pid != old
	})
	return pid
}

// living lists the processes in and below a group, each by number and start time. Its own members may come and go.
func (b *bed) living(t testing.TB, group string) map[string]int {
	t.Helper()
	all := make(map[string]int)
	err := filepath.WalkDir(filepath.Join(b.groups, group), func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || d.Name() != "cgroup.procs" {
			return err
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			return nil //nolint:nilerr // the group has gone meanwhile
		}
		for w := range strings.FieldsSeq(string(raw)) {
			pid, err := strconv.Atoi(w)
			if err != nil {
				return err
			}
			if start, err := proc.StartTime(pid); err == nil {
				all[fmt.Sprintf("%d/%d", pid, start)] = pid
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// goOn demands that all processes of before still live.
func (b *bed) goOn(t testing.TB, group string, before map[string]int) {
	t.Helper()
	now := b.living(t, group)
	for p := range before {
		if _, ok := now[p]; !ok {
			t.Errorf("process %s of %s has ended", p, group)
		}
	}
}

// logged counts how often the node's log has a text.
func (b *bed) logged(text string) int {
	raw, err := os.ReadFile(filepath.Join(b.Dir, "test.log"))
	if err != nil {
		return 0
	}
	return bytes.Count(raw, []byte(text))
}

// aether connects to a shard's own socket, as the edge does.
func (b *bed) aether(t testing.TB, shard string) *aether.Conn {
	t.Helper()
	path := filepath.Join(b.Dir, "run", "s"+strings.TrimPrefix(shard, "shard-")+".sock")
	raw, err := unixfd.Dial(t.Context(), path, unixfd.Options{})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := aether.Client(raw, aether.Options{Name: "gate"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// aetherStats is what a shard tells of itself.
type aetherStats struct {
	Goroutines, FDs, GCs int
	Stopped              int64 `json:"stopped_helpers"`
	Expired              int64 `json:"expired_helpers"`
	SysBytes             int64 `json:"sys_bytes"`
}

func stats(t testing.TB, conn *aether.Conn) (s aetherStats) {
	t.Helper()
	raw, err := aether.Unary(t.Context(), conn, aether.Open{Method: "stats"})
	if err == nil {
		err = json.Unmarshal(raw, &s)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// readKey reads a number of a "key value" file of the kernel.
func readKey(file, key string) (int, bool) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(raw)) {
		if value, ok := strings.CutPrefix(line, key+" "); ok {
			n, err := strconv.Atoi(strings.TrimSpace(value))
			return n, err == nil
		}
	}
	return 0, false
}

// attackerProgram builds the attacker, once.
var attackerProgram = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "dsec-attacker")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	out := filepath.Join(dir, "attacker")
	cmd := exec.Command("go", "build", "-o", out, "github.com/dsec-io/dsec/test/gates/attacker")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the attacker: %w\n%s", err, text)
	}
	raw, err := os.ReadFile(out)
	return string(raw), err
})

// attackers gives the node an image with the attacker in it.
func (b *bed) attackers(t testing.TB) {
	t.Helper()
	program, err := attackerProgram()
	if err != nil {
		t.Fatal(err)
	}
	imagetest.Build(t, filepath.Join(b.Dir, "images"), "attacker",
		imagetest.Busybox(t).With(imagetest.Tree{"attacker": {Mode: 0o755, Content: program}}),
		image.Config{Env: []string{"PATH=/bin:/sbin:/usr/bin:/usr/sbin"}})
}

// attack runs the attacker in a mode and decodes its report.
func attack(t testing.TB, sb *libdsec.Sandbox, report any, args ...string) {
	t.Helper()
	run(t, sb, libdsec.Cmd{Argv: append([]string{"/attacker"}, args...)}, report)
}

// run runs a command that reports in JSON.
func run(t testing.TB, sb *libdsec.Sandbox, cmd libdsec.Cmd, report any) {
	t.Helper()
	r, err := sb.Exec(t.Context(), cmd)
	if err != nil {
		t.Fatalf("%q: %v", cmd.Argv, err)
	}
	if r.ExitCode == nil || *r.ExitCode != 0 {
		t.Fatalf("%q: %+v\n%s%s", cmd.Argv, r.ExitStatus, r.Stdout, r.Stderr)
	}
	if err := json.Unmarshal(r.Stdout, report); err != nil {
		t.Fatalf("%q: %v\n%s", cmd.Argv, err, r.Stdout)
	}
}

// lines is a script that prints n lines, some of them to stderr too, takes a rest every now and then, and exits with code.
func lines(n, code int) string {
	return fmt.Sprintf(`i=0; while [ $i -lt %d ]; do echo line $i; case $i in *00) echo err $i >&2; sleep 0.01;; esac; i=$((i+1)); done; exit %d`, n, code)
}

// printed is what that script prints; end is the end of a line.
func printed(n int, end string) (stdout, stderr []byte) {
	for i := range n {
		stdout = fmt.Appendf(stdout, "line %d%s", i, end)
		if i%100 == 0 && i > 0 {
			stderr = fmt.Appendf(stderr, "err %d%s", i, end)
		}
	}
	return stdout, stderr
}

// tape collects a process's output.
type tape struct {
	mu     sync.Mutex
	stdout []byte
	stderr []byte
}

func (r *tape) handlers() libdsec.Handlers {
	return libdsec.Handlers{
		OnStdout: func(b []byte) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.stdout = append(r.stdout, b...)
			return nil
		},
		OnStderr: func(b []byte) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.stderr = append(r.stderr, b...)
			return nil
		},
	}
}

func (r *tape) len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.stdout)
}

// want compares what was collected.
func (r *tape) want(t testing.TB, what string, stdout, stderr []byte) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, pair := range map[string][2][]byte{"stdout": {r.stdout, stdout}, "stderr": {r.stderr, stderr}} {
		if got, want := pair[0], pair[1]; !bytes.Equal(got, want) {
			at := 0
			for at < min(len(got), len(want)) && got[at] == want[at] {
				at++
			}
			t.Errorf("%s: %s: %d bytes, want %d; they differ from byte %d on: %.60q, want %.60q",
				what, name, len(got), len(want), at, got[at:], want[at:])
		}
	}
}

// start starts a process that goes on without its caller, and collects its output.
func start(t testing.TB, sb *libdsec.Sandbox, script string, o libdsec.StartOptions) (*libdsec.Process, *tape) {
	t.Helper()
	r := &tape{}
	o.Detach, o.Handlers = true, r.handlers()
	p, err := sb.Start(t.Context(), libdsec.Cmd{Shell: script}, o)
	if err != nil {
		t.Fatalf("start %.80q: %v", script, err)
	}
	return p, r
}

// wantCode waits for a process's end and demands an exit code.
func wantCode(t testing.TB, what string, p *libdsec.Process, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	st, err := p.Wait(ctx)
	if err != nil || st.ExitCode == nil || *st.ExitCode != code || st.InfraError != "" {
		t.Errorf("%s: %v, %+v, want exit code %d", what, err, st, code)
	}
}

// answers demands that a sandbox runs commands.
func answers(t testing.TB, sb *libdsec.Sandbox) { t.Helper(); answersAfter(t, sb, 0) }

// answersAfter is answers while a death may not have been noticed yet: as many commands as losses may be lost with it, if
// that is what is said of them.
func answersAfter(t testing.TB, sb *libdsec.Sandbox, losses int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	for {
		r, err := sb.Exec(ctx, libdsec.Cmd{Argv: []string{"echo", sb.ID()}})
		switch {
		case err != nil:
			t.Errorf("exec in %s: %v", sb.ID(), err)
		case string(r.Stdout) == sb.ID()+"\n" && r.InfraError == "":
		case r.InfraError != "" && losses > 0:
			losses--
			continue
		default:
			t.Errorf("exec in %s: %+v, %q", sb.ID(), r.ExitStatus, r.Stdout)
		}
		return
	}
}
