package edge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/edge/disk"
	"github.com/dsec-io/dsec/internal/edge/records"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("EDGE_CRASH_DIR"); dir != "" {
		os.Exit(crashChild(dir, os.Getenv("EDGE_CRASH_AT")))
	}
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Println("left running:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// crashFiles kills its process at the nth file operation: before it, after half of it where it writes, or after it.
type crashFiles struct {
	disk.Files
	at   int
	how  string
	next int
}

func die() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

func (c *crashFiles) step(do func() error, half func()) error {
	c.next++
	if c.next != c.at {
		return do()
	}
	switch c.how {
	case "half":
		half()
	case "after":
		_ = do()
	}
	die()
	return nil
}

func (c *crashFiles) Write(label, path string, data []byte) error {
	return c.step(func() error { return c.Files.Write(label, path, data) }, func() { _ = c.Files.Write(label, path, data[:len(data)/2]) })
}

func (c *crashFiles) Append(label, path string, data []byte) error {
	return c.step(func() error { return c.Files.Append(label, path, data) }, func() { _ = c.Files.Append(label, path, data[:len(data)/2]) })
}

func (c *crashFiles) Rename(label, from, to string) error {
	return c.step(func() error { return c.Files.Rename(label, from, to) }, func() {})
}

func (c *crashFiles) Sync(label, path string) error {
	return c.step(func() error { return c.Files.Sync(label, path) }, func() {})
}

func (c *crashFiles) Remove(label, path string) error {
	return c.step(func() error { return c.Files.Remove(label, path) }, func() {})
}

// crashChild lives an edge's life and prints what it answered, until it dies on the way.
func crashChild(dir, at string) int {
	files := &crashFiles{}
	if _, err := fmt.Sscanf(at, "%d %s", &files.at, &files.how); err != nil {
		fmt.Println("error", err)
		return 1
	}
	if err := crashLife(dir, files); err != nil {
		fmt.Println("error", err)
		return 1
	}
	fmt.Println("whole", files.next)
	return 0
}

func crashLife(dir string, files records.Files) error {
	ctx := context.Background()
	inst, err := OpenInstance(filepath.Join(dir, "data"))
	if err != nil {
		return err
	}
	f, err := newFake(filepath.Join(dir, "fake"))
	if err != nil {
		return err
	}
	e, err := New(ctx, Config{Instance: inst, Backend: f, Image: testImage, files: files})
	if err != nil {
		return err
	}
	answered := func(words ...any) { fmt.Println(words...) }
	a, err := e.create(ctx, "p", NewID(0), api.Spec{Image: "busybox"})
	if err != nil {
		return err
	}
	answered("running", a.id)
	b, err := e.create(ctx, "p", NewID(0), api.Spec{Image: "busybox", Command: []string{"say", "x"}})
	if err != nil {
		return err
	}
	answered("running", b.id)
	if _, err := e.patch(ctx, a, api.Patch{Labels: &map[string]string{"k": "v"}, Resources: &api.Resources{MemoryMB: new(int64(64))}}); err != nil {
		return err
	}
	answered("patched", a.id)
	always := func() bool { return true }
	for range 2 {
		answered("pausing", a.id)
		if _, err := e.pauseIf(ctx, a, onRequest, always); err != nil {
			return err
		}
		answered("paused", a.id)
		answered("resuming", a.id)
		if _, err := e.resume(ctx, a, onRequest); err != nil {
			return err
		}
		answered("resumed", a.id)
	}
	answered("stopping", b.id)
	if _, err := e.stop(ctx, b, "done"); err != nil {
		return err
	}
	answered("stopped", b.id)
	if err := e.leave(b); err != nil {
		return err
	}
	answered("forgotten", b.id)
	return nil
}

// TestKilledAtEveryWrite kills an edge at each of its file operations in turn, and looks at what the next one finds.
func TestKilledAtEveryWrite(t *testing.T) {
	for _, how := range []string{"before", "half", "after"} {
		for at := 1; ; at++ {
			if whole := killedAt(t, at, how); whole {
				if at < 15 {
					t.Errorf("only %d file operations", at)
				}
				break
			}
		}
	}
}

func killedAt(t *testing.T, at int, how string) (whole bool) {
	t.Helper()
	dir, err := os.MkdirTemp("", "edge")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "EDGE_CRASH_DIR="+dir, fmt.Sprintf("EDGE_CRASH_AT=%d %s", at, how))
	out, err := cmd.Output()
	if _, killed := errors.AsType[*exec.ExitError](err); err != nil && !killed {
		t.Fatal(err)
	}
	said := map[string]string{} // id: the last answer
	patched := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		word, id, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch {
		case word == "error":
			t.Fatalf("child: %s", line)
		case word == "whole":
			return true
		case word == "patched" && said[id] != "running":
			t.Fatalf("child: %s", out)
		}
		said[id] = word
		patched[id] = patched[id] || word == "patched"
	}
	n := &node{t: t, dir: dir}
	n.up()
	defer n.stop()
	what := fmt.Sprintf("killed %s operation %d, answers %v", how, at, said)
	var page api.SandboxList
	n.must("sandbox.list", "", nil, &page)
	found := map[string]api.Sandbox{}
	running := 0
	for _, sb := range page.Items {
		found[sb.ID] = sb
		lives := sb.State == api.StateRunning || sb.State == api.StatePaused
		if lives {
			running++
			if still, err := n.fake.boxes[sb.ID].Paused(); err != nil || still != (sb.State == api.StatePaused) {
				t.Errorf("%s: %s is %s and stands still: %v, %v", what, sb.ID, sb.State, still, err)
			}
		}
		if !lives && !sb.State.Ended() {
			t.Errorf("%s: %s is %s", what, sb.ID, sb.State)
		}
		if lives != n.fake.living()[sb.ID] {
			t.Errorf("%s: %s is %s, lives: %v", what, sb.ID, sb.State, n.fake.living()[sb.ID])
		}
		for i, ev := range n.events(sb.ID, 0, false) {
			if ev.Seq != int64(i+1) {
				t.Errorf("%s: event %d has seq %d", what, i, ev.Seq)
			}
		}
	}
	if len(n.fake.living()) != running || n.edge.room.Used().Sandboxes != int64(running) {
		t.Errorf("%s: %d living, %d running, %+v in use", what, len(n.fake.living()), running, n.edge.room.Used())
	}
	for id, word := range said {
		sb, ok := found[id]
		if !ok {
			sb.Spec.Resources.MemoryMB = new(int64(0))
		}
		if unlike(word, sb, ok) || patched[id] && (sb.Spec.Labels["k"] != "v" || *sb.Spec.Resources.MemoryMB != 64) {
			t.Errorf("%s: %s is %+v", what, id, sb)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "data", "sandboxes", "*.tmp")); len(left) != 0 {
		t.Errorf("%s: %v left", what, left)
	}
	return false
}

// unlike tells whether a sandbox, if it was found, isn't what its last answer allows.
func unlike(word string, sb api.Sandbox, found bool) bool {
	runs, paused := sb.State == api.StateRunning, sb.State == api.StatePaused
	switch word {
	case "running", "patched", "resumed":
		return !runs
	case "pausing", "resuming":
		return !paused && !runs
	case "paused":
		return !paused
	case "stopping":
		return !runs && !sb.State.Ended()
	case "stopped":
		return found && sb.State != api.StateStopped
	case "forgotten":
		return found
	}
	return true
}

func TestAdoption(t *testing.T) {
	n := startNode(t, nil)
	alive, dead := n.create(plain), n.create(plain)
	n.stop()
	if err := os.Remove(n.fake.alive(dead.ID)); err != nil {
		t.Fatal(err)
	}
	n.up()
	if tr := n.exec("p", alive.ID, argv("say", "hi"), nil); string(tr.stdout) != "hi" {
		t.Errorf("exec in the adopted: %+v", tr)
	}
	if v := n.get(dead.ID); v.State != api.StateFailed || v.Reason == "" {
		t.Errorf("the dead one: %+v", v)
	}
	if got := n.eventTypes(alive.ID); !slices.Equal(got, []string{"created", "running", "adopted"}) {
		t.Errorf("events %v", got)
	}
	if u := n.edge.room.Used().Sandboxes; u != 1 {
		t.Errorf("%d in use", u)
	}
	n.fake.kill(alive.ID)
	until(t, "the death of the adopted is noticed", func() bool { return n.get(alive.ID).State == api.StateFailed })
}

func TestSandboxWhoseRecordHasVanishedIsRemoved(t *testing.T) {
	n := startNode(t, nil)
	kept, lost, later := n.create(plain), n.create(plain), n.create(plain)
	n.stop()
	n.edit(later.ID, func(r map[string]any) { r["version"] = 99 })
	if err := os.Remove(filepath.Join(n.inst.DataDir, "sandboxes", lost.ID+".json")); err != nil {
		t.Fatal(err)
	}
	n.up()
	if living := n.fake.living(); !living[kept.ID] || living[lost.ID] || !living[later.ID] {
		t.Errorf("living %v, want %s and %s", living, kept.ID, later.ID)
	}
	if tr := n.exec("p", kept.ID, argv("say", "hi"), nil); string(tr.stdout) != "hi" {
		t.Errorf("exec in the one that stays: %+v", tr)
	}
}

// edit changes a record while no edge runs.
func (n *node) edit(id string, change func(map[string]any)) {
	n.t.Helper()
	path := filepath.Join(n.inst.DataDir, "sandboxes", id+".json")
	raw, err := os.ReadFile(path)
	if err != nil {
		n.t.Fatal(err)
	}
	raw = bytes.TrimRight(raw, "\n")
	var rec map[string]any
	if err := json.Unmarshal(raw[bytes.LastIndexByte(raw, '\n')+1:], &rec); err != nil {
		n.t.Fatal(err)
	}
	change(rec)
	if err := os.WriteFile(path, encode(n.t, rec), 0o600); err != nil {
		n.t.Fatal(err)
	}
}

func TestOddRecords(t *testing.T) {
	n := startNode(t, nil)
	rebooted, foreign, later, torn, stopping, creating := n.create(plain), n.create(plain), n.create(plain), n.create(plain), n.create(plain), n.create(plain)
	n.stop()
	n.edit(rebooted.ID, func(r map[string]any) { r["boot_id"] = "another" })
	n.edit(foreign.ID, func(r map[string]any) { r["instance"] = "aaaaaaaaaa" })
	n.edit(later.ID, func(r map[string]any) { r["version"] = 99 })
	n.edit(stopping.ID, func(r map[string]any) { r["state"] = "stopping" })
	n.edit(creating.ID, func(r map[string]any) { r["state"] = "creating" })
	if err := os.Truncate(filepath.Join(n.inst.DataDir, "sandboxes", torn.ID+".json"), 0); err != nil {
		t.Fatal(err)
	}
	stranger := filepath.Join(n.inst.DataDir, "sandboxes", "notes.txt")
	if err := os.WriteFile(stranger, []byte("keep me"), 0o600); err != nil {
		t.Fatal(err)
	}
	n.up()
	if v := n.get(rebooted.ID); v.State != api.StateFailed || !strings.Contains(v.Reason, "reboot") {
		t.Errorf("rebooted: %+v", v)
	}
	if v := n.get(stopping.ID); v.State != api.StateStopped {
		t.Errorf("stopping: %+v", v)
	}
	for name, id := range map[string]string{"foreign": foreign.ID, "later": later.ID, "torn": torn.ID, "creating": creating.ID} {
		err := n.call(t.Context(), as("p", "sandbox.get", id, nil), nil)
		if !api.IsCode(err, api.CodeNotFound) {
			t.Errorf("%s: %v", name, err)
		}
		_, serr := os.Stat(filepath.Join(n.inst.DataDir, "sandboxes", id+".json"))
		untouched := name == "foreign" || name == "later"
		if n.fake.living()[id] != untouched || (serr == nil) != untouched {
			t.Errorf("%s: living %v, record %v", name, n.fake.living()[id], serr)
		}
	}
	if _, err := os.Stat(stranger); err != nil {
		t.Error(err)
	}
}

func TestAdoptionThatFailsIsNotSilent(t *testing.T) {
	n := startNode(t, nil)
	sb := n.create(plain)
	n.tune = func(c *Config) { c.Backend.(*fake).setFault("adopt", errors.New("keeper out of reach")) }
	n.restart()
	if v := n.get(sb.ID); v.State != api.StateFailed || !strings.Contains(v.Reason, "keeper out of reach") {
		t.Errorf("%+v", v)
	}
	if len(n.fake.living()) != 0 {
		t.Error("it isn't adopted and lives on")
	}
}

func TestRecordThatCannotBeWritten(t *testing.T) {
	files := &failingFiles{}
	n := startNode(t, func(c *Config) { c.files = files })
	sb := n.create(plain)
	files.set(func() { files.fail = syscall.ENOSPC })
	wantCode(t, n.call(t.Context(), as("p", "sandbox.create", "", encode(n.t, plain)), nil), api.CodeDiskFull)
	if len(n.fake.living()) != 1 {
		t.Errorf("living: %v", n.fake.living())
	}
	wantCode(t, n.call(t.Context(), as("p", "sandbox.patch", sb.ID, []byte(`{"env":{"A":"1"}}`)), nil), api.CodeDiskFull)
	if v := n.get(sb.ID); len(v.Spec.Env) != 0 {
		t.Errorf("env %v", v.Spec.Env)
	}
	n.must("sandbox.stop", sb.ID, nil, nil) // what happened is true, on record or not
	if v := n.get(sb.ID); v.State != api.StateStopped {
		t.Errorf("%+v", v)
	}
}

type failingFiles struct {
	disk.Files

	mu   sync.Mutex // guards what follows
	fail error
	sync error

	onSync func(path string)
}

// set changes what happens from now on.
func (f *failingFiles) set(how func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	how()
}

func (f *failingFiles) failure() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fail
}

func (f *failingFiles) Sync(label, path string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.sync != nil {
		return f.sync
	}
	if f.onSync != nil {
		f.onSync(path)
	}
	return f.Files.Sync(label, path)
}

func (f *failingFiles) Write(label, path string, data []byte) error {
	if err := f.failure(); err != nil {
		return err
	}
	return f.Files.Write(label, path, data)
}

func (f *failingFiles) Append(label, path string, data []byte) error {
	if err := f.failure(); err != nil {
		return err
	}
	return f.Files.Append(label, path, data)
}
