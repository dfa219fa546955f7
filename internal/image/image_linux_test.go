package image_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/image"
	"github.com/dsec-io/dsec/internal/image/imagetest"
	"github.com/dsec-io/dsec/internal/leakcheck"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// base is where the ids of the tests' user namespaces begin on the host.
const base = 0x7e000000

// noLeaks has it that the test leaves no descriptor, and so no mount, and no loop device behind. It looks at nothing that
// the tests of other packages make at the same time.
func noLeaks(t *testing.T) {
	t.Helper()
	take := func() (leakcheck.Snapshot, error) {
		s, err := leakcheck.Take()
		foreign := func(loop string) bool {
			file, err := os.ReadFile(loop) // the name of the file behind the device
			return err != nil || !strings.Contains(string(file), "image.erofs")
		}
		return leakcheck.Snapshot{FDs: s.FDs, Loops: slices.DeleteFunc(s.Loops, foreign)}, err
	}
	before, err := take()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		if left, err := leakcheck.Wait(ctx, before, take); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
	})
}

func store(dirs ...string) *image.Store {
	return image.NewStore(slog.New(slog.DiscardHandler), dirs...)
}

func open(t *testing.T, s *image.Store, name string) *image.Image {
	t.Helper()
	im, err := s.Open(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { im.Close() })
	return im
}

func idMap() []syscall.SysProcIDMap {
	return []syscall.SysProcIDMap{{ContainerID: 0, HostID: base, Size: 65536}}
}

// userns makes a user namespace with ids 0 to 65535 from base on.
func userns(t *testing.T) int {
	t.Helper()
	c := exec.CommandContext(t.Context(), "/bin/cat")
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER, UidMappings: idMap(), GidMappings: idMap()}
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", c.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	in.Close()
	if err := c.Wait(); err != nil {
		t.Fatal(err)
	}
	return int(f.Fd())
}

func clone(t *testing.T, im *image.Image, ns int) int {
	t.Helper()
	fd, err := im.Clone(ns)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

func stat(t *testing.T, mount int, path string) unix.Stat_t {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Fstatat(mount, path, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		t.Fatalf("stat %s: %v", path, err)
	}
	return st
}

func content(t *testing.T, mount int, path string) string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/self/fd/%d/%s", mount, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func small(text string) imagetest.Tree { return imagetest.Tree{"text": {Content: text}} }

func TestOwnersAreMapped(t *testing.T) {
	noLeaks(t)
	dir := t.TempDir()
	tree := imagetest.Busybox(t).With(imagetest.Tree{
		"suid":  {Mode: 0o755 | fs.ModeSetuid, Content: "x"},
		"alien": {UID: 70000, GID: 70000, Content: "x"},
	})
	imagetest.Build(t, dir, "busybox", tree, image.Config{Env: []string{"A=1"}, User: "app"})
	im := open(t, store(dir), "busybox")
	if c := im.Config(); c.User != "app" || len(c.Env) != 1 || !strings.HasPrefix(im.Digest(), "sha256:") || im.Looped() {
		t.Errorf("config %+v, looped %v", c, im.Looped())
	}
	fd := clone(t, im, userns(t))
	for path, want := range map[string]uint32{"etc/passwd": base, "home/app": base + 1000, "alien": 65534, "bin/sh": base} {
		if st := stat(t, fd, path); st.Uid != want || st.Gid != want {
			t.Errorf("%s belongs to %d:%d on the host, want %d", path, st.Uid, st.Gid, want)
		}
	}
	if st := stat(t, fd, "suid"); st.Mode != unix.S_IFREG|unix.S_ISUID|0o755 {
		t.Errorf("mode of suid %#o", st.Mode)
	}
	mount := os.NewFile(uintptr(fd), "mount")
	c := exec.CommandContext(t.Context(), "/proc/self/fd/3/bin/busybox", "stat", "-c", "%u %g %n",
		"/proc/self/fd/3/etc/passwd", "/proc/self/fd/3/home/app")
	c.ExtraFiles = []*os.File{mount}
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER, UidMappings: idMap(), GidMappings: idMap()}
	out, err := c.CombinedOutput()
	want := "0 0 /proc/self/fd/3/etc/passwd\n1000 1000 /proc/self/fd/3/home/app\n"
	if string(out) != want || err != nil {
		t.Errorf("inside: %v\n%s", err, cmp.Diff(want, string(out)))
	}
	if _, err := unix.Openat(fd, "etc/new", unix.O_CREAT|unix.O_WRONLY, 0o644); !errors.Is(err, unix.EROFS) {
		t.Errorf("create a file: %v, want read-only", err)
	}
	mount.Close()
}

func TestScratchRunsItsProgram(t *testing.T) {
	dir := t.TempDir()
	imagetest.Build(t, dir, "scratch", imagetest.Scratch(t), image.Config{Entrypoint: []string{"/hello"}})
	fd := clone(t, open(t, store(dir), "scratch"), userns(t))
	dup, err := unix.Dup(fd)
	if err != nil {
		t.Fatal(err)
	}
	mount := os.NewFile(uintptr(dup), "mount")
	defer mount.Close()
	c := exec.CommandContext(t.Context(), "/proc/self/fd/3/hello")
	c.ExtraFiles = []*os.File{mount}
	out, _ := c.Output()
	if string(out) != "hello\n" || c.ProcessState.ExitCode() != 7 {
		t.Errorf("hello says %q and exits with %d", out, c.ProcessState.ExitCode())
	}
}

// TestOneSuperblock has 50 users at once; that all have the same device number is the kernel's word that there is one
// file system.
func TestOneSuperblock(t *testing.T) {
	noLeaks(t)
	dir := t.TempDir()
	imagetest.Build(t, dir, "a", small("a"), image.Config{})
	imagetest.Build(t, dir, "b", small("b"), image.Config{})
	s, ns := store(dir), userns(t)
	devices := make([]uint64, 50)
	var wg, made sync.WaitGroup
	made.Add(len(devices))
	for i := range devices {
		wg.Go(func() {
			im, err := s.Open(t.Context(), "a")
			if err != nil {
				t.Error(err)
				made.Done()
				return
			}
			defer im.Close()
			fd, err := im.Clone(ns)
			made.Done()
			if err != nil {
				t.Error(err)
				return
			}
			defer unix.Close(fd)
			made.Wait() // hold it until all have theirs
			var st unix.Stat_t
			if err := unix.Fstatat(fd, "text", &st, 0); err != nil {
				t.Error(err)
			}
			devices[i] = st.Dev
		})
	}
	wg.Wait()
	for _, d := range devices {
		if d != devices[0] || d == 0 {
			t.Fatalf("device numbers %v, want one", devices)
		}
	}
	a, b := clone(t, open(t, s, "a"), ns), clone(t, open(t, s, "b"), ns)
	if stat(t, a, "text").Dev == stat(t, b, "text").Dev {
		t.Error("two images have one device number")
	}
}

func TestCloneOutlivesTheImage(t *testing.T) {
	dir := t.TempDir()
	imagetest.Build(t, dir, "a", small("first"), image.Config{})
	s, ns := store(dir), userns(t)
	old := open(t, s, "a")
	fd := clone(t, old, ns)
	imagetest.Build(t, dir, "a", small("second"), image.Config{})
	fresh := open(t, s, "a")
	if old.Digest() == fresh.Digest() {
		t.Error("the digests of two versions are the same")
	}
	if got := content(t, clone(t, fresh, ns), "text"); got != "second" {
		t.Errorf("opened after the image was replaced: %q", got)
	}
	if got := content(t, clone(t, old, ns), "text"); got != "first" {
		t.Errorf("cloned from the image that was replaced: %q", got)
	}
	if err := errors.Join(old.Close(), old.Close()); err != nil {
		t.Error(err)
	}
	if _, err := old.Clone(ns); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Clone() of a closed image = %v", err)
	}
	if got := content(t, fd, "text"); got != "first" {
		t.Errorf("clone of a closed image: %q", got)
	}
	if got := content(t, clone(t, open(t, s, "a"), ns), "text"); got != "second" {
		t.Errorf("opened again: %q", got)
	}
}

func TestFirstStoreWins(t *testing.T) {
	data, machine := t.TempDir(), t.TempDir()
	imagetest.Build(t, data, "both", small("data"), image.Config{User: "data"})
	imagetest.Build(t, machine, "both", small("machine"), image.Config{User: "machine"})
	imagetest.Build(t, machine, "only", small("only"), image.Config{})
	if err := os.MkdirAll(filepath.Join(machine, "half"), 0o755); err != nil {
		t.Fatal(err)
	}
	s := store(filepath.Join(data, "absent"), data, machine)
	if got := open(t, s, "both").Config().User; got != "data" {
		t.Errorf("both comes from %s", got)
	}
	list, err := s.List()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, i := range list {
		var broken *image.BrokenError
		got = append(got, fmt.Sprintf("%s first=%v sound=%v broken=%v", i.Name, i.Dir == data, i.Size > 0 && i.Config.Digest != "", errors.As(i.Err, &broken)))
	}
	want := []string{
		"both first=true sound=true broken=false", "half first=false sound=false broken=true",
		"only first=false sound=true broken=false",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("List() (-want +got):\n%s", diff)
	}
}

func TestNamesAreRefused(t *testing.T) {
	s := store(t.TempDir())
	for name, code := range map[string]api.Code{
		"": api.CodeInvalid, "..": api.CodeInvalid, "../x": api.CodeInvalid, "a/b": api.CodeInvalid, "A": api.CodeInvalid,
		".a": api.CodeInvalid, "a b": api.CodeInvalid, "a\x00": api.CodeInvalid, strings.Repeat("a", 129): api.CodeInvalid,
		"-a": api.CodeInvalid, "nix": api.CodeNoSuchImage, "a..b": api.CodeNoSuchImage,
		strings.Repeat("a", 128): api.CodeNoSuchImage,
	} {
		_, err := s.Open(t.Context(), name)
		var told *api.Error
		if !errors.As(err, &told) || told.Code != code || told.Field != "image" || told.Hint == "" {
			t.Errorf("Open(%.20q) = %#v, want code %s with field and hint", name, err, code)
		}
		if code == api.CodeNoSuchImage && (!strings.Contains(err.Error(), name) || !strings.Contains(told.Hint, "make setup")) {
			t.Errorf("Open(%.20q) = %v (%s), want the name and make setup in it", name, err, told.Hint)
		}
	}
}

func TestBrokenImagesAreNamed(t *testing.T) {
	noLeaks(t)
	write := func(t *testing.T, path string, b []byte) {
		t.Helper()
		if err := os.WriteFile(path, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	outside := filepath.Join(t.TempDir(), "outside")
	write(t, outside, []byte("{}"))
	for name, tc := range map[string]struct {
		file string
		harm func(t *testing.T, path string, old []byte)
	}{
		"no-image":  {"image.erofs", func(*testing.T, string, []byte) {}},
		"no-config": {"config.json", func(*testing.T, string, []byte) {}},
		"empty":     {"image.erofs", func(t *testing.T, p string, _ []byte) { write(t, p, nil) }},
		"garbage": {"image.erofs", func(t *testing.T, p string, _ []byte) {
			write(t, p, bytes.Repeat([]byte("garbage!"), 4096))
		}},
		"truncated": {"image.erofs", func(t *testing.T, p string, old []byte) { write(t, p, old[:len(old)-4096]) }},
		"bad-superblock": {"image.erofs", func(t *testing.T, p string, old []byte) {
			old[1024+14] ^= 0xff // the number of the root's inode, which the checksum covers
			write(t, p, old)
		}},
		"fifo": {"image.erofs", func(t *testing.T, p string, _ []byte) {
			if err := unix.Mkfifo(p, 0o644); err != nil {
				t.Fatal(err)
			}
		}},
		"link-out": {"config.json", func(t *testing.T, p string, _ []byte) {
			if err := os.Symlink(outside, p); err != nil {
				t.Fatal(err)
			}
		}},
		"unknown-field": {"config.json", func(t *testing.T, p string, _ []byte) { write(t, p, []byte(`{"usr":"x"}`)) }},
		"too-large": {"config.json", func(t *testing.T, p string, _ []byte) {
			write(t, p, []byte(`{"user":"`+strings.Repeat("x", 1<<20)+`"}`))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			imagetest.Build(t, dir, "a", small(strings.Repeat("text", 4096)), image.Config{})
			path := filepath.Join(dir, "a", tc.file)
			old, err := os.ReadFile(path)
			if err == nil {
				err = os.Remove(path)
			}
			if err != nil {
				t.Fatal(err)
			}
			tc.harm(t, path, old)
			_, err = store(dir).Open(t.Context(), "a")
			var broken *image.BrokenError
			if !errors.As(err, &broken) || broken.Name != "a" || broken.File != path || !strings.Contains(err.Error(), path) {
				t.Fatalf("Open() = %v, want *BrokenError for %s", err, path)
			}
			if told := api.AsError(err); told.Field != "image" || told.Hint == "" || strings.Contains(told.Detail, dir) {
				t.Errorf("a client is told %+v", told)
			}
			t.Log(err)
		})
	}
}

func TestConfigIsStrict(t *testing.T) {
	for text, want := range map[string]string{
		`{}`: "", `{"env":["A=1","B="],"workdir":"/x","cmd":null}`: "",
		`{"env":["A"]}`: "isn't K=V", `{"env":["=1"]}`: "isn't K=V", `{"workdir":"x"}`: "isn't absolute",
		`{"user":"a","user":"b"}`: "given twice", `{"User":"a"}`: "unknown field", `{"user":1}`: `field "user"`,
		`{} {}`: "follows", `[]`: "not a JSON object", ``: "not a JSON object", `{"user":"a"`: "EOF",
		`{"digest":"sha256:12"}`: "isn't sha256", `{"cmd":["a\u0000"]}`: "NUL", `null`: "not a JSON object",
	} {
		_, err := image.ParseConfig([]byte(text))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("ParseConfig(%s) = %v, want %q", text, err, want)
		}
	}
}

func FuzzParseConfig(f *testing.F) {
	f.Add([]byte(`{"env":["A=1"],"user":"app","workdir":"/","entrypoint":["/x"],"cmd":[],"hostname":"h","digest":""}`))
	f.Add([]byte(`{"user":"a","user":"b"}`))
	f.Add([]byte(`{"env":[`))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := image.ParseConfig(b)
		if err == nil && c.Validate() != nil {
			t.Errorf("taken, but %v", c.Validate())
		}
	})
}
