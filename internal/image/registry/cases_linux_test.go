package registry_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dsec-io/dsec/internal/image"
	"github.com/dsec-io/dsec/internal/image/importer"
	"github.com/dsec-io/dsec/internal/image/registry"
)

// packed is a tar of headers; a regular file holds its own name.
func packed(t testing.TB, heads ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range heads {
		h.Format = tar.FormatPAX
		if h.Typeflag == 0 {
			h.Typeflag, h.Size = tar.TypeReg, int64(len(h.Name))
		}
		if h.Mode == 0 {
			h.Mode = 0o755
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := io.WriteString(w, h.Name); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func directory(name string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeDir} }
func regular(name string) tar.Header   { return tar.Header{Name: name} }
func symlink(name, to string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: to}
}

// tree pulls an image of layers and exports its tree.
func (n *node) tree(h *hub, layers ...[]byte) map[string]*tar.Header {
	n.t.Helper()
	h.image("latest", arch, gz, layers...)
	n.mustPull(order(h, ""))
	var b bytes.Buffer
	if err := n.importer.Export(n.t.Context(), "app", &b); err != nil {
		n.t.Fatal(err)
	}
	files := map[string]*tar.Header{}
	r := tar.NewReader(&b)
	for {
		head, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			n.t.Fatal(err)
		}
		files[head.Name] = head
	}
}

func namesOf(files map[string]*tar.Header) map[string]bool {
	names := map[string]bool{}
	for name := range files {
		names[name] = true
	}
	delete(names, "./")
	return names
}

// TestCase87 applies whiteouts layer by layer: what was taken away can come back, and as something else.
func TestCase87(t *testing.T) {
	h, n := newHub(t), newNode(t, registry.Config{})
	got := n.tree(h,
		packed(t, directory("d/"), regular("d/x"), directory("dir-to-file/"), regular("dir-to-file/in"), regular("file-to-dir"), regular("gone")),
		packed(t, regular("d/.wh.x"), regular(".wh.dir-to-file"), regular(".wh.gone")),
		packed(t, regular("d/x"), regular("dir-to-file"), directory("file-to-dir/"), regular("file-to-dir/in")),
	)
	want := map[string]bool{"d/": true, "d/x": true, "dir-to-file": true, "file-to-dir/": true, "file-to-dir/in": true}
	if diff := cmp.Diff(want, namesOf(got)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

// TestCase88 has an opaque folder, before and after what its own layer puts there.
func TestCase88(t *testing.T) {
	h, n := newHub(t), newNode(t, registry.Config{})
	got := n.tree(h,
		packed(t, directory("a/"), regular("a/old"), directory("a/deep/"), regular("a/deep/old"), directory("b/"), regular("b/old")),
		packed(t, directory("a/"), regular("a/.wh..wh..opq"), regular("a/new"), directory("b/"), regular("b/new"), regular("b/.wh..wh..opq")),
	)
	want := map[string]bool{"a/": true, "a/new": true, "b/": true, "b/new": true}
	if diff := cmp.Diff(want, namesOf(got)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

// TestCase89 takes a link that points above the root as it is, and goes through it no further than the root.
func TestCase89(t *testing.T) {
	h, n := newHub(t), newNode(t, registry.Config{})
	got := n.tree(h,
		packed(t, directory("a/"), regular("a/b"), directory("deep/"), symlink("deep/up", "/../../a"), symlink("deep/out", "../../../../a")),
		packed(t, regular("deep/up/through"), regular("deep/out/too")),
	)
	want := map[string]bool{"a/": true, "a/b": true, "a/through": true, "a/too": true, "deep/": true, "deep/up": true, "deep/out": true}
	if diff := cmp.Diff(want, namesOf(got)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	if to := got["deep/up"].Linkname; to != "/../../a" {
		t.Errorf("the link leads to %q", to)
	}
}

// TestCase90 keeps long names and targets, names that aren't ASCII, and hard links between layers.
func TestCase90(t *testing.T) {
	h, n := newHub(t), newNode(t, registry.Config{})
	heads := []tar.Header{regular("файл-ü-文件"), regular(strings.Repeat("n", 255)), regular(strings.Repeat("p/", 60) + "end")}
	targets := map[string]string{}
	for _, size := range []int{101, 255, 4095} {
		to := strings.Repeat("/t", size/2) + strings.Repeat("x", size%2)
		name := "link-" + string(rune('a'+len(targets)))
		targets[name] = to
		heads = append(heads, symlink(name, to))
	}
	got := n.tree(h, packed(t, heads...), packed(t, tar.Header{Name: "hard", Typeflag: tar.TypeLink, Linkname: "файл-ü-文件"}))
	for name, to := range targets {
		if got[name] == nil || got[name].Linkname != to {
			t.Errorf("%s doesn't lead to its %d bytes", name, len(to))
		}
	}
	for _, head := range heads[:3] {
		if got[head.Name] == nil {
			t.Errorf("there is no %.40q", head.Name)
		}
	}
	if one, two := got["hard"], got["файл-ü-文件"]; one == nil || two == nil || one.Linkname+two.Linkname != "hard" && one.Linkname+two.Linkname != "файл-ü-文件" {
		t.Errorf("the hard link is %+v, %+v", one, two)
	}
}

// TestCase91 keeps capabilities and other attributes.
func TestCase91(t *testing.T) {
	h, n := newHub(t), newNode(t, registry.Config{})
	capability := "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00" // cap_net_raw=ep
	acl := "\x02\x00\x00\x00\x01\x00\x06\x00\xff\xff\xff\xff\x04\x00\x04\x00\xff\xff\xff\xff\x20\x00\x04\x00\xff\xff\xff\xff"
	want := map[string]string{"SCHILY.xattr.security.capability": capability, "SCHILY.xattr.user.note": "kept", "SCHILY.xattr.system.posix_acl_access": acl}
	file := regular("ping")
	file.PAXRecords = want
	got := n.tree(h, packed(t, file), packed(t, regular("other")))
	have := map[string]string{}
	for k, v := range got["ping"].PAXRecords {
		if strings.HasPrefix(k, "SCHILY.xattr.") {
			have[k] = v
		}
	}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("attributes (-want +got):\n%s", diff)
	}
}

// TestCase98 starts over a store with what isn't the importer's: all of it stays.
func TestCase98(t *testing.T) {
	n := newNode(t, registry.Config{})
	ours := []string{".import-123"}
	foreign := []string{"somebody.db", "cache", ".hidden", "lost+found", "import-5", "x.import-1"}
	for _, name := range append(ours, foreign...) {
		if err := os.MkdirAll(filepath.Join(n.dir, name, "in"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	im, err := importer.New(importer.Config{Dir: n.dir, Images: image.NewStore(slog.New(slog.DiscardHandler), n.dir)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := im.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	left := map[string]bool{}
	for _, name := range n.left() {
		left[name] = true
	}
	want := map[string]bool{}
	for _, name := range foreign {
		want[name] = true
	}
	if diff := cmp.Diff(want, left); diff != "" {
		t.Errorf("in the store (-want +got):\n%s", diff)
	}
}
