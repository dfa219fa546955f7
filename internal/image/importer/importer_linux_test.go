package importer_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/image"
	"github.com/dsec-io/dsec/internal/image/importer"
	"github.com/dsec-io/dsec/internal/need"
)

// file is an entry of a tar; a name that ends in a slash is a directory.
type file struct {
	tar.Header
	content string
}

func reg(name, content string) file { return file{tar.Header{Name: name, Mode: 0o644}, content} }

func dir(name string) file {
	return file{Header: tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o755}}
}

func link(name, target string) file {
	return file{Header: tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: target}}
}

func hard(name, target string) file {
	return file{Header: tar.Header{Name: name, Typeflag: tar.TypeLink, Linkname: target}}
}

func pack(t testing.TB, files ...file) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		f.Size = int64(len(f.content))
		f.Format = tar.FormatPAX
		if err := w.WriteHeader(&f.Header); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, f.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func gz(t testing.TB, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, err := w.Write(b)
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func zst(t testing.TB, b []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return w.EncodeAll(b, nil)
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func doc(t testing.TB, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

type object map[string]any

// settings is an image's configuration; diff_ids are those of the layers.
func settings(t testing.TB, layers ...[]byte) string {
	t.Helper()
	ids := []string{}
	for _, l := range layers {
		ids = append(ids, "sha256:"+digest(l))
	}
	return doc(t, object{
		"os": "linux", "architecture": runtime.GOARCH, "rootfs": object{"type": "layers", "diff_ids": ids},
		"config": object{"User": "app", "Env": []string{"PATH=/bin", "A=b=c"}, "WorkingDir": "srv/", "Entrypoint": []string{"/e"}, "Cmd": []string{"x"}},
	})
}

// saved is what `docker save` writes; oci what it and others write as an OCI layout.
func saved(t testing.TB, layers ...[]byte) []byte {
	t.Helper()
	c := settings(t, layers...)
	files := []file{}
	names := []string{}
	for i, l := range layers {
		name := digest(l) + "/layer.tar"
		if i == 1 { // an equal layer is a link to the first
			files = append(files, reg("store/x.tar", string(l)), link(name, "../store/x.tar"))
		} else {
			files = append(files, reg(name, string(l)))
		}
		names = append(names, name)
	}
	files = append(files, reg(digest([]byte(c))+".json", c),
		reg("manifest.json", doc(t, []object{{"Config": digest([]byte(c)) + ".json", "RepoTags": []string{"a:b"}, "Layers": names}})))
	return pack(t, files...)
}

func oci(t testing.TB, squeeze func(testing.TB, []byte) []byte, layers ...[]byte) []byte {
	t.Helper()
	c := settings(t, layers...)
	files := []file{dir("blobs/"), dir("blobs/sha256/"), reg("blobs/sha256/"+digest([]byte(c)), c)}
	list := []object{}
	for _, l := range layers {
		l = squeeze(t, l)
		files = append(files, reg("blobs/sha256/"+digest(l), string(l)))
		list = append(list, object{"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": "sha256:" + digest(l), "size": len(l)})
	}
	m := doc(t, object{"schemaVersion": 2, "config": object{"digest": "sha256:" + digest([]byte(c))}, "layers": list})
	index := doc(t, object{"manifests": []object{
		{"digest": "sha256:" + digest([]byte(m)), "platform": object{"os": "linux", "architecture": runtime.GOARCH}},
		{"digest": "sha256:" + digest([]byte("x")), "platform": object{"os": "linux", "architecture": "pdp11"}},
		{"digest": "sha256:" + digest([]byte("y")), "platform": object{"os": "unknown", "architecture": "unknown"}},
	}})
	files = append(files, reg("blobs/sha256/"+digest([]byte(m)), m), reg("oci-layout", `{"imageLayoutVersion":"1.0.0"}`),
		reg("blobs/sha256/"+digest([]byte(index)), index),
		reg("index.json", doc(t, object{"schemaVersion": 2, "manifests": []object{{"digest": "sha256:" + digest([]byte(index))}}})))
	return pack(t, files...)
}

func plain(_ testing.TB, b []byte) []byte { return b }

// rig is an importer with a folder of its own.
type rig struct {
	*importer.Importer
	dir string
}

func newRig(t testing.TB, change ...func(*importer.Config)) rig {
	t.Helper()
	need.Root(t)
	d := filepath.Join(t.TempDir(), "images")
	cfg := importer.Config{Dir: d, Images: image.NewStore(slog.New(slog.DiscardHandler), d)}
	for _, c := range change {
		c(&cfg)
	}
	im, err := importer.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return rig{im, d}
}

func (r rig) take(t testing.TB, name string, b []byte, o api.ImageImport) (api.Image, error) {
	t.Helper()
	o.Name = name
	return r.Import(t.Context(), o, bytes.NewReader(b), nil)
}

// tree exports an image and describes its files.
func (r rig) tree(t testing.TB, name string) map[string]string {
	t.Helper()
	var b bytes.Buffer
	if err := r.Export(t.Context(), name, &b); err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	tr := tar.NewReader(&b)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		s := h.FileInfo().Mode().String()
		if h.Uid+h.Gid > 0 {
			s += " " + doc(t, []int{h.Uid, h.Gid})
		}
		switch {
		case h.Typeflag == tar.TypeLink:
			s = "= " + h.Linkname
		case h.Linkname != "":
			s += " -> " + h.Linkname
		case len(content) > 0:
			s += " " + string(content)
		}
		for _, k := range slices.Sorted(maps.Keys(h.PAXRecords)) {
			if a, ok := strings.CutPrefix(k, "SCHILY.xattr."); ok {
				s += " " + a + "=" + hex.EncodeToString([]byte(h.PAXRecords[k]))
			}
		}
		all[h.Name] = s
	}
}

// nothingLeft fails when something lies in the store beside the images that are named.
func (r rig) nothingLeft(t testing.TB, images ...string) {
	t.Helper()
	list, err := os.ReadDir(r.dir)
	if err != nil {
		t.Fatal(err)
	}
	got := []string{}
	for _, e := range list {
		got = append(got, e.Name())
	}
	if want := append([]string{}, images...); !slices.Equal(got, want) {
		t.Errorf("the store has %q, want %q", got, want)
	}
}

const caps = "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"

// rootfs has one of everything that an image can have.
func rootfs() []file {
	return []file{
		{Header: tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o750}},
		dir("bin/"),
		{tar.Header{Name: "bin/su", Mode: 0o4755}, "su"},
		{tar.Header{Name: "bin/ping", Mode: 0o755, PAXRecords: map[string]string{"SCHILY.xattr.security.capability": caps, "SCHILY.xattr.user.note": "n\x00te"}}, "ping"},
		hard("bin/ping6", "bin/ping"),
		{tar.Header{Name: "home/app/f", Mode: 0o600, Uid: 1000, Gid: 65535}, "mine"},
		link("lib", "usr/lib"),
		link("abs", "/usr/../bin"),
		dir("usr/lib/"),
		reg("lib/through-link", "x"),
		reg("abs/late", "y"),
		{Header: tar.Header{Name: "pipe", Typeflag: tar.TypeFifo, Mode: 0o644}},
		reg("\xff\xfe", "bytes"),
	}
}

func wantRootFS() map[string]string {
	return map[string]string{
		"./": "drwxr-x---", "bin/": "drwxr-xr-x", "bin/su": "urwxr-xr-x su",
		"bin/ping":  "-rwxr-xr-x ping security.capability=" + hex.EncodeToString([]byte(caps)) + " user.note=6e007465",
		"bin/ping6": "= bin/ping", "home/": "drwxr-xr-x", "home/app/": "drwxr-xr-x", "home/app/f": "-rw------- [1000,65535] mine",
		"lib": "Lrwxrwxrwx -> usr/lib", "abs": "Lrwxrwxrwx -> /usr/../bin", "usr/": "drwxr-xr-x", "usr/lib/": "drwxr-xr-x",
		"usr/lib/through-link": "-rw-r--r-- x", "pipe": "prw-r--r--", "\xff\xfe": "-rw-r--r-- bytes", "bin/late": "-rw-r--r-- y",
	}
}
