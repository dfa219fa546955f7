package files

import (
	"path"
	"strings"
	"testing"

	"github.com/dsec-io/dsec/api"
)

func TestSplit(t *testing.T) {
	for in, want := range map[string][2]string{
		"/": {"/", ""}, "//": {"/", ""}, "/a": {"/", "a"}, "/a/": {"/", "a"}, "/a/b": {"/a", "b"}, "/a//b//": {"/a/", "b"}, "/..": {"/", ".."}, "/a/.": {"/a", "."},
	} {
		dir, base := split([]byte(in))
		if string(dir) != want[0] || string(base) != want[1] {
			t.Errorf("split(%q) = %q, %q", in, dir, base)
		}
	}
}

func FuzzPartsStayBelow(f *testing.F) {
	for _, seed := range []string{"a/b", "../x", "/x", "a/../../x", "./", "a//b/", "sha256:../../x", "..a/...", "\x00"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, name string) {
		got, err := parts(name)
		if err != nil {
			if e := api.AsError(err); e.HTTP/100 != 4 {
				t.Errorf("parts(%q): %v", name, err)
			}
			return
		}
		joined := path.Join(append([]string{"/dest"}, got...)...)
		if joined != "/dest" && !strings.HasPrefix(joined, "/dest/") {
			t.Errorf("parts(%q) = %q", name, got)
		}
		for _, part := range got {
			if part == "" || part == "." || part == ".." || strings.ContainsAny(part, "/\x00") {
				t.Errorf("parts(%q) = %q", name, got)
			}
		}
	})
}
