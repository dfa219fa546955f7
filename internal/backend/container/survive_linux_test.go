package container_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/backend/backendtest"
	"github.com/dsec-io/dsec/internal/backend/container"
	"github.com/dsec-io/dsec/internal/edge"
	"github.com/dsec-io/dsec/internal/keeper"
	"github.com/dsec-io/dsec/internal/leakcheck"
	"golang.org/x/sys/unix"
)

func params(id, project string) edge.BoxParams {
	return edge.BoxParams{
		ID: id, Project: project,
		Spec: api.Spec{
			Backend: "container", Image: "busybox", User: "0", Workdir: "/", Hostname: "sandbox", Isolation: "shared",
			Resources: api.Resources{CPU: new(1.0), MemoryMB: new(int64(64)), PIDs: new(int64(64))},
		},
		Persist: func(json.RawMessage) error { return nil },
	}
}

func mustStart(t testing.TB, b *container.Backend, p edge.BoxParams) edge.Box {
	t.Helper()
	box, err := b.Start(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	return box
}

func wantEcho(t testing.TB, box edge.Box, word string) {
	t.Helper()
	if out, _, err := backendtest.Exec(t.Context(), box, "/bin/echo", word); err != nil || out != word+"\n" {
		t.Errorf("echo %s: %q, %v", word, out, err)
	}
}

// wantEchoAgain repeats an echo that may run into the death of the shard, and returns how long it took to be answered.
func wantEchoAgain(t testing.TB, box edge.Box, word string) time.Duration {
	t.Helper()
	began := time.Now()
	until(t, "an answer", func() bool {
		out, _, err := backendtest.Exec(t.Context(), box, "/bin/echo", word)
		return err == nil && out == word+"\n"
	})
	return time.Since(began)
}

// process finds the one process in a group of the host's instance.
func (h *host) process(t testing.TB, group string) int {
	t.Helper()
	for _, root := range []string{"/sys/fs/cgroup/unified", "/sys/fs/cgroup"} {
		b, err := os.ReadFile(filepath.Join(root, "dsec-"+h.instance, group, "cgroup.procs"))
		if f := strings.Fields(string(b)); err == nil && len(f) > 0 {
			pid, err := strconv.Atoi(f[0])
			if err != nil {
				t.Fatal(err)
			}
			return pid
		}
	}
	return 0
}

func (h *host) kill(t testing.TB, group string) int {
	t.Helper()
	pid := h.process(t, group)
	if pid == 0 {
		t.Fatalf("no process in %s", group)
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	return pid
}

// until polls for an event in the kernel that nobody tells of.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(time.Minute)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

func TestSandboxesSurviveShardAndKeeper(t *testing.T) {
	h := newHost(t, "k"+strconv.Itoa(os.Getpid())+"s", 1)
	leakcheck.CheckInstance(t, h.instance)
	var mu sync.Mutex
	var told []string
	h.notify = func(id string, n container.Notice, _ map[string]any) {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, id+" "+string(n))
	}
	b := h.open(t)
	b.Warm()
	t.Cleanup(func() { h.close(t, b) })
	one, two := mustStart(t, b, params("one", "p")), mustStart(t, b, params("two", "p"))
	t.Cleanup(func() {
		for _, box := range []edge.Box{one, two} {
			if err := box.Stop(context.Background()); err != nil {
				t.Error(err)
			}
		}
	})
	wantEcho(t, one, "1")
	const self = "shard-0/self"

	dead := h.kill(t, self)
	t.Logf("shard killed: an exec was answered after %v", wantEchoAgain(t, one, "2"))
	wantEcho(t, two, "3")
	if pid := h.process(t, self); pid == dead || pid == 0 {
		t.Errorf("the shard is %d, was %d", pid, dead)
	}
	mu.Lock()
	for _, want := range []string{"one aether_lost", "two aether_lost", "one aether_back", "two aether_back"} {
		if !slices.Contains(told, want) {
			t.Errorf("not told: %s (but %v)", want, told)
		}
	}
	mu.Unlock()

	// The keeper's death is nobody's business but the edge's, and the new keeper is as good as the old.
	shard, gone := h.process(t, self), h.kill(t, "keeper")
	until(t, "a new keeper", func() bool { p := h.process(t, "keeper"); return p != 0 && p != gone })
	wantEcho(t, one, "4")
	if pid := h.process(t, self); pid != shard {
		t.Errorf("the shard was %d, is %d after the keeper's death", shard, pid)
	}
	until(t, "the shard's adoption", func() bool { return h.logged("shard given to the new keeper") })
	// The connection to the dead keeper leaves no hole among the low descriptors: what is received next would get the
	// number, which ends the edge's connection and the commands on it.
	three := mustStart(t, b, params("three", "p"))
	for fd := range keeper.LowFDs {
		if to, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", shard, fd)); err != nil || strings.Contains(to, "pidfd") {
			t.Errorf("descriptor %d of the shard: %q, %v", fd, to, err)
		}
	}
	wantEcho(t, three, "4")
	if err := three.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	h.kill(t, self)
	wantEchoAgain(t, two, "5")

	// Both at once.
	h.kill(t, "keeper")
	h.kill(t, self)
	t.Logf("keeper and shard killed: an exec was answered after %v", wantEchoAgain(t, one, "6"))
	wantEcho(t, two, "7")
}

// A whole node's memory of its sandboxes is the edge's record: edge, keeper and shards may all be dead.
func TestAdoptionWithoutShardAndKeeper(t *testing.T) {
	h := newHost(t, "k"+strconv.Itoa(os.Getpid())+"a", 0)
	leakcheck.CheckInstance(t, h.instance)
	b := h.open(t)
	b.Warm()
	box := mustStart(t, b, params("one", "p"))
	if out, _, err := backendtest.Exec(t.Context(), box, "/bin/sh", "-c", "echo kept >/tmp/f"); err != nil {
		t.Fatalf("%q, %v", out, err)
	}
	state := box.State()
	h.close(t, b)
	h.kill(t, "keeper")
	h.kill(t, "shard-0/self")
	b = h.open(t)
	t.Cleanup(func() { h.close(t, b) })
	again, err := b.Adopt(t.Context(), "one", state)
	if err != nil {
		t.Fatal(err)
	}
	b.Warm()
	if out, _, err := backendtest.Exec(t.Context(), again, "/bin/cat", "/tmp/f"); err != nil || out != "kept\n" {
		t.Errorf("after adoption: %q, %v", out, err)
	}
	if err := again.Stop(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestProjectsAndOwnIsolationHaveShardsOfTheirOwn(t *testing.T) {
	h := newHost(t, "k"+strconv.Itoa(os.Getpid())+"p", 0)
	leakcheck.CheckInstance(t, h.instance)
	b := h.open(t)
	b.Warm()
	t.Cleanup(func() { h.close(t, b) })
	own := params("own", "a")
	own.Spec.Isolation = "own"
	var boxes []edge.Box
	shards := map[string]string{}
	for _, p := range []edge.BoxParams{params("a1", "a"), params("a2", "a"), params("b1", "b"), own, params("a3", "a")} {
		box := mustStart(t, b, p)
		boxes = append(boxes, box)
		var s struct{ Shard string }
		if err := json.Unmarshal(box.State(), &s); err != nil {
			t.Fatal(err)
		}
		shards[p.ID] = s.Shard
	}
	if shards["a1"] != shards["a2"] || shards["a1"] != shards["a3"] || shards["a1"] == shards["b1"] || shards["own"] == shards["a1"] || shards["own"] == shards["b1"] {
		t.Errorf("shards: %v", shards)
	}
	for _, box := range boxes {
		wantEcho(t, box, "x")
		if err := box.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	}
	until(t, "the end of the own shard", func() bool { return h.process(t, shards["own"]+"/self") == 0 })
}

func BenchmarkLife(b *testing.B) {
	for _, pool := range []int{0, 8} {
		b.Run(fmt.Sprintf("pool-%d", pool), func(b *testing.B) {
			h := newHost(b, "k"+strconv.Itoa(os.Getpid())+"b"+strconv.Itoa(pool), pool)
			be := h.open(b)
			be.Warm()
			defer h.close(b, be)
			var start, exec, stop []time.Duration
			n := 0
			for b.Loop() {
				n++
				t0 := time.Now()
				box, err := be.Start(b.Context(), params("b"+strconv.Itoa(n), "p"))
				if err != nil {
					b.Fatal(err)
				}
				t1 := time.Now()
				if _, _, err := backendtest.Exec(b.Context(), box, "/bin/true"); err != nil {
					b.Fatal(err)
				}
				t2 := time.Now()
				if err := box.Stop(b.Context()); err != nil {
					b.Fatal(err)
				}
				start, exec, stop = append(start, t1.Sub(t0)), append(exec, t2.Sub(t1)), append(stop, time.Since(t2))
			}
			for name, d := range map[string][]time.Duration{"start": start, "exec": exec, "stop": stop} {
				slices.Sort(d)
				b.ReportMetric(float64(d[len(d)/2].Microseconds()), name+"-p50-us")
				b.ReportMetric(float64(d[len(d)/10].Microseconds()), name+"-p10-us")
			}
		})
	}
}

// TestDeathsAtEveryMoment: whenever the shard dies while a new keeper is taking it over, and whenever a keeper dies that
// has just come, the sandbox is reached again.
func TestDeathsAtEveryMoment(t *testing.T) {
	h := newHost(t, "k"+strconv.Itoa(os.Getpid())+"m", 0)
	leakcheck.CheckInstance(t, h.instance)
	b := h.open(t)
	b.Warm()
	t.Cleanup(func() { h.close(t, b) })
	box := mustStart(t, b, params("one", "p"))
	t.Cleanup(func() {
		if err := box.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	const rounds = 24
	for i := range rounds {
		dead := h.process(t, "keeper")
		h.kill(t, "keeper")
		if i%2 == 1 { // while the new one takes over; else both at once
			until(t, "a new keeper", func() bool { p := h.process(t, "keeper"); return p != 0 && p != dead })
		}
		// From the same moment on to after the usual end of it.
		<-time.After(time.Duration(i) * 300 * time.Microsecond)
		if pid := h.process(t, "shard-0/self"); pid != 0 {
			_ = unix.Kill(pid, unix.SIGKILL) // it may have gone meanwhile
		}
		if pid := h.process(t, "keeper"); pid != 0 && i%4 >= 2 {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		wantEchoAgain(t, box, "back "+strconv.Itoa(i))
		until(t, "a keeper", func() bool { return h.process(t, "keeper") != 0 })
	}
}

// TestMemoryLimitBelowWhatIsInUse is refused in a typed way, and changes nothing.
func TestMemoryLimitBelowWhatIsInUse(t *testing.T) {
	h := newHost(t, "k"+strconv.Itoa(os.Getpid())+"u", 0)
	leakcheck.CheckInstance(t, h.instance)
	b := h.open(t)
	t.Cleanup(func() { h.close(t, b) })
	box := mustStart(t, b, params("one", "p"))
	t.Cleanup(func() {
		if err := box.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if out, _, err := backendtest.Exec(t.Context(), box, "/bin/sh", "-c", `x=$(head -c 8m /dev/zero | tr "\0" x); sleep 600 >/dev/null 2>&1 & while [ ${#x} -gt 0 ]; do sleep 1; done >/dev/null 2>&1 &`); err != nil {
		t.Fatalf("%q, %v", out, err)
	}
	want := params("one", "p").Spec.Resources
	want.MemoryMB = new(int64(1))
	if err := box.SetLimits(t.Context(), want); !api.IsCode(err, api.CodeConflict) {
		t.Errorf("SetLimits() = %v", err)
	}
	wantEcho(t, box, "still here")
}
