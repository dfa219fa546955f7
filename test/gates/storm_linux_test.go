package gates

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

// hogs take all memory there is, as long as the file is there, with as many processes as there may be around them.
const hogs = `touch /tmp/storm
while [ -e /tmp/storm ]; do
	i=0; while [ $i -lt 20 ]; do sleep 0.2 & i=$((i+1)); done
	i=0; while [ $i -lt 4 ]; do dd if=/dev/zero of=/dev/null bs=50M count=2 2>/dev/null & i=$((i+1)); done
	wait
done`

// Helpers and commands carry the aether's memory into the sandbox's memory group until their exec, and the kernel kills
// whoever shares the memory of its victim.
func TestStormOfMemoryLeavesTheShardAlive(t *testing.T) {
	b := newBed(t, testbed.Options{Hooks: true})
	sb := b.Create(t, api.Spec{Resources: api.Resources{CPU: new(1.0), MemoryMB: new(int64(64)), PIDs: new(int64(256))}})
	other := b.Create(t, api.Spec{})
	shard := b.shardOf(t, sb)
	self := filepath.Join(shard, "self")
	aetherd := b.process(self)
	storm, _ := start(t, sb, hogs, libdsec.StartOptions{})
	over := make(chan struct{})
	var others []time.Duration
	var wg sync.WaitGroup
	wg.Go(func() { others = load(t, other, over) })
	// mu guards ends.
	var mu sync.Mutex
	ends := make(map[string]int)
	const execs, enough = 600, 20
	began := time.Now()
	inParallel(4, 2*execs, func(i int) {
		if i >= execs && b.oomKills(t, sb) >= enough {
			return
		}
		ctx, cancel := context.WithTimeout(t.Context(), hang)
		defer cancel()
		how := ""
		switch r, err := sb.Exec(ctx, libdsec.Cmd{Argv: []string{"true"}}); {
		case err != nil:
			how = string(api.AsError(err).Code)
		case r.InfraError != "":
			how = "infra_error"
		case r.ExitCode != nil:
			how = fmt.Sprint(*r.ExitCode)
		default:
			how = r.Signal
		}
		mu.Lock()
		defer mu.Unlock()
		ends[how]++
	})
	took := time.Since(began)
	close(over)
	wg.Wait()
	worst := time.Duration(0)
	for _, d := range others {
		worst = max(worst, d)
	}
	kills := b.oomKills(t, sb)
	t.Logf("execs in %v ended with %v; %d processes killed for want of memory; other: %d execs, worst %v", took, ends, kills, len(others), worst)
	if kills < enough {
		t.Error("that was no storm")
	}
	for how := range ends {
		switch how {
		case "0", "SIGKILL", string(api.CodeNotStarted), string(api.CodeQuota):
		default:
			t.Errorf("an exec ended with %s", how)
		}
	}
	if now := b.process(self); now != aetherd {
		t.Errorf("the shard is %d, was %d", now, aetherd)
	}
	if err := storm.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	testbed.Until(t, hang, "the end of the storm", func() bool { return len(b.living(t, filepath.Join(shard, sb.ID()))) == 1 })
	answers(t, sb)
}

// oomKills reads the kernel's own count.
func (b *bed) oomKills(t testing.TB, sb *libdsec.Sandbox) (n int) {
	t.Helper()
	name := filepath.Join("dsec-"+b.Instance(), b.shardOf(t, sb), sb.ID())
	for _, file := range []string{
		filepath.Join("/sys/fs/cgroup/memory", name, "memory.oom_control"), filepath.Join("/sys/fs/cgroup", name, "memory.events"),
		filepath.Join("/sys/fs/cgroup/unified", name, "memory.events"),
	} {
		if n, ok := readKey(file, "oom_kill"); ok {
			return n
		}
	}
	t.Fatal("no count of kills for want of memory")
	return 0
}

// A command whose birth takes long, because its sandbox has no processor time left, isn't one that a tenant has stopped.
func TestSlowBirthIsNoReasonToKill(t *testing.T) {
	b := newBed(t, testbed.Options{Hooks: true})
	sb := b.Create(t, api.Spec{Resources: api.Resources{CPU: new(0.02), MemoryMB: new(int64(64)), PIDs: new(int64(64))}})
	testbed.Output(t, sb, "for i in 1 2 3 4; do (while :; do :; done) >/dev/null 2>&1 & done")
	conn := b.aether(t, b.shardOf(t, sb))
	slow, worst := 0, time.Duration(0)
	const execs = 12
	for range execs {
		began := time.Now()
		answers(t, sb)
		took := time.Since(began)
		worst = max(worst, took)
		if took > 300*time.Millisecond {
			slow++
		}
	}
	s := stats(t, conn)
	t.Logf("%d of %d execs took longer than 300 ms, the slowest %v; the watchdog ended %d and %d", slow, execs, worst, s.Stopped, s.Expired)
	if slow == 0 {
		t.Error("none was slow")
	}
	if s.Stopped+s.Expired > 0 {
		t.Error("the watchdog took slow helpers for stopped ones")
	}
}

// What an exec leaves in the shard's memory is taken again by the next.
func TestShardsMemoryIsFlat(t *testing.T) {
	b := newBed(t, testbed.Options{Hooks: true})
	sb := b.Create(t, api.Spec{})
	conn := b.aether(t, b.shardOf(t, sb))
	execs := func(n int) {
		inParallel(4, n, func(int) {
			if r, err := sb.Exec(t.Context(), libdsec.Cmd{Argv: []string{"true"}}); err != nil || r.ExitCode == nil || *r.ExitCode != 0 {
				t.Errorf("exec: %v, %+v", err, r)
			}
		})
	}
	const warm, measured = 1000, 6000
	execs(warm)
	const most, whole = 4 << 20, 32 << 20
	before := stats(t, conn)
	after, grown := before, int64(most+1)
	// The runtime takes memory in steps of 4 MiB, and may need one more of them; what leaks comes every time.
	for round := 0; grown > most && round < 3; round++ {
		before = after
		began := time.Now()
		execs(measured)
		took := time.Since(began)
		after = stats(t, conn)
		grown = after.SysBytes - before.SysBytes
		t.Logf("%d execs, %.0f/s: the shard has %d KiB, grown by %d KiB; %d collections; %d descriptors, were %d",
			measured, measured/took.Seconds(), after.SysBytes>>10, grown>>10, after.GCs-before.GCs, after.FDs, before.FDs)
	}
	if grown > most || after.SysBytes > whole {
		t.Errorf("the shard has %d bytes, %d more than after the first %d execs", after.SysBytes, grown, warm)
	}
	if after.FDs > before.FDs || after.Goroutines > before.Goroutines+4 {
		t.Errorf("%+v, was %+v", after, before)
	}
}
