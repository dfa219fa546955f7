package hack_test

import (
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
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
