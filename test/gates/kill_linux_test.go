package gates

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/linux/proc"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

// restartBound is far more than what a new aether may take to answer, on a machine that has other things to do, and less
// than any time after which something is given up; what it took is logged.
const restartBound = 4 * time.Second

// post sends an exec as one plain request.
func (b *bed) post(ctx context.Context, sb *libdsec.Sandbox, body string) (status int, answer string, err error) {
	url := b.Endpoint + "/v1/sandboxes/" + sb.ID() + "/exec"
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	req.Header.Set("Authorization", "Bearer "+b.Token)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(raw), err
}

func TestKilledNodeLosesNothing(t *testing.T) {
	b := newBed(t, testbed.Options{})
	const count, code, size = 50, 37, 6000
	boxes := b.many(t, count)
	wantOut, wantErr := printed(size, "\n")

	// One command ends while the node is away, one after it is back.
	ends, first := start(t, boxes[0], lines(size, code), libdsec.StartOptions{})
	stays, _ := start(t, boxes[1], "until [ -e /tmp/go ]; do sleep 0.02; done; "+lines(size, code+1), libdsec.StartOptions{})
	testbed.Until(t, hang, "its first output", func() bool { return first.len() > 0 })
	// And one is a plain request that waits for its answer.
	inFlight := make(chan error, 1) // its one result
	go func() {
		status, answer, err := b.post(context.WithoutCancel(t.Context()), boxes[2], `{"argv":["sleep","1000"]}`)
		if err == nil {
			err = fmt.Errorf("answered %d %s", status, answer)
		} else {
			err = nil
		}
		inFlight <- err
	}()
	shard := b.shardOf(t, boxes[2])
	testbed.Until(t, hang, "the request's command", func() bool { return len(b.living(t, filepath.Join(shard, boxes[2].ID()))) == 2 })

	var ids, inits []string
	for _, sb := range boxes {
		ids = append(ids, sb.ID())
		inits = append(inits, filepath.Join(b.shardOf(t, sb), sb.ID()))
	}
	before := map[string]int{}
	for _, g := range inits {
		before[g] = b.process(g)
	}
	keeper, aetherd := b.process("keeper"), b.process(filepath.Join(shard, "self"))
	seen := first.len()
	b.Kill(t)
	if err := <-inFlight; err != nil {
		t.Errorf("the request in flight: %v", err)
	}
	group := filepath.Join(b.groups, b.shardOf(t, boxes[0]), boxes[0].ID(), ends.ID())
	testbed.Until(t, hang, "the command's end without a node", func() bool { _, err := os.Stat(group); return err != nil })
	// Whoever asked for it is gone, so its command is too, and needs no node for that.
	testbed.Until(t, hang, "the end of the command without a caller", func() bool { return len(b.living(t, inits[2])) == 1 })
	began := time.Now()
	b.Restart(t)
	took := time.Since(began)

	inParallel(4, count, func(i int) { answers(t, b.Client.Sandbox(ids[i])) })
	t.Logf("the node was back after %v, all %d answered after %v", took, count, time.Since(began))
	for _, g := range inits {
		if pid := b.process(g); pid != before[g] {
			t.Errorf("init of %s is %d, was %d", g, pid, before[g])
		}
	}
	if k, a := b.process("keeper"), b.process(filepath.Join(shard, "self")); k != keeper || a != aetherd {
		t.Errorf("keeper and aether are %d and %d, were %d and %d", k, a, keeper, aetherd)
	}
	again := func(sb, process string, offset int) (*libdsec.Process, *tape) {
		r := &tape{}
		p, err := b.Client.Sandbox(sb).Attach(t.Context(), process, libdsec.AttachOptions{StdoutOffset: int64(offset), Handlers: r.handlers()})
		if err != nil {
			t.Fatalf("attach: %v", err)
		}
		return p, r
	}
	p, got := again(ids[0], ends.ID(), 0)
	wantCode(t, "ended without a node", p, code)
	got.want(t, "ended without a node", wantOut, wantErr)
	p, got = again(ids[0], ends.ID(), seen)
	wantCode(t, "from an offset", p, code)
	got.want(t, "from an offset", wantOut[seen:], wantErr)
	p, got = again(ids[1], stays.ID(), 0)
	testbed.Output(t, b.Client.Sandbox(ids[1]), "touch /tmp/go")
	wantCode(t, "ended under the new node", p, code+1)
	got.want(t, "ended under the new node", wantOut, wantErr)
}

// pair is two sandboxes of one shard with a process of their own each, and one in a shard of its own.
func (b *bed) pair(t testing.TB) (one, two, other *libdsec.Sandbox) {
	t.Helper()
	one, two = b.Create(t, api.Spec{}), b.Create(t, api.Spec{})
	other = b.Create(t, api.Spec{Isolation: "own"})
	for _, sb := range []*libdsec.Sandbox{one, two, other} {
		start(t, sb, "sleep 1000", libdsec.StartOptions{})
		testbed.Output(t, sb, "setsid sleep 1000 >/dev/null 2>&1 &") // nobody's but the sandbox's
	}
	if b.shardOf(t, one) != b.shardOf(t, two) || b.shardOf(t, one) == b.shardOf(t, other) {
		t.Fatal("not the shards that this test is about")
	}
	return one, two, other
}

// withInput runs a command whose input nobody can send again, and gives its result when it is there.
func withInput(t testing.TB, sb *libdsec.Sandbox) <-chan *libdsec.Result {
	t.Helper()
	testbed.Shell(t, sb, "rm -f /tmp/input") // of the one before
	in, out := io.Pipe()
	t.Cleanup(func() { _ = out.Close() })
	done := make(chan *libdsec.Result, 1) // one result
	go func() {
		r, err := sb.Exec(context.WithoutCancel(t.Context()), libdsec.Cmd{Shell: "cat >/tmp/input", Stdin: in})
		if err != nil {
			t.Errorf("command with an input: %v", err)
		}
		done <- r
	}()
	if _, err := out.Write([]byte("first")); err != nil {
		t.Fatal(err)
	}
	testbed.Until(t, hang, "the input in the sandbox", func() bool {
		return string(testbed.Shell(t, sb, "cat /tmp/input").Stdout) == "first"
	})
	return done
}

func wantLost(t testing.TB, what string, done <-chan *libdsec.Result) {
	t.Helper()
	select {
	case r := <-done:
		if r == nil || r.InfraError == "" || r.ExitCode != nil || r.Signal != "" {
			t.Errorf("%s: %+v, want an infrastructure error", what, r)
		}
	case <-time.After(hang):
		t.Errorf("%s: nobody was told of its loss", what)
	}
}

// running counts the processes that run, short ones not among them.
func running(t testing.TB, sb *libdsec.Sandbox) (n int) {
	t.Helper()
	list, err := sb.Processes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list {
		if p.Running {
			n++
		}
	}
	if n > 2 {
		t.Fatalf("more than can be: %+v", list)
	}
	return n
}

func TestKilledShardLosesNothingThatIsKept(t *testing.T) {
	b := newBed(t, testbed.Options{})
	one, two, other := b.pair(t)
	self := filepath.Join(b.shardOf(t, one), "self")
	const rounds, size, code = 5, 3000, 21
	wantOut, wantErr := printed(size, "\n")
	for round := range rounds {
		p, got := start(t, one, lines(size, code), libdsec.StartOptions{})
		testbed.Until(t, hang, "its first output", func() bool { return got.len() > 0 })
		// A plain exec whose output is on its way is followed into the next aether, too.
		plain := make(chan *libdsec.Result, 1) // one result
		seen := fmt.Sprintf("/tmp/seen%d", round)
		go func() {
			script := strings.Replace(lines(size, code), "; exit", "; until [ -e "+seen+" ]; do sleep 0.02; done; exit", 1)
			r, err := two.Exec(context.WithoutCancel(t.Context()), libdsec.Cmd{Shell: script})
			if err != nil {
				t.Errorf("plain exec: %v", err)
			}
			plain <- r
		}()
		testbed.Until(t, hang, "the plain exec among what is kept", func() bool { return running(t, two) == 2 })
		input := withInput(t, one)
		before := lasting(t, b)

		began := time.Now()
		old := b.killed(t, self)
		answersAfter(t, two, 1)
		took := time.Since(began)
		t.Logf("an exec was answered %v after the shard's death", took)
		if took > restartBound {
			t.Errorf("an exec took %v, more than %v", took, restartBound)
		}
		b.goOn(t, "", before)
		testbed.Output(t, two, "touch "+seen)
		answers(t, other)
		wantLost(t, "the command with an input", input)
		wantCode(t, "kept", p, code)
		got.want(t, "kept", wantOut, wantErr)
		if r := <-plain; r != nil && (r.ExitCode == nil || *r.ExitCode != code || !bytes.Equal(r.Stdout, wantOut)) {
			t.Errorf("plain exec: %+v, %d bytes", r.ExitStatus, len(r.Stdout))
		}
		b.successor(t, self, old)
	}
}

// lasting are the processes of a bed that do not end by themselves: inits, and what [bed.pair] started.
func lasting(t testing.TB, b *bed) map[string]int {
	t.Helper()
	const least = 3 * 3
	var left map[string]int
	testbed.Until(t, hang, "the lasting processes", func() bool { // a child has to come to its exec
		left = make(map[string]int)
		for p, pid := range b.living(t, "") {
			command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
			if bytes.Contains(command, []byte("sleep\x001000")) || bytes.Contains(name, []byte("dsec-init")) {
				left[p] = pid
			}
		}
		return len(left) >= least
	})
	return left
}

func TestKilledKeeperIsReplaced(t *testing.T) {
	b := newBed(t, testbed.Options{})
	one, two, other := b.pair(t)
	self := filepath.Join(b.shardOf(t, one), "self")
	const size, code = 6000, 22
	wantOut, wantErr := printed(size, "\n")
	p, got := start(t, one, lines(size, code), libdsec.StartOptions{})
	testbed.Until(t, hang, "its first output", func() bool { return got.len() > 0 })
	before, aetherd := lasting(t, b), b.process(self)

	const given = "shard given to the new keeper"
	told := b.logged(given)
	began := time.Now()
	b.killed(t, "keeper")
	answers(t, one)
	t.Logf("an exec was answered %v after the keeper's death", time.Since(began))
	testbed.Until(t, hang, "both shards in the new keeper's hands", func() bool { return b.logged(given) == told+2 })
	t.Logf("the new keeper had both shards after %v", time.Since(began))
	b.goOn(t, "", before)
	if pid := b.process(self); pid != aetherd {
		t.Errorf("the shard is %d, was %d", pid, aetherd)
	}

	// The new keeper holds all that the old one held: now the shard may die, and the command loses nothing.
	next := b.process("keeper") // by now the keeper itself: it was born in its group like its short-lived parent
	b.killed(t, self)
	answersAfter(t, two, 1)
	b.goOn(t, "", before)
	if now := b.process(self); parent(t, now) != next {
		t.Errorf("the new shard's parent is %d, the new keeper is %d", parent(t, now), next)
	}
	wantCode(t, "over the death of keeper and shard", p, code)
	got.want(t, "over the death of keeper and shard", wantOut, wantErr)
	answers(t, other)
	// The new keeper's shards end as the old one's did, and nobody looks for them any more.
	for _, sb := range []*libdsec.Sandbox{other, one, two} {
		if _, err := sb.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if n := b.logged("shard can't be reached"); n > 0 {
		t.Errorf("%d times an ended shard was looked for", n)
	}
}

func TestKeeperAndShardKilledAtOnce(t *testing.T) {
	b := newBed(t, testbed.Options{})
	one, two, other := b.pair(t)
	self := filepath.Join(b.shardOf(t, one), "self")
	// It writes nothing while its output has no reader, so that it lives on.
	p, got := start(t, one, "echo before; until [ -e /tmp/go ]; do sleep 0.02; done; echo after >/tmp/end; exit 3", libdsec.StartOptions{})
	testbed.Until(t, hang, "its output", func() bool { return got.len() > 0 })
	before := lasting(t, b)

	keeper, aetherd := b.process("keeper"), b.process(self)
	began := time.Now()
	for _, pid := range []int{keeper, aetherd} {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	answersAfter(t, two, 1)
	t.Logf("an exec was answered %v after both had died", time.Since(began))
	answers(t, other)
	b.goOn(t, "", before)

	// What only the two knew is told as lost, and never as an end of the command, which goes on.
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	st, err := p.Wait(ctx)
	if err != nil || st.InfraError == "" || st.ExitCode != nil || st.Signal != "" {
		t.Errorf("the kept command: %v, %+v, want an infrastructure error", err, st)
	}
	got.want(t, "before the loss", []byte("before\n"), nil)
	testbed.Output(t, one, "touch /tmp/go")
	testbed.Until(t, hang, "the command's own end", func() bool {
		return string(testbed.Shell(t, one, "cat /tmp/end").Stdout) == "after\n"
	})
	// And what is started now is as safe as ever.
	const size, code = 2000, 23
	p, got = start(t, one, lines(size, code), libdsec.StartOptions{})
	testbed.Until(t, hang, "its output", func() bool { return got.len() > 0 })
	b.killed(t, self)
	wantOut, wantErr := printed(size, "\n")
	wantCode(t, "started afterwards", p, code)
	got.want(t, "started afterwards", wantOut, wantErr)
}

// parent reads the parent of a process.
func parent(t testing.TB, pid int) int {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(raw), ") ")
	var state string
	var ppid int
	if _, err := fmt.Sscan(after, &state, &ppid); err != nil {
		t.Fatal(err)
	}
	return ppid
}

// A command whose shard has died has the keeper as its parent: it must be reaped at once, because the kernel holds up the
// end of a pid namespace until that has been done, and its status must not go to a stranger.
func TestOrphansBelongToTheKeeper(t *testing.T) {
	b := newBed(t, testbed.Options{})
	sb := b.Create(t, api.Spec{})
	p, _ := start(t, sb, "echo; exec sleep 1000", libdsec.StartOptions{})
	box := filepath.Join(b.shardOf(t, sb), sb.ID())
	command := b.process(filepath.Join(box, p.ID()))
	started, err := proc.StartTime(command)
	if err != nil {
		t.Fatal(err)
	}
	old := b.killed(t, filepath.Join(b.shardOf(t, sb), "self"))
	b.successor(t, filepath.Join(b.shardOf(t, sb), "self"), old)
	if ppid, keeper := parent(t, command), b.process("keeper"); ppid != keeper {
		t.Errorf("the orphan's parent is %d, the keeper is %d", ppid, keeper)
	}
	began := time.Now()
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	took := time.Since(began)
	t.Logf("a sandbox with an orphan was stopped in %v", took)
	if took > restartBound {
		t.Errorf("it took %v", took)
	}
	if again, err := proc.StartTime(command); err == nil && again == started {
		t.Error("the command is still there")
	}
}
