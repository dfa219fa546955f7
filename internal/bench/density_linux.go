package bench

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/bench/meter"
)

const (
	densityMemoryMB = 12 << 10 // what sandboxes may use, unless told
	densityFloorMB  = 3 << 10  // others on the machine live, too
	densityWorkers  = 16
	stopWorkers     = 64
	lookEach        = 16               // creates
	densitySettle   = 20 * time.Second // for the kernel to free what it frees later
	idleTime        = 4 * time.Second  // of which the processor time is taken
)

// density is a run of the density benchmark.
type density struct {
	*bench
	s        *server
	instance string
	before   meter.Memory
	group    int64 // KiB charged to the instance before

	// mu guards what follows.
	mu      sync.Mutex
	ids     []string
	stopped string // why no more were made
	tally   tally
	samples []meter.Sample
}

// density fills memory with idle sandboxes.
func (b *bench) density(ctx context.Context) (err error) {
	// The limits of the sandboxes add up to far more than the machine has, on purpose.
	flags := []string{"--max-sandboxes", "1000000", "--memory-ratio", "1000", "--pid-ratio", "1000", "--cpu-ratio", "100000"}
	s, err := b.startServer(ctx, "density", flags...)
	if err != nil {
		return err
	}
	up := true
	down := func() error {
		if !up {
			return nil
		}
		up = false
		return s.close()
	}
	defer func() { err = errors.Join(err, down()) }()
	b.notef("a server was started for this: dsec dev --no-context %s", strings.Join(flags, " "))
	d := &density{bench: b, s: s}
	if d.instance, err = s.instance(); err != nil {
		return err
	}
	if err := d.fill(ctx); err != nil {
		return err
	}
	if err := d.measure(ctx); err != nil {
		return err
	}
	if err := d.answer(ctx); err != nil {
		return err
	}
	if err := d.stopAll(ctx); err != nil {
		return err
	}
	if err := down(); err != nil {
		return err
	}
	return d.left(ctx)
}

// warm makes one sandbox and ends it: the first shard, the image's mount and the server's heap aren't a sandbox's cost.
func (d *density) warm(ctx context.Context, spec []byte) error {
	id, err := d.s.client.create(ctx, spec)
	if err != nil {
		return err
	}
	return d.s.client.stop(ctx, id)
}

// fill makes sandboxes until a limit says stop.
func (d *density) fill(ctx context.Context) (err error) {
	spec, err := d.s.client.createBody()
	if err != nil {
		return err
	}
	if err := d.warm(ctx, spec); err != nil {
		return err
	}
	if d.before, err = d.settled(ctx); err != nil {
		return err
	}
	if d.group, err = meter.ChargedKiB(d.instance); err != nil {
		return err
	}
	limit := cmp.Or(d.MemoryMB, densityMemoryMB)
	d.sayf("density: idle sandboxes until they use %d MiB, %s; not below %d MiB available", limit, d.countLimit(), densityFloorMB)
	began := time.Now()
	var wg sync.WaitGroup
	var made atomic.Int64
	for range d.levels(densityWorkers)[0] {
		wg.Go(func() {
			for d.more(ctx, made.Add(1), limit<<10) {
				d.one(ctx, spec)
			}
		})
	}
	wg.Wait()
	took := time.Since(began)
	d.sayf("density: %d sandboxes in %.1f s; stopped by %s", len(d.ids), took.Seconds(), d.stopped)
	d.notef("stopped by %s", d.stopped)
	d.tally.wall = took
	d.keep(d.levels(densityWorkers)[0], map[string]*tally{"dsec": &d.tally})
	count := Result{Name: Density + ".sandboxes", Unit: "sandboxes", Value: float64(len(d.ids)), N: len(d.ids), Failures: d.tally.failed, Concurrency: d.levels(densityWorkers)[0]}
	rate := d.tally.result(Density+".create.rate", "creates/s", count.Concurrency, d.tally.throughput())
	took1 := d.tally.result(Density+".create", "ms", count.Concurrency, d.tally.timing(stepCreate, milliseconds()))
	rate.Failures, took1.Failures = 0, 0 // told above
	d.document.Results = append(d.document.Results, count, rate, took1)
	return ctx.Err()
}

func (d *density) countLimit() string {
	if n := d.most(); n > 0 {
		return fmt.Sprintf("or there are %d", n)
	}
	return "however many there are"
}

// most is how many sandboxes are made at most; 0: as many as go.
func (d *density) most() int {
	if d.Quick {
		return cmp.Or(d.N, 100)
	}
	return d.N
}

// more tells whether the n-th sandbox may be made.
func (d *density) more(ctx context.Context, n, limitKiB int64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.stopped != "":
		return false
	case ctx.Err() != nil:
		d.stopped = "an interrupt"
	case d.most() > 0 && n > int64(d.most()):
		d.stopped = fmt.Sprintf("--n: %d sandboxes", d.most())
	case n%lookEach == 0:
		d.look(n, limitKiB)
	}
	return d.stopped == ""
}

// look looks at the machine's memory.
func (d *density) look(n, limitKiB int64) {
	now, err := meter.ReadMemory()
	used := now.Minus(d.before).Used()
	if err == nil && used >= limitKiB {
		// Much of it may be names and inodes that nobody uses, of other programs too.
		if err = meter.DropNames(); err == nil {
			now, err = meter.ReadMemory()
			used = now.Minus(d.before).Used()
		}
	}
	switch {
	case err != nil:
		d.stopped = "an error: " + err.Error()
		d.tally.failed++
	case used >= limitKiB:
		d.stopped = fmt.Sprintf("memory: %d MiB are used", used>>10)
	case now.Available < densityFloorMB<<10:
		d.stopped = fmt.Sprintf("memory: the machine has %d MiB available, and others need some", now.Available>>10)
	}
	d.samples = append(d.samples, meter.Sample{N: float64(n), KiB: float64(used)})
	if n%512 == 0 {
		d.sayf("density: %d sandboxes, %d MiB used, %d KiB each", n, used>>10, used/n)
	}
}

// one makes a sandbox.
func (d *density) one(ctx context.Context, spec []byte) {
	began := time.Now()
	id, err := d.s.client.create(ctx, spec)
	took := time.Since(began)
	d.mu.Lock()
	defer d.mu.Unlock()
	if err == nil {
		d.ids = append(d.ids, id)
		d.tally.done++
		s := d.tally.step("dsec", stepCreate)
		s.times = append(s.times, took)
		return
	}
	if ctx.Err() != nil {
		return
	}
	if r, ok := errors.AsType[*refusal](err); ok && r.Code == api.CodeNoCapacity {
		d.stopped = cmp.Or(d.stopped, "admission: "+r.Detail)
		return
	}
	d.tally.failed++
	d.failed("create", err)
	d.stopped = cmp.Or(d.stopped, "an error: "+err.Error())
}

// figure adds a figure that has no spread.
func (d *density) figure(name, unit string, value float64) {
	d.document.Results = append(d.document.Results, Result{
		Name: Density + "." + name, Unit: unit, Value: value, N: len(d.ids), Concurrency: 1, P10: value, P50: value, P90: value, P99: value,
	})
}

// settled is the machine's memory without what it keeps for no use, once it doesn't change much any more.
func (d *density) settled(ctx context.Context) (meter.Memory, error) {
	if err := meter.DropNames(); err != nil {
		return meter.Memory{}, err
	}
	last, err := meter.ReadMemory()
	if d.Quick {
		return last, err
	}
	for end := time.Now().Add(densitySettle); err == nil && time.Now().Before(end); {
		if err := wait(ctx, 500*time.Millisecond); err != nil {
			return last, err
		}
		now, err := meter.ReadMemory()
		if err != nil {
			return now, err
		}
		change := now.Minus(last).Used()
		last = now
		if max(change, -change) < 1<<10 {
			break
		}
	}
	return last, err
}

func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// measure tells what the idle sandboxes take.
func (d *density) measure(ctx context.Context) error {
	n := float64(len(d.ids))
	if n == 0 {
		return errors.New("no sandbox could be made: " + d.stopped)
	}
	now, err := d.settled(ctx)
	if err != nil {
		return err
	}
	used := now.Minus(d.before)
	d.figure("memory", "KiB/sandbox", float64(used.Used())/n)
	for _, k := range used.Kinds() {
		d.figure("memory."+k.Name, "KiB/sandbox", float64(k.KiB)/n)
	}
	if linear, square, ok := meter.Growth(d.samples); ok {
		d.figure("memory.linear", "KiB/sandbox", linear)
		d.figure("memory.square", "KiB/sandbox", square*n)
		d.notef("memory.linear is what one sandbox takes by itself; memory.square what each takes more because there are so many: " +
			"the kernel has a word for every superblock in every memory group. Both are fitted to samples while memory filled")
	}
	d.figure("page-cache", "KiB/sandbox", float64(used.PageCache)/n)
	d.figure("other", "KiB/sandbox", float64(-used.Free-used.Used()-used.PageCache)/n)
	d.figure("unavailable", "KiB/sandbox", float64(-used.Available)/n)
	group, err := meter.ChargedKiB(d.instance)
	if err != nil {
		return err
	}
	d.figure("charged", "KiB/sandbox", float64(group-d.group)/n)
	d.notef("memory is the growth of the whole machine's kinds, its sum without the page cache and without names and inodes that nobody uses (they are dropped before); other is what no kind explains; charged is what the memory controller counts for the instance")
	return d.processes(ctx)
}

// processes tells what server, keeper and shards hold for each sandbox, and what they compute while nothing happens.
func (d *density) processes(ctx context.Context) error {
	took := idleTime
	if d.Quick {
		took /= 8
	}
	if err := wait(ctx, took/2); err != nil { // what was begun for the last sandboxes is done then
		return err
	}
	began := time.Now()
	was, err := meter.ReadNode(d.instance, d.s.pid)
	if err != nil {
		return err
	}
	if err := wait(ctx, took); err != nil {
		return err
	}
	now, err := meter.ReadNode(d.instance, d.s.pid)
	if err != nil {
		return err
	}
	over := time.Since(began).Seconds()
	n := float64(len(d.ids))
	d.figure("processes", "processes/sandbox", float64(was.Inside)/n)
	d.figure("threads", "threads/sandbox", float64(was.InsideThreads)/n)
	d.figure("groups", "directories/sandbox", float64(was.Groups)/n)
	shards := func(all []meter.Process) (sum meter.Process) {
		for _, p := range all {
			sum.Threads += p.Threads
			sum.Descriptors += p.Descriptors
			sum.AnonymousKiB += p.AnonymousKiB
			sum.CPU += p.CPU
		}
		return sum
	}
	d.figure("shards", "processes", float64(len(now.Shards)))
	for _, r := range []struct {
		name      string
		was, late meter.Process
	}{
		{"server", was.Server, now.Server},
		{"shards", shards(was.Shards), shards(now.Shards)},
		{"keeper", was.Keeper, now.Keeper},
	} {
		d.figure(r.name+".threads", "threads", float64(r.late.Threads))
		d.figure(r.name+".descriptors", "descriptors/sandbox", float64(r.late.Descriptors)/n)
		d.figure(r.name+".anonymous", "KiB/sandbox", float64(r.late.AnonymousKiB)/n)
		d.figure(r.name+".idle", "% of a core", 100*(r.late.CPU-r.was.CPU).Seconds()/over)
	}
	return nil
}

// each does something with every sandbox, some at once.
func (d *density) each(ctx context.Context, workers int, name string, do func(ctx context.Context, id string) error) *tally {
	var next atomic.Int64
	c := &contender{name: name, do: func(ctx context.Context, l *laps) error {
		err := do(ctx, d.ids[next.Add(1)-1])
		l.lap(name)
		return err
	}}
	p := &plan{contenders: []*contender{c}, n: len(d.ids), rounds: 1, concurrency: workers, failed: d.failed}
	return p.run(ctx)[name]
}

// answer has every sandbox run a command, and the last one several.
func (d *density) answer(ctx context.Context) error {
	body, err := json.Marshal(api.ExecRequest{Argv: []string{d.s.first}})
	if err != nil {
		return err
	}
	d.sayf("density: a command in each of %d", len(d.ids))
	t := d.each(ctx, densityWorkers, "first-exec", func(ctx context.Context, id string) error { return d.s.client.exec(ctx, id, body) })
	d.keep(densityWorkers, map[string]*tally{"dsec": t})
	d.document.Results = append(d.document.Results, t.result(Density+".first-exec", "ms", densityWorkers, t.timing("first-exec", milliseconds())))
	n, _ := d.counts(200, 50)
	last := d.ids[len(d.ids)-1]
	c := &contender{name: "last-exec", do: func(ctx context.Context, l *laps) error {
		err := d.s.client.exec(ctx, last, body)
		l.lap("last-exec")
		return err
	}}
	p := &plan{contenders: []*contender{c}, n: min(n, 200), rounds: 1, concurrency: 1, failed: d.failed}
	t = p.run(ctx)["last-exec"]
	d.keep(1, map[string]*tally{"dsec": t})
	d.document.Results = append(d.document.Results, t.result(Density+".last-exec", "ms", 1, t.timing("last-exec", milliseconds())))
	if err := d.list(ctx); err != nil {
		return err
	}
	now, err := d.settled(ctx)
	if err != nil {
		return err
	}
	d.figure("memory-after-exec", "KiB/sandbox", float64(now.Minus(d.before).Used())/float64(len(d.ids)))
	return ctx.Err()
}

// list reads the list of all sandboxes, page by page; each of ours has to be in it.
func (d *density) list(ctx context.Context) error {
	listed := map[string]bool{}
	began := time.Now()
	for cursor := ""; ; {
		var page struct {
			Items []struct {
				ID    string `json:"id"`
				State string `json:"state"`
			} `json:"items"`
			Next string `json:"cursor"`
		}
		if err := d.s.client.call(ctx, http.MethodGet, "/v1/sandboxes?limit=1000&cursor="+cursor, nil, &page); err != nil {
			return err
		}
		for _, s := range page.Items {
			listed[s.ID] = s.State == "running"
		}
		if cursor = page.Next; cursor == "" {
			break
		}
	}
	took := time.Since(began)
	failures := 0
	for _, id := range d.ids {
		if !listed[id] {
			failures++
			d.failed("list", fmt.Errorf("sandbox %s isn't listed as running", id))
		}
	}
	d.figure("list", "ms", milliseconds().of(took))
	d.document.Results[len(d.document.Results)-1].Failures = failures
	return nil
}

// stopAll stops what was made, also when ctx has ended.
func (d *density) stopAll(ctx context.Context) error {
	d.sayf("density: stopping %d", len(d.ids))
	began := time.Now()
	t := d.each(context.WithoutCancel(ctx), stopWorkers, stepStop, d.s.client.stop)
	took := time.Since(began)
	d.keep(stopWorkers, map[string]*tally{"dsec": t})
	d.sayf("density: stopped in %.1f s", took.Seconds())
	d.figure("stop-all", "ms", milliseconds().of(took))
	d.document.Results = append(d.document.Results,
		t.result(Density+".stop.rate", "stops/s", stopWorkers, t.throughput()),
		t.result(Density+".stop", "ms", stopWorkers, t.timing(stepStop, milliseconds())))
	d.document.Results[len(d.document.Results)-1].Failures = 0 // told with the rate
	return ctx.Err()
}

// left looks for what the kernel still has of the instance, whose server has ended.
func (d *density) left(ctx context.Context) error {
	node, err := meter.ReadNode(d.instance, 0)
	if err != nil {
		return err
	}
	failures := 0
	for _, l := range []struct {
		what string
		n    int
	}{
		{"processes of sandboxes", node.Inside},
		{"shards", len(node.Shards)},
		{"keepers", min(node.Keeper.PID, 1)},
		{"directories of groups", node.Groups},
	} {
		if l.n > 0 {
			failures++
			d.failed("left", fmt.Errorf("%d %s", l.n, l.what))
		}
	}
	now, err := d.settled(ctx)
	if err != nil {
		return err
	}
	d.figure("left", "KiB/sandbox", float64(now.Minus(d.before).Used())/float64(len(d.ids)))
	d.document.Results[len(d.document.Results)-1].Failures = failures
	return nil
}
