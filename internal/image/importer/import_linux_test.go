package importer_test

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/image"
	"github.com/dsec-io/dsec/internal/image/importer"
)

// TestFormats imports one tree in every form there is. All give the same file system, bit for bit, twice.
func TestFormats(t *testing.T) {
	r := newRig(t)
	root := pack(t, rootfs()...)
	second := pack(t, dir("bin/"))
	digests := map[bool]string{} // a second layer changes the time of a folder
	for _, tc := range []struct {
		name   string
		b      []byte
		config bool
	}{
		{"tar", root, false},
		{"tar.gz", gz(t, root), false},
		{"tar.zst", zst(t, root), false},
		{"docker", saved(t, root, second), true},
		{"docker.gz", gz(t, saved(t, root, second)), true},
		{"oci", oci(t, plain, root, second), true},
		{"oci-gz", oci(t, gz, root, second), true},
		{"oci-zst", zst(t, oci(t, zst, root, second)), true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := r.take(t, tc.name, tc.b, api.ImageImport{})
			if err != nil {
				t.Fatal(err)
			}
			again, err := r.take(t, tc.name, tc.b, api.ImageImport{})
			if err != nil || again.Digest != got.Digest {
				t.Errorf("the second import: %s and not %s, %v", again.Digest, got.Digest, err)
			}
			want := api.Image{Name: tc.name, Digest: got.Digest, SizeBytes: got.SizeBytes, CreatedAt: got.CreatedAt, Env: []string{}, Entrypoint: []string{}, Cmd: []string{}}
			if tc.config {
				want.User, want.Workdir, want.Env = "app", "/srv", []string{"PATH=/bin", "A=b=c"}
				want.Entrypoint, want.Cmd = []string{"/e"}, []string{"x"}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("image (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(wantRootFS(), r.tree(t, tc.name)); diff != "" {
				t.Errorf("tree (-want +got):\n%s", diff)
			}
			if digests[tc.config] == "" {
				digests[tc.config] = got.Digest
			}
			sameImage(t, digests[tc.config], got.Digest)
		})
	}
}

func sameImage(t testing.TB, want, got string) {
	t.Helper()
	if want != got {
		t.Errorf("digest %s, want %s", got, want)
	}
}

// TestExportAndBack: what is exported gives the image that it comes from.
func TestExportAndBack(t *testing.T) {
	r := newRig(t)
	a, err := r.take(t, "a", pack(t, rootfs()...), api.ImageImport{})
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := r.Export(t.Context(), "a", &b); err != nil {
		t.Fatal(err)
	}
	back, err := r.take(t, "b", b.Bytes(), api.ImageImport{})
	if err != nil {
		t.Fatal(err)
	}
	sameImage(t, a.Digest, back.Digest)
}

func TestLayers(t *testing.T) {
	d, f := "drwxr-xr-x", "-rw-r--r--"
	for name, tc := range map[string]struct {
		layers [][]file
		want   map[string]string
	}{
		"whiteout":          {[][]file{{reg("a/x", "1"), reg("a/y", "2")}, {reg("a/.wh.x", "")}}, map[string]string{"a/": d, "a/y": f + " 2"}},
		"whiteout-of-a-dir": {[][]file{{reg("a/b/x", "1"), reg("c", "2")}, {reg(".wh.a", "")}}, map[string]string{"c": f + " 2"}},
		"nothing-to-hide":   {[][]file{{reg("c", "2")}, {reg(".wh.a", ""), reg("no/dir/.wh.a", "")}}, map[string]string{"c": f + " 2"}},
		"hidden-and-anew":   {[][]file{{reg("a/x", "1")}, {reg("a/x", "new"), reg("a/.wh.x", "")}}, map[string]string{"a/": d, "a/x": f + " new"}},
		"opaque-first":      {[][]file{{reg("a/x", "1"), reg("a/b/y", "1")}, {reg("a/.wh..wh..opq", ""), reg("a/z", "3")}}, map[string]string{"a/": d, "a/z": f + " 3"}},
		"opaque-last":       {[][]file{{reg("a/x", "1"), reg("a/b/y", "1")}, {reg("a/b/z", "3"), reg("a/.wh..wh..opq", "")}}, map[string]string{"a/": d, "a/b/": d, "a/b/z": f + " 3"}},
		"opaque-root":       {[][]file{{reg("a/x", "1")}, {reg(".wh..wh..opq", ""), reg("z", "")}}, map[string]string{"z": f}},
		"file-over-dir":     {[][]file{{reg("a/x", "1")}, {reg("a", "f")}}, map[string]string{"a": f + " f"}},
		"dir-over-file":     {[][]file{{reg("a", "f")}, {dir("a/"), reg("a/x", "1")}}, map[string]string{"a/": d, "a/x": f + " 1"}},
		"dir-over-link":     {[][]file{{dir("b/"), link("a", "b")}, {dir("a/"), reg("a/x", "1")}}, map[string]string{"a/": d, "a/x": f + " 1", "b/": d}},
		"dir-over-dir":      {[][]file{{reg("a/x", "1")}, {{Header: tar.Header{Name: "a/", Typeflag: tar.TypeDir, Mode: 0o700, Uid: 5}}}}, map[string]string{"a/": "drwx------ [5,0]", "a/x": f + " 1"}},
		"through-a-link":    {[][]file{{dir("usr/lib/"), link("lib", "usr/lib")}, {reg("lib/x", "1")}}, map[string]string{"lib": "Lrwxrwxrwx -> usr/lib", "usr/": d, "usr/lib/": d, "usr/lib/x": f + " 1"}},
		"hard-link-below":   {[][]file{{reg("x", "1")}, {hard("y", "x")}, {reg(".wh.x", "")}}, map[string]string{"y": f + " 1"}},
		"aufs-notes":        {[][]file{{reg("x", "1")}, {reg(".wh..wh.plnk", ""), reg("a/.wh..wh.aufs", "")}}, map[string]string{"x": f + " 1"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			layers := [][]byte{}
			for _, l := range tc.layers {
				layers = append(layers, pack(t, l...))
			}
			if _, err := r.take(t, "x", oci(t, gz, layers...), api.ImageImport{}); err != nil {
				t.Fatal(err)
			}
			tc.want["./"] = d
			if diff := cmp.Diff(tc.want, r.tree(t, "x")); diff != "" {
				t.Errorf("tree (-want +got):\n%s", diff)
			}
		})
	}
}

// TestHostile: whatever an archive tries is kept within its own tree or refused by name.
func TestHostile(t *testing.T) {
	long := strings.Repeat("d/", 1999)
	typed := func(name string, typ byte) file { return file{Header: tar.Header{Name: name, Typeflag: typ}} }
	attr := func(name, value string) file {
		return file{Header: tar.Header{Name: "f", PAXRecords: map[string]string{"SCHILY.xattr." + name: value}}}
	}
	ok := pack(t, reg("x", "1"))
	for name, tc := range map[string]struct {
		b    []byte
		code api.Code
		says string
	}{
		"upwards":            {pack(t, reg("../evil", "")), api.CodeInvalid, "../evil"},
		"upwards-inside":     {pack(t, reg("a/../../evil", "")), api.CodeInvalid, "a/../../evil"},
		"link-out-of-itself": {pack(t, hard("x", "../../etc/passwd")), api.CodeInvalid, "../../etc/passwd"},
		"hard-link-to-host":  {pack(t, hard("x", "/etc/passwd")), api.CodeInvalid, `no "etc"`},
		"hard-link-to-dir":   {pack(t, dir("d/"), hard("x", "d")), api.CodeInvalid, "directory"},
		"link-loop":          {pack(t, link("a", "b"), link("b", "a"), reg("a/x", "")), api.CodeInvalid, "too many links"},
		"below-a-file":       {pack(t, reg("a", ""), reg("a/b", "")), api.CodeInvalid, "isn't a directory"},
		"root-a-file":        {pack(t, reg("./", ""), link("/", "x")), api.CodeInvalid, "root"},
		"device":             {pack(t, dir("dev/"), typed("dev/sda", tar.TypeBlock)), api.CodeUnsupportedConstraint, "dev/sda"},
		"char-device":        {pack(t, typed("dev/mem", tar.TypeChar)), api.CodeUnsupportedConstraint, "dev/mem"},
		"unknown-type":       {pack(t, typed("odd", 'Z')), api.CodeUnsupportedConstraint, "odd"},
		"uid":                {pack(t, file{Header: tar.Header{Name: "big", Uid: 65536}}), api.CodeUnsupportedConstraint, `"big" belongs to id 65536`},
		"gid":                {pack(t, file{Header: tar.Header{Name: "big", Gid: 4_000_000_000}}), api.CodeUnsupportedConstraint, "4000000000"},
		"long-part":          {pack(t, reg(strings.Repeat("n", 256), "")), api.CodeInvalid, "255"},
		"long-name":          {pack(t, reg(long+"xxxxxxxxx", "")), api.CodeInvalid, "4000"},
		"long-target":        {pack(t, link("l", strings.Repeat("t", 4096))), api.CodeInvalid, "links to"},
		"huge-header":        {hugeHeader(t), api.CodeInvalid, "damaged"},
		"overlay-attribute":  {pack(t, attr("trusted.overlay.redirect", "/etc")), api.CodeUnsupportedConstraint, "trusted.overlay.redirect"},
		"odd-attribute":      {pack(t, attr("odd.x", "")), api.CodeUnsupportedConstraint, "odd.x"},
		"odd-capability":     {pack(t, attr("security.capability", "xx")), api.CodeInvalid, "capabilities"},
		"large-attribute":    {pack(t, attr("user.x", strings.Repeat("v", 70_000))), api.CodeTooLarge, "attributes"},
		"nothing":            {nil, api.CodeInvalid, "nothing in it"},
		"no-files":           {pack(t), api.CodeInvalid, "no files"},
		"no-tar":             {bytes.Repeat([]byte("garbage!"), 200), api.CodeInvalid, "damaged"},
		"cut-off":            {pack(t, reg("x", strings.Repeat("y", 5000)))[:2000], api.CodeInvalid, "too early"},
		"cut-off-gz":         {gz(t, ok)[:20], api.CodeInvalid, "too early"},
		"damaged-gz":         {append(gz(t, ok)[:60:60], gz(t, ok)[59:]...), api.CodeInvalid, "damaged"},
		"xz":                 {[]byte("\xfd7zXZ\x00\x00"), api.CodeUnsupportedConstraint, "xz"},
		"bomb":               {gz(t, pack(t, reg("zero", strings.Repeat("\x00", 3<<20)))), api.CodeTooLarge, "more than an image"},
		"bomb-behind":        {gz(t, append(pack(t, reg("f", "")), make([]byte, 3<<20)...)), api.CodeTooLarge, "more than an image"},
		"bomb-in-a-layer":    {oci(t, gz, pack(t, reg("zero", strings.Repeat("\x00", 3<<20)))), api.CodeTooLarge, "more than an image"},
		"files":              {pack(t, slices.Repeat([]file{dir("a/"), reg("a/b/c/d/e/f/g/h/i/j/k", "")}, 2)...), api.CodeTooLarge, "more than 8 files"},
		"empty-whiteout":     {oci(t, plain, pack(t, reg("a/x", ""), reg("a/.wh.", ""))), api.CodeInvalid, "hides nothing"},
		"device-in-a-layer":  {oci(t, plain, pack(t, typed("n", tar.TypeChar))), api.CodeUnsupportedConstraint, `"n"`},
		"changed-blob":       {bytes.Replace(oci(t, plain, pack(t, reg("x", "aaaaaaaa"))), []byte("aaaaaaaa"), []byte("aaaaaaab"), 1), api.CodeInvalid, "changed"},
		"changed-layer":      {bytes.Replace(saved(t, pack(t, reg("x", "aaaaaaaa"))), []byte("aaaaaaaa"), []byte("aaaaaaab"), 1), api.CodeInvalid, "changed"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, func(c *importer.Config) { c.MaxBytes, c.MaxFiles = 2<<20, 8 })
			if strings.HasPrefix(name, "huge") {
				r = newRig(t)
			}
			_, err := r.take(t, "x", tc.b, api.ImageImport{})
			e, typed := errors.AsType[*api.Error](err)
			if !typed || e.Code != tc.code || !strings.Contains(e.Detail, tc.says) {
				t.Errorf("Import() = %v, want %s that says %q", err, tc.code, tc.says)
			}
			r.nothingLeft(t)
			if _, err := r.take(t, "x", ok, api.ImageImport{}); err != nil {
				t.Errorf("the next import: %v", err)
			}
			r.nothingLeft(t, "x")
		})
	}
}

// hugeHeader is a tar whose first header says that 2 MiB of header follow.
func hugeHeader(t testing.TB) []byte {
	t.Helper()
	b := pack(t, reg("x", strings.Repeat("1 a=b\n", 2<<20/6)))
	block := b[:512]
	block[156] = tar.TypeXHeader
	copy(block[148:], "        ")
	sum := 0
	for _, c := range block {
		sum += int(c)
	}
	copy(block[148:], fmt.Sprintf("%06o\x00 ", sum))
	return b
}

// TestContained: links out and absolute names mean what they would to a process whose root the tree is.
func TestContained(t *testing.T) {
	r := newRig(t)
	outside := t.TempDir()
	_, err := r.take(t, "x", pack(t, link("out", "../../../../../.."+outside), reg("out/a", "1"), link("abs", outside), reg("abs/b", "2"), reg("/"+"top", "3"),
		reg("twice", "1"), reg("twice", "2"), link("dup", outside+"/c"), reg("dup", "4")), api.ImageImport{})
	if err != nil {
		t.Fatal(err)
	}
	list, err := os.ReadDir(outside)
	if err != nil || len(list) > 0 {
		t.Errorf("outside there is %v, %v", list, err)
	}
	tree := r.tree(t, "x")
	inside := strings.TrimPrefix(outside, "/")
	for name, want := range map[string]string{inside + "/a": "1", inside + "/b": "2", "top": "3", "twice": "2", "dup": "4"} {
		if got := tree[name]; got != "-rw-r--r-- "+want {
			t.Errorf("%s is %q, want content %q", name, got, want)
		}
	}
}

func TestSquash(t *testing.T) {
	r := newRig(t)
	_, err := r.take(t, "x", pack(t,
		file{tar.Header{Name: "f", Mode: 0o6755, Uid: 100_000, Gid: 3, PAXRecords: map[string]string{"SCHILY.xattr.security.capability": caps}}, "x"},
		file{tar.Header{Name: "g", Mode: 0o4755, Uid: 65_535}, ""}), api.ImageImport{Squash: true})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"./": "drwxr-xr-x", "f": "-rwxr-xr-x [65534,3] x", "g": "urwxr-xr-x [65535,0]"}
	if diff := cmp.Diff(want, r.tree(t, "x")); diff != "" {
		t.Errorf("tree (-want +got):\n%s", diff)
	}
}

func TestNames(t *testing.T) {
	r := newRig(t)
	b := pack(t, reg("x", ""))
	for _, name := range []string{"", ".x", "-x", "X", "a/b", "..", "a b", "ä", "a\x00", strings.Repeat("a", 129), ".import-1"} {
		if _, err := r.take(t, name, b, api.ImageImport{}); !api.IsCode(err, api.CodeInvalid) {
			t.Errorf("Import(%q) = %v", name, err)
		}
		if _, err := r.Remove(t.Context(), name); !api.IsCode(err, api.CodeInvalid) {
			t.Errorf("Remove(%q) = %v", name, err)
		}
	}
	for _, name := range []string{"0", "a.b_c-d", strings.Repeat("a", 64), strings.Repeat("a", 65), strings.Repeat("a", 128)} {
		if _, err := r.take(t, name, b, api.ImageImport{}); err != nil {
			t.Errorf("Import(%q) = %v", name, err)
		}
	}
}

func TestReplaceAndRemove(t *testing.T) {
	r := newRig(t)
	one, two := pack(t, reg("x", "1")), pack(t, reg("x", "2"))
	if _, err := r.take(t, "a", one, api.ImageImport{}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.take(t, "a", two, api.ImageImport{}); !api.IsCode(err, api.CodeConflict) {
		t.Errorf("another image under the same name: %v", err)
	}
	r.nothingLeft(t, "a")
	if _, err := r.take(t, "a", two, api.ImageImport{Replace: true}); err != nil {
		t.Fatal(err)
	}
	if got := r.tree(t, "a")["x"]; got != "-rw-r--r-- 2" {
		t.Errorf("x is %q after the replacement", got)
	}
	if freed, err := r.Remove(t.Context(), "a"); err != nil || freed < 4096 {
		t.Errorf("Remove() = %d, %v", freed, err)
	}
	if _, err := r.Remove(t.Context(), "a"); !api.IsCode(err, api.CodeNoSuchImage) {
		t.Errorf("the second Remove() = %v", err)
	}
	r.nothingLeft(t)
}

// TestBrokenOff: an upload whose client goes away leaves nothing, and its own fault is told, not one of the archive.
func TestBrokenOff(t *testing.T) {
	r := newRig(t)
	gone := errors.New("the client has gone")
	b := pack(t, reg("x", strings.Repeat("y", 100_000)))
	_, err := r.Import(t.Context(), api.ImageImport{Name: "x"}, io.MultiReader(bytes.NewReader(b[:50_000]), iotest.ErrReader(gone)), nil)
	if !errors.Is(err, gone) {
		t.Errorf("Import() = %v, want %v", err, gone)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(gone)
	if _, err := r.Import(ctx, api.ImageImport{Name: "x"}, bytes.NewReader(b), nil); !errors.Is(err, gone) {
		t.Errorf("Import() = %v, want %v", err, gone)
	}
	r.nothingLeft(t)
}

// TestDiskFull imports more than the store's disk has.
func TestDiskFull(t *testing.T) {
	at := t.TempDir()
	if err := unix.Mount("tmpfs", at, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(at, 0); err != nil {
			t.Error(err)
		}
	})
	r := newRig(t, func(c *importer.Config) { c.Dir = filepath.Join(at, "images") })
	r.dir = filepath.Join(at, "images")
	for name, size := range map[string]int{"spool": 3 << 20, "image": 700 << 10} {
		t.Run(name, func(t *testing.T) {
			_, err := r.take(t, "x", pack(t, reg("f", strings.Repeat("x", size))), api.ImageImport{})
			if !api.IsCode(err, api.CodeDiskFull) {
				t.Errorf("Import() = %v, want disk_full", err)
			}
			r.nothingLeft(t)
		})
	}
}

// killedDir is the variable that makes TestKilled the process that is killed.
const killedDir = "DSEC_TEST_IMPORT_DIR"

// TestKilled kills an import in its middle, with data on the disk. Nothing of it can be seen, and the next start takes
// what is left away.
func TestKilled(t *testing.T) {
	if d := os.Getenv(killedDir); d != "" {
		im, err := importer.New(importer.Config{Dir: d, Images: image.NewStore(slog.New(slog.DiscardHandler), d)})
		if err == nil {
			_, err = im.Import(t.Context(), api.ImageImport{Name: "x"}, os.Stdin, func(api.ImageEvent) { fmt.Fprintln(os.Stderr, "reading") })
		}
		t.Fatal(err)
	}
	r := newRig(t)
	b := pack(t, reg("a", strings.Repeat("y", 3<<20)), reg("b", strings.Repeat("y", 3<<20)))
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestKilled$")
	cmd.Env = append(os.Environ(), killedDir+"="+r.dir)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := in.Write(b[:len(b)-8192]); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "reading\n" {
		t.Fatalf("the import said %q, %v", line, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the import ended by itself")
	}
	list, err := os.ReadDir(r.dir)
	if err != nil || len(list) != 1 {
		t.Fatalf("the killed import left %v, %v, want its folder", list, err)
	}
	if images, err := r.List(t.Context()); err != nil || len(images) != 0 {
		t.Errorf("List() = %v, %v after the kill", images, err)
	}
	next, err := importer.New(importer.Config{Dir: r.dir, Images: image.NewStore(slog.New(slog.DiscardHandler), r.dir)})
	if err != nil {
		t.Fatal(err)
	}
	r.nothingLeft(t)
	if _, err := next.Import(t.Context(), api.ImageImport{Name: "x"}, bytes.NewReader(b), nil); err != nil {
		t.Errorf("the next import: %v", err)
	}
	r.nothingLeft(t, "x")
}
