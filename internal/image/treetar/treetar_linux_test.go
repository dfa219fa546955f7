package treetar_test

import (
	"archive/tar"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/internal/image/treetar"
)

func TestPack(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tree")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(filepath.Join(dir, "a/empty"), 0o755))
	must(os.WriteFile(filepath.Join(dir, "a/file"), []byte("text"), 0o600))
	must(os.Chmod(filepath.Join(dir, "a/file"), 0o640|os.ModeSetuid))
	must(unix.Setxattr(filepath.Join(dir, "a/file"), "user.note", []byte("n\x00te"), 0))
	must(os.Link(filepath.Join(dir, "a/file"), filepath.Join(dir, "b")))
	must(os.Symlink("/etc/passwd", filepath.Join(dir, "link")))
	must(unix.Mkfifo(filepath.Join(dir, "pipe"), 0o644))
	var lc net.ListenConfig
	ln, err := lc.Listen(t.Context(), "unix", filepath.Join(dir, "s"))
	must(err)
	defer ln.Close()
	named := filepath.Join(t.TempDir(), "named")
	must(os.Symlink(dir, named))

	for _, from := range []string{dir, named, dir + "/", dir + "/a/.."} {
		p := treetar.Pack(from)
		got := map[string]string{}
		tr := tar.NewReader(p)
		for {
			h, err := tr.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			must(err)
			b, err := io.ReadAll(tr)
			must(err)
			if h.Uname+h.Gname != "" || !h.AccessTime.IsZero() || !h.ChangeTime.IsZero() {
				t.Errorf("%s tells what depends on the machine: %+v", h.Name, h)
			}
			got[h.Name] = strings.TrimSpace(h.FileInfo().Mode().String() + " " + h.Linkname + string(b) + h.PAXRecords["SCHILY.xattr.user.note"])
		}
		must(p.Close())
		delete(got, "./")
		want := map[string]string{
			"a/": "drwxr-xr-x", "a/empty/": "drwxr-xr-x", "a/file": "urw-r----- textn\x00te", "b": "urw-r----- a/file",
			"link": "Lrwxrwxrwx /etc/passwd", "pipe": "prw-r--r--",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("Pack(%s) (-want +got):\n%s", from, diff)
		}
	}
}

func TestPackFails(t *testing.T) {
	p := treetar.Pack(filepath.Join(t.TempDir(), "none"))
	if _, err := io.ReadAll(p); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Pack() of nothing = %v", err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// TestCloseEarly ends a packing that nobody reads to its end.
func TestCloseEarly(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "f"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	p := treetar.Pack(dir)
	if _, err := p.Read(make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}
