package leakcheck

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dsec-io/dsec/internal/need"
	"golang.org/x/sys/unix"
)

func take(t *testing.T) Snapshot {
	t.Helper()
	s, err := Take()
	if err != nil {
		t.Fatalf("Take() = %v", err)
	}
	return s
}

// newLine returns the one entry of after.Since(before) that has all words.
func newLine(t *testing.T, before, after Snapshot, words ...string) string {
	t.Helper()
	for _, entry := range after.Since(before) {
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(entry, w) }) {
			return entry
		}
	}
	t.Errorf("Since() = %q, want an entry with %q", after.Since(before), words)
	return ""
}

func TestSeesDescriptors(t *testing.T) {
	before := take(t)
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	newLine(t, before, take(t), "descriptor socket #")
	l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	left, err := Wait(ctx, before.onlyFDs(), func() (Snapshot, error) {
		s, err := Take()
		return s.onlyFDs(), err
	})
	if err != nil || !slices.Equal(left, nil) && !onlyPoller(left) {
		t.Errorf("after Close: left %q, err %v", left, err)
	}
}

// onlyPoller tells whether nothing is left but the runtime's poller, which is opened with the first socket and stays.
func onlyPoller(left []string) bool {
	return !slices.ContainsFunc(left, func(e string) bool { return !strings.Contains(e, "anon_inode:") })
}

func (s Snapshot) onlyFDs() Snapshot { return Snapshot{FDs: s.FDs} }

func TestSeesMount(t *testing.T) {
	need.Root(t)
	before, dir := take(t), t.TempDir()
	if err := unix.Mount("leakcheck", dir, "tmpfs", 0, "size=4k"); err != nil {
		t.Fatal(err)
	}
	newLine(t, before, take(t), "mount ", " tmpfs "+dir)
	if err := unix.Unmount(dir, 0); err != nil {
		t.Fatal(err)
	}
	if left := take(t).Since(before); slices.ContainsFunc(left, func(e string) bool { return strings.Contains(e, dir) }) {
		t.Errorf("after unmount: %q", left)
	}
}

func TestSeesCgroupAndProcess(t *testing.T) {
	need.Root(t)
	root := cgroupRoot(t)
	before := take(t)
	instance := fmt.Sprintf("leak%d", os.Getpid())
	dir := filepath.Join(root, cgroupPrefix+instance)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "sleep", "60")
	cmd.SysProcAttr = &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := fmt.Sprint(cmd.Process.Pid)
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(pid), 0); err != nil {
		t.Error(err)
	}
	after := take(t)
	newLine(t, before, after, "cgroup "+dir)
	newLine(t, before, after, "process "+pid+"/", " sleep ", cgroupPrefix+instance)
	newLine(t, before, after, "netns net:[")
	if own := after.Only(instance); len(own.Cgroups) != 1 || len(own.Processes) != 1 {
		t.Errorf("Only(%s) = %+v, want one cgroup and one process", instance, own)
	}
	if other := after.Only("nobody"); len(other.Since(Snapshot{})) != 0 {
		t.Errorf("Only(nobody) = %+v, want nothing", other)
	}

	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if err := os.Remove(dir); err != nil {
		t.Error(err)
	}
	if left := take(t).Only(instance).Since(Snapshot{}); len(left) != 0 {
		t.Errorf("after removal: %q", left)
	}
}

// cgroupRoot returns a hierarchy in which groups can be made.
func cgroupRoot(t *testing.T) string {
	t.Helper()
	mounts, err := readMounts()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mounts {
		if m.fsType == "cgroup2" || m.fsType == "cgroup" && strings.HasSuffix(m.dir, "/pids") {
			return m.dir
		}
	}
	t.Fatal("no cgroup hierarchy is mounted")
	return ""
}

// failures is a testing.TB that keeps its errors and cleanups.
type failures struct {
	testing.TB

	errors   []string
	cleanups []func()
}

func (f *failures) Errorf(format string, args ...any) {
	f.errors = append(f.errors, fmt.Sprintf(format, args...))
}

func (f *failures) Cleanup(c func()) { f.cleanups = append(f.cleanups, c) }

func TestCheckIsQuietWithoutLeak(t *testing.T) {
	f := &failures{TB: t}
	check(f, func() (Snapshot, error) { return Snapshot{Loops: []string{"loop0"}}, nil })
	f.cleanups[0]()
	if len(f.errors) != 0 {
		t.Errorf("nothing changed, yet: %q", f.errors)
	}
}

func TestWaitReportsWhatStays(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(nil)
	left, err := Wait(ctx, Snapshot{}, func() (Snapshot, error) {
		return Snapshot{Mounts: []string{"77 erofs /x"}}, nil
	})
	if want := []string{"mount 77 erofs /x"}; err != nil || !slices.Equal(left, want) {
		t.Errorf("Wait() = %q, %v, want %q", left, err, want)
	}
}
