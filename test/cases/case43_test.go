package cases

import (
	"archive/tar"
	"testing"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/test/testbed"
)

func TestCase43CopyIntoNonEmptyDirectory(t *testing.T) {
	t.Parallel()
	sb := testbed.Shared(t).Create(t, api.Spec{})
	f := sb.Files()
	testbed.Output(t, sb, "mkdir -p /img/etc/profile.d /img/etc/deep/er && echo old > /img/etc/profile.d/old && echo old > /img/etc/both && echo old > /img/etc/deep/er/old && chmod 750 /img/etc/profile.d && chown 5:6 /img/etc/profile.d")
	n, err := f.Untar(t.Context(), "/img", archive(t,
		tar.Header{Name: "etc/", Typeflag: tar.TypeDir}, tar.Header{Name: "etc/profile.d/", Typeflag: tar.TypeDir},
		tar.Header{Name: "etc/profile.d/new", Mode: 0o640}, tar.Header{Name: "etc/both"}, tar.Header{Name: "etc/deep/er/new"},
		tar.Header{Name: "etc/fresh/er/new"}, tar.Header{Name: "etc/link", Typeflag: tar.TypeSymlink, Linkname: "both"},
		tar.Header{Name: "etc/hard", Typeflag: tar.TypeLink, Linkname: "etc/both"}))
	if err != nil || n != 8 {
		t.Fatalf("%d entries, %v", n, err)
	}
	want := "/img/etc/both\n/img/etc/deep/er/new\n/img/etc/deep/er/old\n/img/etc/fresh/er/new\n/img/etc/hard\n/img/etc/link\n/img/etc/profile.d/new\n/img/etc/profile.d/old"
	if got := testbed.Output(t, sb, "find /img ! -type d | sort"); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	if got := testbed.Output(t, sb, "cat /img/etc/both /img/etc/hard /img/etc/link; stat -c '%a %u:%g' /img/etc/profile.d /img/etc/profile.d/new; stat -c %h /img/etc/both"); got != "etc/bothetc/bothetc/both750 5:6\n640 0:0\n2" {
		t.Errorf("%q", got)
	}
	// Out and in again.
	r, err := f.Tar(t.Context(), "/img")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Untar(t.Context(), "/copy", r); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if got := testbed.Output(t, sb, "cd /img && find . ! -type d | sort > /a; cd /copy && find . ! -type d | sort | diff /a - && cat etc/both etc/profile.d/old && stat -c %a etc/profile.d"); got != "etc/bothold\n750" {
		t.Errorf("the copy: %q", got)
	}
}
