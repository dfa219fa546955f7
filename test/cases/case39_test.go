package cases

import (
	"testing"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

// TestCase39LinkAtTheEnd holds the documented rule: what reads and writes follows a link at the end of a path, what
// removes and moves doesn't.
func TestCase39LinkAtTheEnd(t *testing.T) {
	t.Parallel()
	sb := testbed.Shared(t).Create(t, api.Spec{})
	f := sb.Files()
	testbed.Output(t, sb, "mkdir -p /d/sub && echo x > /d/f && ln -s d /to-dir && ln -s /d/f /to-file && ln -s nowhere /dangling && ln -s loop /loop && ln -s b /a && ln -s a /b")
	if got := names(t, f, "/to-dir"); len(got) != 2 || got["f"].Type != api.FileRegular || got["sub"].Type != api.FileDir {
		t.Errorf("list through a link: %v", got)
	}
	wantContent(t, f, "/to-file", "x\n")
	for name, want := range map[string][2]string{"/to-dir": {api.FileDir, "d"}, "/to-file": {api.FileRegular, "/d/f"}} {
		if info, err := f.Stat(t.Context(), name); err != nil || info.Type != want[0] {
			t.Errorf("stat %s: %+v, %v", name, info, err)
		}
		if info, err := f.Lstat(t.Context(), name); err != nil || info.Type != api.FileLink || info.Target != want[1] {
			t.Errorf("lstat %s: %+v, %v", name, info, err)
		}
	}
	for name, code := range map[string]api.Code{"/dangling": api.CodeFileNotFound, "/loop": api.CodeLinkLoop, "/a": api.CodeLinkLoop} {
		for what, do := range map[string]func() error{
			"stat": func() error { _, err := f.Stat(t.Context(), name); return err },
			"read": func() error { _, err := f.ReadFile(t.Context(), name); return err },
			"tar":  func() error { return drain(f.Tar(t.Context(), name)) },
			"list": func() (err error) {
				for _, err = range f.List(t.Context(), name) {
				}
				return err
			},
			"chmod": func() error { _, err := f.Chmod(t.Context(), name, 0o600); return err },
		} {
			if err := do(); !libdsec.IsCode(err, code) {
				t.Errorf("%s %s: %v, want %s", what, name, err, code)
			}
		}
		if info, err := f.Lstat(t.Context(), name); err != nil || info.Type != api.FileLink {
			t.Errorf("lstat %s: %+v, %v", name, info, err)
		}
	}
	if _, err := f.Rename(t.Context(), "/to-file", "/moved"); err != nil {
		t.Error(err)
	}
	if err := f.RemoveAll(t.Context(), "/to-dir"); err != nil {
		t.Error(err)
	}
	if err := f.Remove(t.Context(), "/loop"); err != nil {
		t.Error(err)
	}
	if got := testbed.Output(t, sb, "readlink /moved; ls /d; ls -d /to-dir /loop 2>/dev/null || true"); got != "/d/f\nf\nsub" {
		t.Errorf("afterwards: %q", got)
	}
}
