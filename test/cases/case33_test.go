package cases

import (
	"net/http"
	"net/url"
	"testing"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

func TestCase33DeletingTheRoot(t *testing.T) {
	t.Parallel()
	n := testbed.Shared(t)
	sb := n.Create(t, api.Spec{})
	f := sb.Files()
	testbed.Output(t, sb, "mkdir /d && echo x > /d/x && ln -s / /root-link && ln -s ../.. /d/up && ln -s /root-link /d/twice")
	before := testbed.Output(t, sb, "ls -a / /bin /d /etc")
	for _, name := range []string{"", ".", "..", "/", "//", "/.", "/..", "/d/..", "/d/.", "/root-link", "/root-link/", "/d/up", "/d/up/", "/d/twice", "/root-link/.", "/d/../../.."} {
		for how, remove := range map[string]func() error{
			"Remove":    func() error { return f.Remove(t.Context(), name) },
			"RemoveAll": func() error { return f.RemoveAll(t.Context(), name) },
		} {
			if err := remove(); !libdsec.IsCode(err, api.CodeInvalid) {
				t.Errorf("%s(%q): %v", how, name, err)
			}
		}
		got := rawFiles{n, sb.ID()}.do(t, http.MethodDelete, url.Values{"path": {name}, "recursive": {"1"}}, "")
		if got.status != http.StatusBadRequest || got.problem(t).Code != api.CodeInvalid {
			t.Errorf("DELETE %q: %d %s", name, got.status, got.body)
		}
	}
	if after := testbed.Output(t, sb, "ls -a / /bin /d /etc"); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
	// A link to the root below what is removed goes, and nothing behind it.
	if err := f.RemoveAll(t.Context(), "/d"); err != nil {
		t.Error(err)
	}
	if got := testbed.Output(t, sb, "test -e /d && echo there; ls -d /root-link /bin/sh"); got != "/bin/sh\n/root-link" {
		t.Errorf("afterwards: %q", got)
	}
}
