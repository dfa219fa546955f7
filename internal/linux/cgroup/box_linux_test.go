package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/dsec-io/dsec/internal/need"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

const mib = 1 << 20

// tree starts 20 double-forked children, each a session of its own with a child in yet another one.
const tree = `for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
	(setsid sh -c '(setsid sleep 1000 &); exec sleep 1000' &)
done; exec sleep 1000`

func TestMemoryLimitBites(t *testing.T) {
	b := box(t, shard(t, driver(t, "mem"), "shard-0", 0), "box", Limits{Memory: 64 * mib})
	err := command(t, b, "/proc/self/exe", partHog, "256").Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != unix.SIGKILL {
		t.Fatalf("hog of 256 MiB in a box of 64: %v, want killed", err)
	}
	u := usage(t, b)
	kills, err := b.sh.Dirs().OOMKills("box")
	if u.OOMKills < 1 || err != nil || kills != u.OOMKills {
		t.Errorf("OOM kills: %d by the box, %d by the shard (%v); want at least one", u.OOMKills, kills, err)
	}
	// The kernel may charge some pages above the limit for what can't fail.
	if u.MemoryPeak > 65*mib || u.MemoryPeak < 48*mib || u.MemoryLimit != 64*mib {
		t.Errorf("peak %d, limit %d; want no more than the limit of 64 MiB", u.MemoryPeak, u.MemoryLimit)
	}
}

func TestPIDsLimitBites(t *testing.T) {
	b := box(t, shard(t, driver(t, "pids"), "shard-0", 0), "box", Limits{PIDs: 16})
	c := command(t, b, "/bin/sh", "-c", "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do sleep 1000 & done; wait")
	c.Stderr = nil // it complains about the forks
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	events := pick(b.sh.dirs.PIDs, b.sh.dirs.V2)
	eventually(t, "a fork is refused", func() bool {
		n, err := readKey(events, "box/pids.events", "max")
		return err == nil && n > 0
	})
	if n := usage(t, b).PIDs; n > 16 {
		t.Errorf("%d processes in a box of 16", n)
	}
	if err := b.Remove(t.Context()); err != nil {
		t.Error(err)
	}
	_ = c.Wait()
}

func TestCPULimitBites(t *testing.T) {
	b := box(t, shard(t, driver(t, "cpu"), "shard-0", 0), "box", Limits{CPU: 0.2})
	var u Usage
	for try := 0; try < 20 && u.Throttled == 0; try++ { // a busy machine may give it less than its limit
		before, began := u.CPU, time.Now()
		if err := command(t, b, "/proc/self/exe", partBurn, "1s").Run(); err != nil {
			t.Fatal(err)
		}
		took := time.Since(began)
		if u = usage(t, b); u.CPU <= before || (u.CPU-before).Seconds() > 0.4*took.Seconds() {
			t.Errorf("%v of burning at 0.2 cores used %v", took, u.CPU-before)
		}
	}
	if u.Throttled == 0 {
		t.Errorf("it was never held back: %+v", u)
	}
}

func TestLimitsAreRaisedAndLowered(t *testing.T) {
	b := box(t, shard(t, driver(t, "set"), "shard-0", 0), "box", Limits{Memory: 256 * mib, CPU: 1, PIDs: 100})
	stop := startHog(t, b, 64)
	inUse := usage(t, b)
	if inUse.Memory < 64*mib || inUse.PIDs < 1 || inUse.MemoryLimit != 256*mib {
		t.Fatalf("usage with a hog of 64 MiB: %+v", inUse)
	}
	err := b.SetLimits(Limits{Memory: 32 * mib, CPU: 2, PIDs: 50})
	var busy *InUseError
	if !errors.As(err, &busy) || busy.Limit != 32*mib || busy.Usage < 48*mib || !errors.Is(err, unix.EBUSY) {
		t.Fatalf("32 MiB under a hog of 64: %v, want *InUseError", err)
	}
	limits := func() []string {
		d := b.sh.dirs
		if d.Memory < 0 || d.CPU < 0 || d.PIDs < 0 {
			return []string{read(t, d.V2, "box/memory.max"), read(t, d.V2, "box/cpu.max"), read(t, d.V2, "box/pids.max")}
		}
		return []string{
			read(t, d.Memory, "box"+v1Limit), read(t, d.Memory, "box"+v1Swap), read(t, d.CPU, "box/cpu.cfs_quota_us"),
			read(t, d.CPU, "box/cpu.cfs_period_us"), read(t, d.PIDs, "box/pids.max"),
		}
	}
	v1 := b.sh.dirs.Memory >= 0
	want := func(memory, cpu, pids string) []string {
		if v1 {
			return []string{memory, memory, cpu, "100000", pids}
		}
		return []string{memory, cpu + " 100000", pids}
	}
	if diff := cmp.Diff(want("268435456", "100000", "100"), limits()); diff != "" {
		t.Errorf("limits after the refused change (-want +got):\n%s", diff)
	}
	for _, step := range []struct {
		l                 Limits
		memory, cpu, pids string
	}{
		{Limits{Memory: 512 * mib, CPU: 1.5, PIDs: 1000}, "536870912", "150000", "1000"},
		{Limits{Memory: 128 * mib, CPU: 0.25, PIDs: 20}, "134217728", "25000", "20"},
		{Limits{Memory: 1024 * mib, CPU: 0.001, PIDs: 1}, "1073741824", "1000", "1"},
	} {
		if err := b.SetLimits(step.l); err != nil {
			t.Fatalf("SetLimits(%+v): %v", step.l, err)
		}
		if diff := cmp.Diff(want(step.memory, step.cpu, step.pids), limits()); diff != "" {
			t.Errorf("limits after %+v (-want +got):\n%s", step.l, diff)
		}
	}
	if err := b.SetLimits(Limits{}); err != nil {
		t.Fatal(err)
	}
	if u := usage(t, b); u.MemoryLimit != 0 {
		t.Errorf("limit %d after it was lifted", u.MemoryLimit)
	}
	for _, bad := range []Limits{{Memory: -1}, {CPU: -0.5}, {PIDs: -1}} {
		if err := b.SetLimits(bad); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("SetLimits(%+v) = %v, want invalid", bad, err)
		}
	}
	stop()
}

func TestKillReachesEveryDescendant(t *testing.T) {
	for name, freeze := range map[string]bool{"running": false, "frozen": true} {
		t.Run(name, func(t *testing.T) {
			b := box(t, shard(t, driver(t, name), "shard-0", 0), "box", Limits{Memory: 256 * mib, PIDs: 200})
			c := command(t, b, "/bin/sh", "-c", tree)
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the tree is up", func() bool { return usage(t, b).PIDs >= 41 })
			if freeze {
				if err := b.Freeze(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			start := time.Now()
			if err := b.Kill(); err != nil {
				t.Fatal(err)
			}
			if err := c.Wait(); err == nil {
				t.Error("the first process ended well")
			}
			// The counter knows zombies too, so it takes the host's init to reap the rest.
			eventually(t, "nobody is left", func() bool { return usage(t, b).PIDs == 0 })
			t.Logf("41 processes killed and reaped in %v", time.Since(start))
			if err := b.Remove(t.Context()); err != nil {
				t.Error(err)
			}
			if err := b.Remove(t.Context()); err != nil {
				t.Errorf("removed again: %v", err)
			}
		})
	}
}

func TestRemoveKillsWaitsAndTakesCommandsGroupsToo(t *testing.T) {
	d := driver(t, "rm")
	s := shard(t, d, "shard-0", 0)
	b := box(t, s, "box", Limits{Memory: 256 * mib})
	for _, e := range []string{"e1", "e2"} {
		if err := s.Dirs().MakeExec("box", e); err != nil {
			t.Fatal(err)
		}
	}
	c := command(t, b, "/bin/sh", "-c", tree)
	fd, err := s.Dirs().OpenExec("box", "e1")
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	c.SysProcAttr.CgroupFD = fd
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the tree is up", func() bool { return usage(t, b).PIDs >= 41 })
	if yes, err := s.Dirs().Populated("box", "e1"); !yes || err != nil {
		t.Errorf("Populated(e1) = %v, %v", yes, err)
	}
	if err := s.Dirs().RemoveExec("box", "e1"); !errors.Is(err, ErrPopulated) {
		t.Errorf("RemoveExec(e1) = %v, want ErrPopulated", err)
	}
	if err := b.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait()
	list, err := d.List()
	if diff := cmp.Diff([]ShardBoxes{{Shard: "shard-0"}}, list); diff != "" || err != nil {
		t.Errorf("List() (-want +got): %v\n%s", err, diff)
	}
	if _, err := s.OpenBox("box"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("OpenBox() of a removed box = %v", err)
	}
}

// TestRemoveFindsStragglersInV1 has a process in the v1 groups of a box only, where cgroup.kill doesn't reach it.
func TestRemoveFindsStragglersInV1(t *testing.T) {
	s := shard(t, driver(t, "v1"), "shard-0", 0)
	b := box(t, s, "box", Limits{Memory: 256 * mib})
	need.Kernel(t, need.Feature{Name: "a v1 hierarchy in use", Major: never, Probe: func() error {
		if len(s.Dirs().v1()) == 0 {
			return errors.New("v2 has memory, cpu and pids")
		}
		return nil
	}})
	c := command(t, b, "/bin/sleep", "1000")
	c.SysProcAttr.UseCgroupFD = false
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "sleep has joined", func() bool { return usage(t, b).PIDs > 0 })
	if err := b.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(); err == nil {
		t.Error("sleep ended well")
	}
}

// never is a kernel version that there isn't: what a probe finds missing is a property of the host, whatever its age.
const never = 1000

// TestRemoveTellsWhatIsLeft has a process that can't die: one that is frozen by v1's freezer, where SIGKILL waits for
// the thaw.
func TestRemoveTellsWhatIsLeft(t *testing.T) {
	s := shard(t, driver(t, "left"), "shard-0", 0)
	b := box(t, s, "box", Limits{})
	freezer := filepath.Join("/sys/fs/cgroup/freezer", fmt.Sprintf("dsec-cgtest%dleft", os.Getpid()))
	need.Kernel(t, need.Feature{Name: "the v1 freezer", Major: never, Probe: func() error { return os.Mkdir(freezer, 0o755) }})
	defer func() {
		if err := os.Remove(freezer); err != nil {
			t.Error(err)
		}
	}()
	c := command(t, b, "/bin/sleep", "1000")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	set := func(file, value string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(freezer, file), []byte(value), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	set("cgroup.procs", strconv.Itoa(c.Process.Pid))
	set("freezer.state", "FROZEN")
	eventually(t, "it is frozen", func() bool {
		state, err := os.ReadFile(filepath.Join(freezer, "freezer.state"))
		return err == nil && string(state) == "FROZEN\n"
	})
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	err := b.Remove(ctx)
	var left *LeftError
	if !errors.As(err, &left) || !slices.Contains(left.PIDs, c.Process.Pid) || !slices.Contains(left.Groups, "v2:box") {
		t.Errorf("Remove() with a process that can't die = %v, want *LeftError with the group and %d", err, c.Process.Pid)
	}
	set("freezer.state", "THAWED")
	if err := b.Remove(t.Context()); err != nil {
		t.Error(err)
	}
	_ = c.Wait()
}

func TestFreezeAndThaw(t *testing.T) {
	s := shard(t, driver(t, "frz"), "shard-0", 0)
	b := box(t, s, "box", Limits{})
	c := command(t, b, "/bin/sh", "-c", "read x; exit 7")
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	frozen := func() bool {
		yes, err := b.Frozen()
		if err != nil {
			t.Fatal(err)
		}
		return yes
	}
	if frozen() {
		t.Error("frozen at birth")
	}
	if err := b.Freeze(t.Context()); err != nil || !frozen() {
		t.Errorf("Freeze() = %v, frozen %v", err, frozen())
	}
	in.Close()
	if err := b.Thaw(t.Context()); err != nil || frozen() {
		t.Errorf("Thaw() = %v, frozen %v", err, frozen())
	}
	_ = c.Wait()
	if code := c.ProcessState.ExitCode(); code != 7 {
		t.Errorf("exit code %d after the thaw", code)
	}
}

func TestBoxesInParallel(t *testing.T) {
	d := driver(t, "par")
	s := shard(t, d, "shard-0", 0)
	fds := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	before := fds()
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 10 {
				b, err := s.Box(fmt.Sprintf("b%d-%d", w, i), Limits{Memory: 64 * mib, CPU: 1, PIDs: 10})
				if err == nil {
					_, err = b.Usage()
				}
				if err == nil {
					err = b.Remove(t.Context())
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if after := fds(); after != before {
		t.Errorf("%d descriptors, %d before", after, before)
	}
	if list, err := d.List(); err != nil || len(list) != 1 || len(list[0].Boxes) != 0 {
		t.Errorf("List() = %v, %v; want one empty shard", list, err)
	}
}

func TestBoxesAreTakenUpAgain(t *testing.T) {
	d := driver(t, "up")
	s := shard(t, d, "shard-3", 0)
	box(t, s, "one", Limits{Memory: 64 * mib})
	if _, err := s.Box("one", Limits{}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a second box of one name: %v, want fs.ErrExist", err)
	}
	again := shard(t, d, "shard-3", 0)
	b, err := again.OpenBox("one")
	if err != nil {
		t.Fatal(err)
	}
	if u := usage(t, b); u.MemoryLimit != 64*mib {
		t.Errorf("limit of the box that was taken up: %d", u.MemoryLimit)
	}
	keeper, err := d.Keeper()
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(keeper)
	list, err := d.List()
	if diff := cmp.Diff([]ShardBoxes{{"shard-3", []string{"one"}}}, list); diff != "" || err != nil {
		t.Errorf("List() (-want +got): %v\n%s", err, diff)
	}
	if err := s.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}

func BenchmarkBox(b *testing.B) {
	instance := fmt.Sprintf("cgbench%d", os.Getpid())
	d, err := Open(instance)
	if err != nil {
		b.Fatal(err)
	}
	defer d.Close()
	s, err := d.Shard("shard-0", 0)
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	for b.Loop() {
		x, err := s.Box("box", Limits{Memory: 64 * mib, CPU: 1, PIDs: 100})
		if err != nil {
			b.Fatal(err)
		}
		if err := x.Remove(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	if err := RemoveAll(context.Background(), instance); err != nil {
		b.Error(err)
	}
}
