package cases

import (
	"archive/tar"
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/test/testbed"
)

// archive makes a tar stream of entries; files hold their own names.
func archive(t testing.TB, entries ...tar.Header) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range entries {
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
			if _, err := w.Write([]byte(h.Name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

func TestCase32ArchiveExtractionEscapes(t *testing.T) {
	t.Parallel()
	sb := testbed.Shared(t).Create(t, api.Spec{})
	f := sb.Files()
	put(t, f, "/outside/f", "old")
	first := tar.Header{Name: "first"}
	for name, c := range map[string]struct {
		entries []tar.Header
		code    api.Code
	}{
		"up":             {[]tar.Header{first, {Name: "../x"}}, api.CodeInvalid},
		"up-later":       {[]tar.Header{first, {Name: "a/../../x"}}, api.CodeInvalid},
		"digest":         {[]tar.Header{first, {Name: "sha256:../../x"}}, api.CodeInvalid},
		"link-then-file": {[]tar.Header{first, {Name: "l", Typeflag: tar.TypeSymlink, Linkname: "/outside"}, {Name: "l/f"}}, api.CodeLinkLoop},
		"link-up":        {[]tar.Header{first, {Name: "l", Typeflag: tar.TypeSymlink, Linkname: "../outside"}, {Name: "l/new"}}, api.CodeLinkLoop},
		"link-then-dir":  {[]tar.Header{first, {Name: "l", Typeflag: tar.TypeSymlink, Linkname: "/outside"}, {Name: "l/", Typeflag: tar.TypeDir}}, api.CodeNotDirectory},
		"hardlink-up":    {[]tar.Header{first, {Name: "h", Typeflag: tar.TypeLink, Linkname: "../../outside/f"}}, api.CodeInvalid},
		"hardlink-root":  {[]tar.Header{first, {Name: "h", Typeflag: tar.TypeLink, Linkname: "/outside/f"}}, api.CodeFileNotFound},
		"hardlink-link":  {[]tar.Header{first, {Name: "l", Typeflag: tar.TypeSymlink, Linkname: "/outside"}, {Name: "h", Typeflag: tar.TypeLink, Linkname: "l/f"}}, api.CodeLinkLoop},
		"device":         {[]tar.Header{first, {Name: "d", Typeflag: tar.TypeBlock, Devmajor: 8}}, api.CodeInvalid},
		"char":           {[]tar.Header{first, {Name: "d", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}}, api.CodeInvalid},
		"fifo":           {[]tar.Header{first, {Name: "p", Typeflag: tar.TypeFifo}}, api.CodeInvalid},
		"file-on-dir":    {[]tar.Header{first, {Name: "d/x"}, {Name: "d"}}, api.CodeIsDirectory},
		"deep":           {[]tar.Header{first, {Name: strings.Repeat("d/", 200) + "x"}}, api.CodeTooLarge},
		"long":           {[]tar.Header{first, {Name: strings.Repeat("n", 300)}}, api.CodeInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			dir := "/in/" + name
			_, err := f.Untar(t.Context(), dir, archive(t, c.entries...))
			e := wantRefused(t, err, c.code)
			if want := fmt.Sprintf("; %d entries before it are in place", len(c.entries)-1); !strings.HasSuffix(e.Detail, want) {
				t.Errorf("%q doesn't say what is in place: %s", e.Detail, want)
			}
			wantContent(t, f, dir+"/first", "first")
		})
	}
	whole := archive(t, first, tar.Header{Name: "second"}).Bytes()
	if _, err := f.Untar(t.Context(), "/in/cut", bytes.NewReader(whole[:1024+512+3])); wantRefused(t, err, api.CodeInvalid).Detail == "" {
		t.Error("a cut archive")
	}
	if _, err := f.Untar(t.Context(), "/in/junk", strings.NewReader(strings.Repeat("junk", 1000))); wantRefused(t, err, api.CodeInvalid).Detail == "" {
		t.Error("junk")
	}
	if n, err := f.Untar(t.Context(), "/in/absolute", archive(t, tar.Header{Name: "/x"}, tar.Header{Name: "./y/../z"})); err == nil || n != 0 {
		t.Errorf("%d, %v", n, err)
	}
	wantContent(t, f, "/in/absolute/x", "/x") // below the destination
	if got := testbed.Output(t, sb, "cat /outside/f; ls /outside; ls -d /x /in/x 2>/dev/null; find / -xdev -name '.dsec-*'; find /in -type b -o -type c -o -type p"); got != "oldf" {
		t.Errorf("outside: %q", got)
	}
}
