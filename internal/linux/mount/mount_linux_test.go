package mount_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsec-io/dsec/internal/leakcheck"
	"github.com/dsec-io/dsec/internal/linux/mount"
	"github.com/dsec-io/dsec/internal/need"
	"golang.org/x/sys/unix"
)

func TestDetachedTmpfsAndClone(t *testing.T) {
	leakcheck.CheckInstance(t, "none")
	need.Root(t)
	m, err := mount.New("tmpfs", unix.MOUNT_ATTR_NOSUID, mount.Option{Key: "size", Value: "64k"}, mount.Option{Key: "mode", Value: "755"})
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(m)
	if err := unix.Mkdirat(m, "d", 0o755); err != nil {
		t.Fatal(err)
	}
	c, err := mount.Clone(m, "d")
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(c)
	if err := os.WriteFile(filepath.Join(mount.FDPath(c), "f"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(mount.FDPath(m), "d/f")); err != nil || string(b) != "x" {
		t.Errorf("through the other mount: %q, %v", b, err)
	}
	if err := mount.SetAttrs(c, unix.MOUNT_ATTR_RDONLY); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(mount.FDPath(c), "g"), nil, 0o600); err == nil {
		t.Error("a read-only mount was written to")
	}
	if b, _ := os.ReadFile("/proc/self/mountinfo"); strings.Contains(string(b), "size=64k,mode=755") {
		t.Error("a detached mount is in our namespace")
	}
}

func TestKernelTellsWhatItDislikes(t *testing.T) {
	need.Root(t)
	_, err := mount.New("overlay", 0, mount.Option{Key: "upperdir", Value: "/nonexistent"})
	if err == nil || !strings.Contains(err.Error(), "upperdir") {
		t.Errorf("New() = %v, want an error that names upperdir", err)
	}
}
