package cases

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

// TestCase31LinksOutOfTheSandbox reads, writes, lists and removes through links that lead up and to absolute targets:
// they lead to the sandbox's own files, and nothing on the host is touched.
func TestCase31LinksOutOfTheSandbox(t *testing.T) {
	t.Parallel()
	n := testbed.Shared(t)
	sb := n.Create(t, api.Spec{})
	f := sb.Files()
	host := t.TempDir()
	canary := filepath.Join(host, "canary")
	if err := os.WriteFile(canary, []byte("host"), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(host, 0o777); err != nil {
		t.Fatal(err)
	}
	testbed.Output(t, sb, "mkdir /w && cd /w && echo mine > /etc/shadow && ln -s /etc/shadow l && ln -s / r && ln -s ../../../.. u && ln -s "+canary+" c")
	for _, name := range []string{"/w/l", "/w/r/etc/shadow", "/w/u/etc/shadow", "/w/../../../../etc/shadow", "/w/r/w/u/w/l"} {
		wantContent(t, f, name, "mine\n")
	}
	for _, name := range []string{"/w/r", "/w/u"} {
		if got := names(t, f, name); len(got["w"].Type) == 0 || len(got) > 40 {
			t.Errorf("list %s: %v", name, got)
		}
	}
	// The host's file isn't there for the sandbox.
	for _, name := range []string{"/w/c", "/w/u" + canary, "/w/r" + canary, canary} {
		if _, err := f.ReadFile(t.Context(), name); !libdsec.IsCode(err, api.CodeFileNotFound) {
			t.Errorf("read %s: %v", name, err)
		}
		if _, err := f.Stat(t.Context(), name); !libdsec.IsCode(err, api.CodeFileNotFound) {
			t.Errorf("stat %s: %v", name, err)
		}
	}
	put(t, f, "/w/l", "written")
	if got := testbed.Output(t, sb, "cat /etc/shadow; readlink /w/l"); got != "written/etc/shadow" {
		t.Errorf("write through a link: %q", got)
	}
	put(t, f, "/w/c", "sandbox") // makes the directories inside
	if got := testbed.Output(t, sb, "cat "+canary); got != "sandbox" {
		t.Errorf("write through a link to a host path: %q", got)
	}
	if err := f.RemoveAll(t.Context(), "/w/u"+host); err != nil {
		t.Error(err)
	}
	if got := testbed.Output(t, sb, "ls -d "+host+" 2>/dev/null || echo gone"); got != "gone" {
		t.Errorf("remove through a link: %q", got)
	}
	if raw, err := os.ReadFile(canary); err != nil || string(raw) != "host" {
		t.Errorf("the host's file is %q, %v", raw, err)
	}
	// A user's rights are the user's.
	testbed.Output(t, sb, "chmod 600 /etc/shadow; mkdir -m 700 /private; echo x > /private/f; ln -s /private/f /w/p")
	app := f.As("1234:1234")
	for _, name := range []string{"/w/l", "/w/p", "/private/f"} {
		if _, err := app.ReadFile(t.Context(), name); !libdsec.IsCode(err, api.CodePermissionDenied) {
			t.Errorf("1234 reads %s: %v", name, err)
		}
		if _, err := app.WriteFile(t.Context(), name, nil, libdsec.WriteOptions{}); !libdsec.IsCode(err, api.CodePermissionDenied) {
			t.Errorf("1234 writes %s: %v", name, err)
		}
	}
}
