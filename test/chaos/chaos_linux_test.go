package chaos

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/fault"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

// The default form is for every run of the suite. diskMB is the size of the data folder's disk.
const (
	defaultTime = 40 * time.Second
	diskMB      = 512
)

// chaos is one run.
type chaos struct {
	t *testing.T
	n *testbed.Node
	m *model
	p *proxy
	r *rand.Rand // the breaker's

	filled time.Time // when the disk was full last
}

// TestChaos: see the package's comment.
func TestChaos(t *testing.T) {
	length, err := time.ParseDuration(cmp.Or(os.Getenv("DSEC_CHAOS"), defaultTime.String()))
	if err != nil {
		t.Fatal(err)
	}
	seed, err := strconv.ParseUint(cmp.Or(os.Getenv("DSEC_CHAOS_SEED"), strconv.FormatUint(rand.Uint64(), 10)), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	cycles, err := strconv.Atoi(cmp.Or(os.Getenv("DSEC_CHAOS_CYCLES"), "0"))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("seed %d", seed)
	c := &chaos{t: t, n: testbed.Start(t, testbed.Options{Faults: true, DiskMB: diskMB}), m: newModel(), r: rand.New(rand.NewPCG(seed, 0))}
	kept := c.n.Create(t, small("kept"))
	c.n.Kill(t)
	c.start()
	before := steady(t, c.n)
	c.p = startProxy(t, c.n)

	end := time.Now().Add(length)
	over := func() bool {
		return time.Now().After(end) && c.m.cycles() >= cycles || time.Now().After(end.Add(length))
	}
	var wg sync.WaitGroup
	for i, work := range []func(*worker){
		(*worker).cycles, (*worker).cycles, (*worker).cycles, (*worker).residents, (*worker).residents, (*worker).residents, (*worker).abandons,
		func(w *worker) { w.clients("http://"+c.p.ln.Addr().String(), c.p.token) },
	} {
		w := &worker{m: c.m, c: c.p.client(t), r: rand.New(rand.NewPCG(seed, uint64(i+1))), name: fmt.Sprintf("w%d", i), over: over}
		wg.Go(func() { work(w) })
	}
	for !over() && !t.Failed() {
		<-time.After(time.Duration(100+c.r.IntN(1200)) * time.Millisecond)
		c.breakSomething()
	}
	c.calm()
	wg.Wait()
	c.calm()
	c.account(before, kept)
	t.Log(c.m.report(seed))
	if len(c.m.failures) > 0 {
		t.Errorf("%d failures", len(c.m.failures))
	}
	if got := c.m.cycles(); got < cycles {
		t.Errorf("%d create/stop cycles, want %d", got, cycles)
	}
}

// start starts the node, which nothing keeps from it, and aims the proxy at it.
func (c *chaos) start(faults ...testbed.Fault) {
	c.t.Helper()
	err := c.n.Start(faults...)
	for try := 0; err != nil && try < 3; try++ {
		if len(faults) == 0 && time.Since(c.filled) > time.Minute {
			c.m.fail(nil, "the node doesn't start: %v", err)
		}
		faults = nil
		err = c.n.Start()
	}
	if err != nil {
		c.t.Fatalf("the node doesn't start: %v\n%s", err, c.m.report(0))
	}
	if c.p != nil {
		c.p.aim(c.n)
	}
}

// calm ends all that was broken, and brings the node up.
func (c *chaos) calm() {
	c.p.cut.Store(0)
	c.revive("after all")
	if _, err := c.n.TryFault(); err != nil {
		c.m.fail(nil, "faults taken back: %v", err)
	}
}

// revive starts a node again that has ended by itself. It may only when its disk was full.
func (c *chaos) revive(when string) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.n.PID()))
	if err == nil && !bytes.Contains(raw, []byte(") Z ")) {
		return
	}
	c.n.Died(c.t)
	c.m.broke("node ended by itself")
	if time.Since(c.filled) > time.Minute {
		c.m.fail(nil, "the node has ended by itself, %s:\n%s", when, c.n.LogTail())
	}
	c.start()
}

// breakSomething does one bad thing to the node.
func (c *chaos) breakSomething() {
	c.revive("between two faults")
	points := fault.Points()
	point := points[c.r.IntN(len(points))]
	switch n := c.r.IntN(100); {
	case n < 15:
		c.m.broke("node killed")
		c.n.Kill(c.t)
		c.start()
	case n < 30:
		c.dieAt(point)
	case n < 50:
		c.killOf("self", "shard killed")
	case n < 60:
		c.killOf("keeper", "keeper killed")
	case n < 70:
		c.killInit()
	case n < 88:
		c.failAt(point)
	case n < 94:
		c.fillDisk()
	default:
		c.p.cut.Store(int64(c.r.IntN(30)))
		c.m.broke("answers cut off for a while")
	}
}

// dieAt has the node die at a point that it may come by, or as it starts.
func (c *chaos) dieAt(point string) {
	f := testbed.Fault{Point: point, Skip: c.r.IntN(5), Die: true, Part: c.r.IntN(100)}
	if atStart(point) || c.r.IntN(4) == 0 {
		c.n.Kill(c.t)
		f.Skip = 0
		c.start(f)
		c.m.broke("node killed as it started")
		c.unfault()
		return
	}
	if _, err := c.n.TryFault(f); err != nil {
		c.revive("as it was told to die")
		return
	}
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); <-time.After(20 * time.Millisecond) {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.n.PID()))
		if err != nil || bytes.Contains(raw, []byte(") Z ")) {
			c.n.Died(c.t)
			c.m.broke("node killed at a point")
			c.start()
			return
		}
	}
	c.unfault()
}

// unfault takes a fault back that the node may die of at this moment.
func (c *chaos) unfault() {
	if _, err := c.n.TryFault(); err == nil {
		return
	}
	c.n.Died(c.t)
	c.m.broke("node killed at a point")
	c.start()
}

// failAt has a step fail or wait for a moment.
func (c *chaos) failAt(point string) {
	f := testbed.Fault{Point: point, Times: 1 + c.r.IntN(5), Part: c.r.IntN(100)}
	switch c.r.IntN(3) {
	case 0:
		f.Errno = syscall.ENOSPC
	case 1:
		f.Errno = syscall.EIO
	default:
		f.Delay = time.Duration(c.r.IntN(500)) * time.Millisecond
	}
	if _, err := c.n.TryFault(f); err != nil {
		c.revive("as it was told to fail")
		return
	}
	<-time.After(time.Second)
	counts, err := c.n.TryFault()
	if err != nil {
		c.revive("as it was told to work again")
		return
	}
	if counts.Hit[point] > 0 {
		c.m.broke("steps failed or delayed")
	}
}

// killOf kills the one process of a group of that name, if there is one.
func (c *chaos) killOf(group, what string) {
	var all []int
	for _, pattern := range []string{"/sys/fs/cgroup/unified/dsec-", "/sys/fs/cgroup/dsec-"} {
		lists, _ := filepath.Glob(pattern + c.n.Instance() + "/" + group + "/cgroup.procs")
		deeper, _ := filepath.Glob(pattern + c.n.Instance() + "/*/" + group + "/cgroup.procs")
		for _, l := range append(lists, deeper...) {
			raw, _ := os.ReadFile(l)
			for _, f := range strings.Fields(string(raw))[:min(1, len(strings.Fields(string(raw))))] {
				if pid, err := strconv.Atoi(f); err == nil {
					all = append(all, pid)
				}
			}
		}
	}
	if len(all) == 0 {
		return
	}
	if unix.Kill(all[c.r.IntN(len(all))], unix.SIGKILL) == nil {
		c.m.broke(what)
	}
}

// killInit kills a sandbox's first process: the sandbox fails, and says so.
func (c *chaos) killInit() {
	b := c.m.victim(c.r)
	if b == nil {
		return
	}
	for _, pattern := range []string{"/sys/fs/cgroup/unified/dsec-", "/sys/fs/cgroup/dsec-"} {
		lists, _ := filepath.Glob(pattern + c.n.Instance() + "/*/" + b.id + "/cgroup.procs")
		for _, l := range lists {
			raw, _ := os.ReadFile(l)
			for f := range strings.FieldsSeq(string(raw)) {
				if pid, err := strconv.Atoi(f); err == nil && unix.Kill(pid, unix.SIGKILL) == nil {
					c.m.broke("init killed")
					c.m.note(b, "its init is killed")
				}
			}
		}
	}
}

// fillDisk leaves no byte on the node's disk for a moment.
func (c *chaos) fillDisk() {
	path := filepath.Join(c.n.Dir, "ballast")
	f, err := os.Create(path)
	if err != nil {
		c.m.fail(nil, "fill the disk: %v", err)
		return
	}
	c.filled = time.Now()
	piece := bytes.Repeat([]byte{1}, 1<<20)
	for len(piece) > 0 {
		if _, err := f.Write(piece); err != nil {
			piece = piece[:len(piece)/2]
		}
	}
	c.m.broke("disk full")
	<-time.After(time.Duration(c.r.IntN(1500)) * time.Millisecond)
	if err := errors.Join(f.Close(), os.Remove(path)); err != nil {
		c.m.fail(nil, "empty the disk: %v", err)
	}
	c.filled = time.Now()
}

// account asks where every sandbox is, ends it, and looks at what is left.
func (c *chaos) account(before tally, kept *libdsec.Sandbox) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	// A create of which nobody knows can be asked for again, under its key.
	for key := range c.m.unknown {
		if kind, again := c.kindOf(ctx, key); again {
			if sb, err := c.n.Client.CreateOnce(ctx, key, spec(kind, key)); err == nil {
				c.m.made(key, sb.ID())
			}
		}
	}
	for _, b := range c.m.boxes {
		c.accountFor(ctx, b)
	}
	testbed.Until(c.t, hang, "nobody's sandboxes end", func() bool {
		return len(living(c.t, c.n, "abandoned"))+len(living(c.t, c.n, "client")) == 0
	})
	for sb, err := range c.n.Client.List(ctx, libdsec.ListOptions{}) {
		if err != nil {
			c.m.fail(nil, "list: %v", err)
			break
		}
		if i := sb.Info(); !i.State.Ended() && c.m.boxes[i.ID] == nil && i.ID != kept.ID() {
			c.m.fail(nil, "%s is %s and nobody's: labels %v, made %v", i.ID, i.State, i.Spec.Labels, i.CreatedAt)
		}
	}
	for _, b := range c.m.boxes {
		if _, err := c.n.Client.Sandbox(b.id).Stop(ctx); err != nil && !libdsec.IsCode(err, api.CodeNotFound) {
			c.m.fail(b, "stop at the end: %v", err)
		}
	}
	if r, err := c.n.Client.Sandbox(kept.ID()).Exec(ctx, libdsec.Cmd{Shell: "echo here"}); err != nil || string(r.Stdout) != "here\n" {
		c.m.fail(nil, "the sandbox that was left alone: %v", err)
	}
	c.n.Kill(c.t)
	c.start()
	sameAgain(c.t, c.n, before, "after all that")
}

// kindOf finds a sandbox by the label with its key.
func (c *chaos) kindOf(ctx context.Context, key string) (string, bool) {
	for sb, err := range c.n.Client.List(ctx, libdsec.ListOptions{Labels: map[string]string{"key": key}}) {
		if err == nil && !sb.Info().State.Ended() {
			return sb.Info().Spec.Labels["chaos"], true
		}
	}
	return "", false
}

// accountFor compares one sandbox with what it must be.
func (c *chaos) accountFor(ctx context.Context, b *box) {
	sb, err := c.n.Client.Get(ctx, b.id)
	if libdsec.IsCode(err, api.CodeNotFound) || err != nil {
		c.m.fail(b, "ask for it: %v", err)
		return
	}
	i := sb.Info()
	c.m.note(b, "at the end it is %s %q", i.State, i.Reason)
	switch {
	case i.State == api.StateFailed:
		faulty := strings.Contains(i.Reason, "no space left") || strings.Contains(i.Reason, "input/output error")
		if i.Reason == "" || !faulty && !b.isKilled() {
			c.m.fail(b, "it failed: %q", i.Reason)
		}
		return
	case b.stopped && i.State != api.StateStopped:
		c.m.fail(b, "it was told to have stopped and is %s", i.State)
		return
	case b.isStopping():
		return
	case i.State != api.StateRunning && i.State != api.StatePaused:
		c.m.fail(b, "it is %s: %q", i.State, i.Reason)
		return
	}
	r, err := sb.Exec(ctx, libdsec.Cmd{Shell: "cat /ran 2>/dev/null || true"})
	if err != nil || r.InfraError != "" {
		if !b.isKilled() {
			c.m.fail(b, "read its lines: %v", err)
		}
		return
	}
	for word, s := range b.lines {
		n := bytes.Count(r.Stdout, []byte(word+";\n"))
		if n > 1 || s == answered && n != 1 {
			c.m.fail(b, "the command that leaves %s ran %d times", word, n)
		}
	}
}
