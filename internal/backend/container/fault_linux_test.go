package container_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dsec-io/dsec/internal/backend/container"
	"github.com/dsec-io/dsec/internal/edge"
	"github.com/dsec-io/dsec/internal/fault"
	"github.com/dsec-io/dsec/internal/idrange"
	"github.com/dsec-io/dsec/internal/leakcheck"
	"golang.org/x/sys/unix"
)

// faultRounds is how often each step fails, and settled how long everything may take to be as before.
const (
	faultRounds = 50
	endRounds   = 10
	settled     = time.Minute
)

func newFaultyHost(t *testing.T, kind string, pool int) *host {
	t.Helper()
	h := newHost(t, "k"+strconv.Itoa(os.Getpid())+kind, pool)
	leakcheck.CheckInstance(t, h.instance)
	h.faults = &fault.Set{}
	return h
}

// idsInUse counts the ranges that are given out. Trying each takes it for a moment: nobody else may ask meanwhile.
func (h *host) idsInUse(t *testing.T) int {
	t.Helper()
	raw, err := os.ReadFile("/run/dsec/idranges.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Claims []struct {
			Instance string   `json:"instance"`
			Ranges   []uint32 `json:"ranges"`
		} `json:"claims"`
	}
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	used := 0
	for _, c := range file.Claims {
		if c.Instance != h.instance {
			continue
		}
		for _, chunk := range c.Ranges {
			for i := range uint32(256) {
				base := 0x40000000 + (chunk*256+i)*idrange.Size
				if h.ids.Take(base) != nil {
					used++
				} else {
					h.ids.Release(base)
				}
			}
		}
	}
	return used
}

// held is everything that a sandbox takes: what the backend counts, what the kernel does, and what is on the disk.
func (h *host) held(t *testing.T, b *container.Backend) map[string]int {
	t.Helper()
	n := b.Held()
	n["id ranges"] = h.idsInUse(t)
	// Not the whole machine: others are at work on it, and looking at thousands of processes takes its time.
	for _, pattern := range []string{"/sys/fs/cgroup/dsec-", "/sys/fs/cgroup/*/dsec-"} {
		roots, err := filepath.Glob(pattern + h.instance)
		if err != nil {
			t.Fatal(err)
		}
		for _, root := range roots {
			h.countGroups(root, n)
		}
	}
	children, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range children {
		raw, _ := os.ReadFile(list) // a thread may have ended
		n["children"] += len(strings.Fields(string(raw)))
	}
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range fds {
		target, _ := os.Readlink("/proc/self/fd/" + e.Name())
		kind, _, _ := strings.Cut(target, ":[")
		if strings.HasPrefix(kind, "/proc/") || strings.HasPrefix(kind, h.data) || strings.HasSuffix(kind, "dsec-"+h.instance) {
			continue // what this function itself reads, who removes files, and what the test's hosts keep
		}
		n["descriptors of "+kind]++
	}
	entries, err := os.ReadDir(filepath.Join(h.data, "upper"))
	if err != nil {
		t.Fatal(err)
	}
	n["uppers"] = len(entries)
	return n
}

// steady is held once nothing goes on any more that was begun before.
func (h *host) steady(t *testing.T, b *container.Backend) map[string]int {
	t.Helper()
	before := h.held(t, b)
	for same, end := 0, time.Now().Add(settled); same < 5; {
		<-time.After(20 * time.Millisecond)
		now := h.held(t, b)
		if same++; !maps.Equal(now, before) {
			same = 0
		}
		if before = now; time.Now().After(end) {
			t.Fatal("nothing comes to rest")
		}
	}
	return before
}

// countGroups counts an instance's groups and their processes, which may go while it looks.
func (h *host) countGroups(root string, n map[string]int) {
	_ = filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			n["cgroups"]++
			raw, _ := os.ReadFile(filepath.Join(path, "cgroup.procs"))
			n["memberships of processes"] += len(strings.Fields(string(raw)))
		}
		return nil
	})
}

// sameAgain waits until everything is as it was.
func (h *host) sameAgain(t *testing.T, b *container.Backend, before map[string]int, what string) {
	t.Helper()
	var diff []string
	for end := time.Now().Add(settled); ; {
		now := h.held(t, b)
		diff = diff[:0]
		for k := range now {
			if now[k] != before[k] {
				diff = append(diff, fmt.Sprintf("%s: %d, were %d", k, now[k], before[k]))
			}
		}
		for k := range before {
			if _, there := now[k]; !there && before[k] != 0 {
				diff = append(diff, fmt.Sprintf("%s: none, were %d", k, before[k]))
			}
		}
		if len(diff) == 0 {
			return
		}
		if time.Now().After(end) {
			slices.Sort(diff)
			t.Errorf("%s: %s", what, strings.Join(diff, "; "))
			return
		}
		<-time.After(10 * time.Millisecond)
	}
}

// attempt starts a sandbox, and ends it. A start that fails takes everything back by itself: no Clean comes after it.
func attempt(t *testing.T, b *container.Backend, p edge.BoxParams) error {
	t.Helper()
	box, err := b.Start(t.Context(), p)
	if err != nil {
		return err
	}
	if err := box.Stop(context.WithoutCancel(t.Context())); err != nil {
		t.Errorf("stop %s: %v", p.ID, err)
	}
	return nil
}

// createSteps are the points that a create without anything made ahead asks in the backend.
func createSteps() []string {
	var steps []string
	for _, p := range fault.Points() {
		kind, _, _ := strings.Cut(p, ":")
		if kind == "shard" || kind == "create" && p != "create:made" && p != "create:command" && p != "create:name" || p == "box:watch" {
			steps = append(steps, p)
		}
	}
	return steps
}

// TestCase48FaultAtEveryStepLeavesNothing lets each step of a create fail, with nothing made ahead.
func TestCase48FaultAtEveryStepLeavesNothing(t *testing.T) {
	h := newFaultyHost(t, "f", 0)
	b := h.open(t)
	b.Warm()
	t.Cleanup(func() { h.close(t, b) })
	stopAtEnd(t, mustStart(t, b, params("kept", "p")))
	if err := attempt(t, b, params("whole", "p")); err != nil {
		t.Fatal(err)
	}
	for _, point := range createSteps() {
		// A start of a shard that fails takes it back; where it succeeds it stays for a minute.
		own := strings.HasPrefix(point, "shard:")
		before := h.steady(t, b)
		for i := range faultRounds {
			want := []error{unix.ENOSPC, unix.EIO}[i%2]
			h.faults.Arm(fault.Rule{Point: point, Times: 1, Err: want})
			p := params(fmt.Sprintf("x%d", i), "p")
			if own {
				p.Project = "q"
			}
			err := attempt(t, b, p)
			h.faults.Clear()
			if !errors.Is(err, want) {
				t.Errorf("%s: Start() = %v, want %v", point, err, want)
			}
		}
		h.sameAgain(t, b, before, point)
	}
	asked, hit := h.faults.Counts()
	for _, p := range createSteps() {
		if hit[p] != faultRounds {
			t.Errorf("%s was asked %d times and failed %d times", p, asked[p], hit[p])
		}
	}
	if err := attempt(t, b, params("after", "p")); err != nil {
		t.Errorf("after all that: %v", err)
	}
}

// TestCase48FaultInWhatIsMadeAhead lets the same steps fail behind the requests, and those that give out what was made.
func TestCase48FaultInWhatIsMadeAhead(t *testing.T) {
	h := newFaultyHost(t, "g", 4)
	n := 0
	h.newID = func() string { n++; return fmt.Sprintf("ready%d", n) } // the filler alone asks
	b := h.open(t)
	b.Warm()
	t.Cleanup(func() { h.close(t, b) })
	stopAtEnd(t, mustStart(t, b, params("kept", "p")))
	full := func() {
		t.Helper()
		for end := time.Now().Add(settled); ; b.Hint() {
			if held := b.Held(); held["slots"] == 4 && held["roots"] == 4 && held["made ahead"] == 2 {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("not full: %v", b.Held())
			}
		}
	}
	full()
	before := h.steady(t, b)
	steps := append(slices.DeleteFunc(createSteps(), func(p string) bool { return strings.HasPrefix(p, "shard:") }), "create:name", "ready:hand")
	const rounds = 10
	for _, point := range steps {
		_, was := h.faults.Counts()
		h.faults.Arm(fault.Rule{Point: point, Times: rounds, Err: unix.ENOSPC})
		end := time.Now().Add(settled)
		for i := 0; ; i++ {
			p := params(fmt.Sprintf("y%d", i), "p")
			if id, ok := b.Take("p", p.Spec, digest(t, "busybox")); ok {
				p.ID = id
			}
			if err := attempt(t, b, p); err != nil && !errors.Is(err, unix.ENOSPC) {
				t.Errorf("%s: Start() = %v", point, err)
			}
			if _, hit := h.faults.Counts(); hit[point]-was[point] >= rounds {
				break
			}
			if time.Now().After(end) {
				_, hit := h.faults.Counts()
				t.Errorf("%s was met only %d times", point, hit[point]-was[point])
				break
			}
		}
		h.faults.Clear()
		full()
		h.sameAgain(t, b, before, point)
	}
}

// TestCase48FaultAtTheEnd: an end that fails is tried again by whoever has the sandbox, and then leaves nothing.
func TestCase48FaultAtTheEnd(t *testing.T) {
	h := newFaultyHost(t, "e", 0)
	b := h.open(t)
	b.Warm()
	t.Cleanup(func() { h.close(t, b) })
	stopAtEnd(t, mustStart(t, b, params("kept", "p")))
	if err := attempt(t, b, params("whole", "p")); err != nil {
		t.Fatal(err)
	}
	for _, point := range []string{"end:kill", "end:groups", "end:upper", "end:files", "clean:groups"} {
		before := h.steady(t, b)
		for i := range endRounds {
			p := params(fmt.Sprintf("z%d", i), "p")
			box := mustStart(t, b, p)
			state := box.State()
			h.faults.Arm(fault.Rule{Point: point, Times: 1, Err: unix.EIO})
			err := box.Stop(t.Context())
			// The edge does so at once, and then every ten seconds.
			for range 2 {
				if err != nil || point == "clean:groups" {
					err = b.Clean(t.Context(), p.ID, state)
				}
			}
			if point != "end:files" { // which is done behind it
				h.faults.Clear()
			}
			if err != nil {
				t.Errorf("%s: %v", point, err)
			}
		}
		h.sameAgain(t, b, before, point)
		if _, hit := h.faults.Counts(); hit[point] == 0 || hit[point] != endRounds && point != "end:files" {
			t.Errorf("%s was met %d times", point, hit[point])
		}
	}
}

// TestFaultAtAdoption: an adoption that fails leaves a sandbox that can be adopted or cleaned away.
func TestFaultAtAdoption(t *testing.T) {
	h := newFaultyHost(t, "d", 0)
	for _, point := range []string{"adopt:shard", "adopt:groups", "box:watch", "adopt:announce"} {
		b := h.open(t)
		b.Warm()
		kept := mustStart(t, b, params("kept", "p"))
		state := kept.State()
		h.close(t, b)
		b = h.open(t)
		if _, err := b.Adopt(t.Context(), "kept", state); err != nil {
			t.Fatal(err)
		}
		b.Warm()
		whole := h.steady(t, b)
		h.close(t, b)
		b = h.open(t)
		for range 10 {
			h.faults.Arm(fault.Rule{Point: point, Times: 1, Err: unix.EIO})
			if _, err := b.Adopt(t.Context(), "kept", state); !errors.Is(err, unix.EIO) {
				t.Errorf("%s: Adopt() = %v", point, err)
			}
		}
		box, err := b.Adopt(t.Context(), "kept", state)
		if err != nil {
			t.Fatalf("%s: adopt after failures: %v", point, err)
		}
		wantEcho(t, box, "here")
		b.Warm()
		h.sameAgain(t, b, whole, point)
		if err := box.Stop(t.Context()); err != nil {
			t.Error(err)
		}
		// Given up instead: nothing of it stays taken.
		kept = mustStart(t, b, params("kept", "p"))
		state = kept.State()
		h.close(t, b)
		b = h.open(t)
		h.faults.Arm(fault.Rule{Point: point, Err: unix.EIO})
		if _, err := b.Adopt(t.Context(), "kept", state); !errors.Is(err, unix.EIO) {
			t.Errorf("%s: Adopt() = %v", point, err)
		}
		h.faults.Clear()
		if err := b.Clean(t.Context(), "kept", state); err != nil {
			t.Errorf("%s: %v", point, err)
		}
		b.Warm()
		if used := h.idsInUse(t); used != 0 {
			t.Errorf("%s: %d id ranges are in use, and no sandbox", point, used)
		}
		h.close(t, b)
	}
}

// TestShardForgetsWhatEndedWithoutIt: a sandbox that ends while nobody is there to tell its shard is kept by neither shard
// nor keeper.
func TestShardForgetsWhatEndedWithoutIt(t *testing.T) {
	h := newFaultyHost(t, "p", 0)
	b := h.open(t)
	b.Warm()
	kept := mustStart(t, b, params("kept", "p")).State()
	gone := mustStart(t, b, params("gone", "p")).State()
	h.close(t, b)
	b = h.open(t)
	t.Cleanup(func() { h.close(t, b) })
	box, err := b.Adopt(t.Context(), "kept", kept)
	if err != nil {
		t.Fatal(err)
	}
	stopAtEnd(t, box)
	if err := b.Clean(t.Context(), "gone", gone); err != nil {
		t.Fatal(err)
	}
	if known := b.KnownToShards(t); !slices.Equal(known, []string{"gone", "kept"}) {
		t.Fatalf("the shard knows %v before anybody has told it", known)
	}
	b.Warm()
	for end := time.Now().Add(settled); ; <-time.After(5 * time.Millisecond) {
		known := b.KnownToShards(t)
		if slices.Equal(known, []string{"kept"}) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the shard knows %v", known)
		}
	}
}
