package chronus_test

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/keeper"
)

// A tenant that stops every process it can name, while the shard's collector runs without pause, holds up nobody else:
// the two together once froze a whole shard.
func TestStopSprayHoldsNobodyElseUp(t *testing.T) {
	n := newNode(t)
	bad, good := n.sandbox("bad", nil), n.sandbox("good", nil)
	const spray = `while :; do n=$(sh -c 'echo $$'); i=0; while [ $i -lt 40 ]; do i=$((i+1)); kill -STOP $((n+i)) 2>/dev/null; done; done`
	c := bad.exec(keep("spray", "echo up; "+spray))
	c.until("the spray", func() bool { return len(c.out[0]) > 0 })
	if err := good.unary("gc.loop", []byte("4s"), nil); err != nil {
		t.Fatal(err)
	}
	var victims sync.WaitGroup
	var over atomic.Bool
	for range 4 {
		victims.Go(func() {
			for !over.Load() {
				// A victim may be stopped for good once it is the tenant's own command: that is his affair.
				bad.exec(aether.ExecStart{Argv: bytesOf("true"), TimeoutMS: 200}).finish()
			}
		})
	}
	count, worst := 0, time.Duration(0)
	for end := time.Now().Add(4 * time.Second); time.Now().Before(end) || count < 20; count++ {
		began := time.Now()
		wantExit(t, good.exe("true"), 0)
		worst = max(worst, time.Since(began))
	}
	over.Store(true)
	victims.Wait()
	st := good.stats()
	t.Logf("%d commands beside the spray, the slowest %v; %d helpers stopped, %d collections", count, worst, st.Stopped, st.GCs)
	if worst > 4*time.Second { // before any watchdog, however busy the machine is
		t.Errorf("%d commands, the slowest %v", count, worst)
	}
	if st.GCs < 20 {
		t.Errorf("the collector ran %d times only", st.GCs)
	}
}

// Neither the tenant's out-of-memory storm nor anything else that it does to its own processes ends the shard.
func TestOutOfMemoryStormLeavesTheShardAlive(t *testing.T) {
	n := newNode(t)
	bad := n.sandbox("bad", func(s *api.Spec) { s.Resources.MemoryMB = new(int64(64)) })
	good := n.sandbox("good", nil)
	pid := n.shardPID()
	hog := bad.exec(keep("hog", `while :; do dd if=/dev/zero of=/dev/null bs=100M count=1; done 2>/dev/null`))
	hog.until("its start", func() bool { return hog.started != nil })
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for end := time.Now().Add(3 * time.Second); time.Now().Before(end); {
				bad.exec(aether.ExecStart{Shell: []byte(`dd if=/dev/zero of=/dev/null bs=2M count=1 2>/dev/null`), TimeoutMS: 1000}).finish()
			}
		})
	}
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); {
		wantExit(t, good.exe("true"), 0)
	}
	wg.Wait()
	eventually(t, "a storm", func() bool {
		usage, err := bad.box.Usage()
		if err != nil {
			t.Fatal(err)
		}
		return usage.OOMKills > 0
	})
	if now := n.shardPID(); now != pid {
		t.Errorf("the shard was %d and is %d", pid, now)
	}
}

// A command for a frozen sandbox is refused before a helper could stop in it.
func TestFrozenSandboxIsRefused(t *testing.T) {
	s := newSandbox(t)
	shard, err := s.groups.Shard("shard-0", int(s.uid()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = shard.Close() })
	box, err := shard.OpenBox("box")
	if err != nil {
		t.Fatal(err)
	}
	if err := box.Freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantCode(t, s.exe("true"), api.CodeFrozen)
	if err := box.Thaw(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantExit(t, s.exe("true"), 0)
}

// uid is the shard's.
func (n *node) uid() uint32 {
	n.Helper()
	var st unix.Stat_t
	if err := unix.Stat(fmt.Sprintf("/proc/%d", n.shardPID()), &st); err == nil && st.Uid != 0 {
		return st.Uid
	}
	c, err := keeper.Dial(n.Context(), filepath.Join(n.run, "keeper.sock"))
	if err != nil {
		n.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	list, err := c.List()
	if err != nil || len(list) != 1 {
		n.Fatalf("List() = %+v, %v", list, err)
	}
	return uint32(list[0].UID)
}

// A keeper that dies takes nothing with it: the next one is given the shard, and then protects its processes.
func TestKeepersDeathIsSurvived(t *testing.T) {
	s := newSandbox(t)
	c := s.exec(keep("p", `i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); [ $((i % 100)) = 0 ] && sleep 0.05; done; exit 11`))
	c.until("output", func() bool { return len(c.out[0]) > 0 })
	shard := s.shardPID()
	k, err := keeper.Dial(t.Context(), filepath.Join(s.run, "keeper.sock"))
	if err != nil {
		t.Fatal(err)
	}
	old := k.PID()
	_ = k.Close()
	if err := unix.Kill(old, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	wantExit(t, s.exe("true"), 0)
	eventually(t, "the new keeper", func() bool {
		k, err := keeper.Dial(t.Context(), filepath.Join(s.run, "keeper.sock"))
		if err != nil {
			return false
		}
		defer func() { _ = k.Close() }()
		list, err := k.List()
		return err == nil && k.PID() != old && len(list) == 1 && list[0].PID == shard && holdsJournals(t, k.PID())
	})
	s.killShard()
	var r result
	eventually(t, "the process in the next shard", func() bool {
		r = s.attach(aether.Attach{ID: "p"}).finish()
		return !errors.Is(r.err, aether.ErrConnLost) // that of the killed shard, whose end comes a moment later
	})
	wantExit(t, r, 11)
	wantLines(t, r.out[0], 2000)
}

// holdsJournals tells whether both journals of a process have arrived in a keeper.
func holdsJournals(t testing.TB, keeper int) bool {
	t.Helper()
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", keeper))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, fd := range fds {
		if target, err := os.Readlink(fd); err == nil && strings.HasPrefix(target, "/memfd:journal") {
			n++
		}
	}
	return n == 2
}

func TestSandboxThatHasDied(t *testing.T) {
	s := newSandbox(t)
	c := s.exec(keep("p", "echo up; sleep 100"))
	c.until("output", func() bool { return len(c.out[0]) > 0 })
	shard, err := s.groups.Shard("shard-0", int(s.uid()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = shard.Close() })
	box, err := shard.OpenBox("box")
	if err != nil {
		t.Fatal(err)
	}
	if err := box.Kill(); err != nil {
		t.Fatal(err)
	}
	if r := c.finish(); r.err == nil && r.exited.InfraError == "" && !api.IsCode(r.err, api.CodeNoSuchProcess) {
		t.Errorf("the command: %v, %+v", r.err, r.exited)
	}
	eventually(t, "a refusal", func() bool {
		r := s.exe("true")
		return api.IsCode(r.err, api.CodeSandboxDied) || api.IsCode(r.err, api.CodeNotFound) || errors.Is(r.err, aether.ErrReset)
	})
}

// A server that was started in the background of a shell ignores SIGINT, and what it starts inherits that through every
// clone and exec, unless somebody undoes it.
func TestIgnoredSignalsAreNotInherited(t *testing.T) {
	signals := []os.Signal{unix.SIGINT, unix.SIGQUIT, unix.SIGUSR1, unix.SIGPIPE}
	signal.Ignore(signals...)
	t.Cleanup(func() { signal.Reset(signals...) })
	s := newSandbox(t)
	r := s.exe("grep", "SigIgn", "/proc/self/status")
	if string(r.out[0]) != "SigIgn:\t0000000000000000\n" {
		t.Errorf("got %q", r.out[0])
	}
}
