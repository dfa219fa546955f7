package hack_test

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsec-io/dsec/internal/image"
	"github.com/dsec-io/dsec/internal/need"
	"golang.org/x/sys/unix"
)

// buildBusybox runs the script on a store and returns the image's folder.
func buildBusybox(t *testing.T, store string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "./image-busybox")
	cmd.Env = append(os.Environ(), "DSEC_IMAGE_STORE="+store)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("image-busybox: %v\n%s", err, out)
	}
	return filepath.Join(store, "busybox")
}

func readFile(t *testing.T, path ...string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func inode(t *testing.T, path ...string) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(path...), &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}

func TestImageIsReproducible(t *testing.T) {
	need.Root(t)
	one, two := buildBusybox(t, t.TempDir()), buildBusybox(t, t.TempDir())
	sum := sha256.Sum256(readFile(t, one, "image.erofs"))
	if sum != sha256.Sum256(readFile(t, two, "image.erofs")) {
		t.Error("two builds differ")
	}
	config, err := image.ParseConfig(readFile(t, one, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	if want := "sha256:" + hex.EncodeToString(sum[:]); config.Digest != want {
		t.Errorf("digest in config.json = %s, want that of the file, %s", config.Digest, want)
	}
}

func TestImageIsBuiltOnlyWhenItHasTo(t *testing.T) {
	need.Root(t)
	store := t.TempDir()
	dir := buildBusybox(t, store)
	first := inode(t, dir, "image.erofs")
	if buildBusybox(t, store); inode(t, dir, "image.erofs") != first {
		t.Error("built again though nothing had changed")
	}
	if err := os.WriteFile(filepath.Join(dir, "stamp"), []byte("of another script\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if buildBusybox(t, store); inode(t, dir, "image.erofs") == first {
		t.Error("not built again though the stamp is another")
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 3 {
		t.Errorf("left in the store: %v, want config.json, image.erofs, stamp", entries)
	}
}

func TestImageOpensInTheStore(t *testing.T) {
	need.Root(t)
	store := t.TempDir()
	buildBusybox(t, store)
	im, err := image.NewStore(slog.New(slog.DiscardHandler), store).Open(t.Context(), "busybox")
	if err != nil {
		t.Fatal(err)
	}
	if im.Looped() {
		t.Log("mounted through a loop device: the kernel can't mount EROFS from a file")
	}
	if err := im.Close(); err != nil {
		t.Error(err)
	}
}

// imageDebian is the script on a store and a cache of the test's own, with a mirror that isn't there: as far as it gets
// without one.
func imageDebian(t *testing.T, store, cache string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "./image-debian")
	cmd.Env = append(os.Environ(), "DSEC_IMAGE_STORE="+store, "DSEC_CACHE="+cache, "DSEC_DEBIAN_MIRROR=http://127.0.0.1:1/debian")
	return cmd
}

func TestImageDebianSaysThatTheMirrorIsAway(t *testing.T) {
	need.Root(t)
	store, cache := t.TempDir(), t.TempDir()
	if err := os.Mkdir(filepath.Join(cache, "packages"), 0o755); err != nil {
		t.Fatal(err)
	}
	kept := filepath.Join(cache, "packages", "a_1_all.deb")
	if err := os.WriteFile(kept, []byte("not a package"), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := imageDebian(t, store, cache).CombinedOutput()
	if err == nil {
		t.Error("exited with 0")
	}
	for _, want := range []string{"once more", "Debian's mirror can't be reached: Could not connect", "\nhint: it is http://127.0.0.1:1/debian:"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("didn't say %q:\n%s", want, out)
		}
	}
	if left, err := os.ReadDir(store); err != nil || len(left) > 0 {
		t.Errorf("left in the store: %v (%v)", left, err)
	}
	if _, err := os.Stat(filepath.Join(cache, "work")); !os.IsNotExist(err) {
		t.Errorf("work folder is left: %v", err)
	}
	if _, err := os.Stat(kept); err != nil {
		t.Errorf("the package cache was lost: %v", err)
	}
}

func TestImageDebianWaitsForAnotherBuild(t *testing.T) {
	need.Root(t)
	store, cache := t.TempDir(), t.TempDir()
	lock, err := os.Create(filepath.Join(cache, ".lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	cmd := imageDebian(t, store, cache)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	line, err := lines.ReadString('\n')
	if err != nil || !strings.Contains(line, "another build runs: waiting") {
		t.Errorf("said %q (%v), want that it waits", line, err)
	}
	// What the other build made is taken as it is.
	dir := filepath.Join(store, "debian")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"image.erofs", "config.json"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o444); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "stamp"), debianStamp(t), 0o444); err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	rest, _ := io.ReadAll(lines)
	if err := cmd.Wait(); err != nil || len(rest) > 0 {
		t.Errorf("after the wait: %v, said %q; want nothing to do", err, rest)
	}
}

// debianStamp is the stamp of the image that `make setup` left on this machine.
func debianStamp(t *testing.T) []byte {
	t.Helper()
	return readFile(t, need.Image(t, "debian"), "stamp")
}
