package importer_test

import (
	"archive/tar"
	"bytes"
	"testing"
	"testing/iotest"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/image/importer"
)

// FuzzImport: an archive becomes an image or a typed error, whatever it is, and nothing else is ever left.
func FuzzImport(f *testing.F) {
	root := pack(f, rootfs()...)
	second := pack(f, reg("bin/.wh.su", ""), reg("usr/.wh..wh..opq", ""))
	for _, b := range [][]byte{nil, root, gz(f, root), zst(f, root), saved(f, root, second), oci(f, gz, root, second), oci(f, zst, second)} {
		f.Add(b)
	}
	f.Add(pack(f, link("a", "a/b"), reg("a/x", ""), hard("x", "a")))
	f.Add(pack(f, file{Header: tar.Header{Name: "big", Uid: 1 << 20}}))
	r := newRig(f, func(c *importer.Config) { c.MaxBytes, c.MaxFiles = 8<<20, 1000 })
	f.Fuzz(func(t *testing.T, b []byte) {
		_, err := r.take(t, "x", b, api.ImageImport{Replace: true})
		switch {
		case err == nil:
			r.tree(t, "x")
			if _, err := r.Remove(t.Context(), "x"); err != nil {
				t.Error(err)
			}
		case !typed(err):
			t.Errorf("Import() = %v, which no client could act on", err)
		}
		r.nothingLeft(t)
	})
}

func typed(err error) bool {
	for _, c := range []api.Code{api.CodeInvalid, api.CodeUnsupportedConstraint, api.CodeTooLarge} {
		if api.IsCode(err, c) {
			return true
		}
	}
	return false
}

// TestReadersTakeTheirTime reads an archive in the smallest pieces.
func TestReadersTakeTheirTime(t *testing.T) {
	r := newRig(t)
	b := gz(t, pack(t, rootfs()...))
	whole, err := r.take(t, "a", b, api.ImageImport{})
	if err != nil {
		t.Fatal(err)
	}
	pieces, err := r.Import(t.Context(), api.ImageImport{Name: "b"}, iotest.OneByteReader(bytes.NewReader(b)), nil)
	if err != nil {
		t.Fatal(err)
	}
	sameImage(t, whole.Digest, pieces.Digest)
}
