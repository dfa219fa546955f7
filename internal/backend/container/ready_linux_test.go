package container_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dsec-io/dsec/internal/backend/container"
	"github.com/dsec-io/dsec/internal/edge"
	"github.com/dsec-io/dsec/internal/image"
	"github.com/dsec-io/dsec/internal/leakcheck"
	"github.com/dsec-io/dsec/internal/need"
	"golang.org/x/sys/unix"
)

// take waits until a sandbox that was made ahead is there, and takes it.
func take(t *testing.T, b *container.Backend, p edge.BoxParams) string {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		if id, ok := b.Take(p.Project, p.Spec, digest(t, "busybox")); ok {
			return id
		}
	}
	t.Fatal("nothing was made ahead")
	return ""
}

func digest(t *testing.T, name string) string {
	t.Helper()
	im, err := image.NewStore(slog.New(slog.DiscardHandler), filepath.Dir(need.Image(t, name))).Open(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	defer im.Close()
	return im.Digest()
}

func stopAtEnd(t *testing.T, box edge.Box) {
	t.Cleanup(func() {
		if err := box.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

func newReadyHost(t *testing.T) *host {
	t.Helper()
	h := newHost(t, "k"+strconv.Itoa(os.Getpid())+"r", 4)
	leakcheck.CheckInstance(t, h.instance)
	var made atomic.Int64
	h.newID = func() string { return "ready" + strconv.FormatInt(made.Add(1), 10) }
	return h
}

// TestReadySandboxes: what was made ahead is a sandbox like another, and only ever one of its own project and kind.
func TestReadySandboxes(t *testing.T) {
	h := newReadyHost(t)
	b := h.open(t)
	b.Warm()
	t.Cleanup(func() { h.close(t, b) })
	stopAtEnd(t, mustStart(t, b, params("first", "p")))
	p := params("", "p")
	p.ID = take(t, b, p)

	b.PutBack(p.ID)
	other := params("", "q")
	if id, ok := b.Take(other.Project, other.Spec, digest(t, "busybox")); ok {
		t.Errorf("project q was given %s, which was made for p", id)
	}
	smaller := params("", "p")
	smaller.Spec.Resources.MemoryMB = new(int64(99))
	if id, ok := b.Take("p", smaller.Spec, digest(t, "busybox")); ok {
		t.Errorf("%s has other limits than were asked for", id)
	}

	p.ID = take(t, b, p)
	box := mustStart(t, b, p)
	if got := execOut(t, box, "sh", "-c", "echo $$ > /tmp/x; hostname; id -u"); got != p.Spec.Hostname+"\n0\n" {
		t.Errorf("in the sandbox: %q", got)
	}
	if _, err := os.Stat(h.data + "/upper/" + p.ID + "/u/tmp/x"); err != nil {
		t.Errorf("its files: %v", err)
	}
	b.PutBack(p.ID) // it runs: not the pool's any more
	if err := box.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	if id := take(t, b, p); id == p.ID {
		t.Error("a stopped sandbox was given out again")
	} else {
		b.PutBack(id)
	}
	b.ForgetImage("busybox") // which may be waiting for those that were made from it
}

// TestReadySandboxesRest: for a project that asks for nothing more none are kept.
func TestReadySandboxesRest(t *testing.T) {
	h := newReadyHost(t)
	b := h.open(t)
	b.Warm()
	t.Cleanup(func() { h.close(t, b) })
	stopAtEnd(t, mustStart(t, b, params("first", "p")))
	b.PutBack(take(t, b, params("", "p")))
	b.Rest(t.Context(), time.Now())
	p := params("", "p")
	id := take(t, b, p) // it is wanted: nothing was ended
	b.PutBack(id)
	// What was under way when the project fell silent comes late, and goes with the next time.
	for end := time.Now().Add(time.Minute); ; {
		b.Rest(t.Context(), time.Now().Add(time.Hour))
		if left, err := filepath.Glob("/sys/fs/cgroup/*/dsec-" + h.instance + "/*/ready*"); err == nil && len(left) == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("sandboxes made ahead are kept for nobody")
		}
	}
	if id, ok := b.Take(p.Project, p.Spec, digest(t, "busybox")); ok {
		t.Errorf("%s was given out, and had been ended", id)
	}
}

// TestNothingIsMadeAheadOfLittleMemory: what nobody has asked for takes none that is needed.
func TestNothingIsMadeAheadOfLittleMemory(t *testing.T) {
	h := newReadyHost(t)
	var asked atomic.Int64
	var spare atomic.Bool
	h.spare = func() bool {
		asked.Add(1)
		return spare.Load()
	}
	b := h.open(t)
	b.Warm()
	t.Cleanup(func() { h.close(t, b) })
	stopAtEnd(t, mustStart(t, b, params("first", "p")))
	for end := time.Now().Add(time.Minute); asked.Load() == 0; {
		if time.Now().After(end) {
			t.Fatal("it wasn't asked whether there is memory to spare")
		}
	}
	stopAtEnd(t, mustStart(t, b, params("second", "p")))
	if left, err := filepath.Glob("/sys/fs/cgroup/*/dsec-" + h.instance + "/*/ready*"); err != nil || len(left) > 0 {
		t.Errorf("made ahead: %q, %v", left, err)
	}
	if id, ok := b.Take("p", params("", "p").Spec, digest(t, "busybox")); ok {
		t.Errorf("%s was made ahead", id)
	}
	spare.Store(true)
	stopAtEnd(t, mustStart(t, b, params("third", "p")))
	b.PutBack(take(t, b, params("", "p")))
}

// TestUppersAreApart: ext4 would otherwise look through all folders that were removed of late for each new one.
func TestUppersAreApart(t *testing.T) {
	h := newReadyHost(t)
	b := h.open(t)
	t.Cleanup(func() { h.close(t, b) })
	var fs unix.Statfs_t
	if err := unix.Statfs(h.data, &fs); err != nil {
		t.Fatal(err)
	}
	if fs.Type != unix.EXT4_SUPER_MAGIC {
		return // others don't need it
	}
	f, err := os.Open(filepath.Join(h.data, "upper"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const topDir = 0x20000 // FS_TOPDIR_FL
	if flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS); err != nil || flags&topDir == 0 {
		t.Errorf("flags of the uppers' folder: %#x, %v", flags, err)
	}
}

// TestReadySandboxDies: one whose init has died is given to nobody.
func TestReadySandboxDies(t *testing.T) {
	h := newReadyHost(t)
	b := h.open(t)
	b.Warm()
	t.Cleanup(func() { h.close(t, b) })
	stopAtEnd(t, mustStart(t, b, params("first", "p")))
	p := params("", "p")
	dead := take(t, b, p)
	killInit(t, h.instance, dead)
	b.PutBack(dead)
	// Until its end is noticed it may be given out still, and is then refused by Start. What is put back is given out last.
	const rounds = 100
	for clean, end := 0, time.Now().Add(time.Minute); clean < rounds; clean++ {
		if p.ID = take(t, b, p); p.ID == dead {
			clean = 0
		}
		if b.PutBack(p.ID); time.Now().After(end) {
			t.Fatal("the dead sandbox is still given out")
		}
	}
	p.ID = take(t, b, p)
	stopAtEnd(t, mustStart(t, b, p))
}

func killInit(t *testing.T, instance, id string) {
	t.Helper()
	lists, err := filepath.Glob("/sys/fs/cgroup/*/dsec-" + instance + "/*/" + id + "/cgroup.procs")
	if err != nil || len(lists) == 0 {
		t.Fatalf("no group of %s: %v", id, err)
	}
	raw, err := os.ReadFile(lists[0])
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil {
		t.Fatalf("processes of %s: %q", id, raw)
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
}
