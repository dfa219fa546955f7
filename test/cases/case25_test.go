package cases

import (
	"path/filepath"
	"testing"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/image/imagetest"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

// TestCase25HomeGroupsAndUser compares with what login gives, in an image with user app in group docker.
func TestCase25HomeGroupsAndUser(t *testing.T) {
	t.Parallel()
	n := testbed.Shared(t)
	tree, config := imagetest.App(t)
	imagetest.Build(t, filepath.Join(n.Dir, "images"), "case25-app", tree, config)
	sb := n.Create(t, api.Spec{Image: "case25-app"})
	const script = `id; echo ~ $HOME; echo "<$USER> <$LOGNAME>"; pwd; touch "$HOME/own" 2>/dev/null && stat -c %u:%g "$HOME/own"; rm -f "$HOME/own"`
	for name, tc := range map[string]struct{ user, want string }{
		"default":         {"", "uid=1000(app) gid=1000(app) groups=999(docker),1000(app)\n/home/app /home/app\n<app> <app>\n/home/app\n1000:1000\n"},
		"name":            {"app", "uid=1000(app) gid=1000(app) groups=999(docker),1000(app)\n/home/app /home/app\n<app> <app>\n/home/app\n1000:1000\n"},
		"uid-of-an-entry": {"1000", "uid=1000(app) gid=1000(app) groups=999(docker),1000(app)\n/home/app /home/app\n<app> <app>\n/home/app\n1000:1000\n"},
		"uid-without":     {"1234", "uid=1234 gid=0(root) groups=0(root)\n/ /\n<> <>\n/home/app\n"},
		"uid-gid-without": {"1234:999", "uid=1234 gid=999(docker) groups=999(docker)\n/ /\n<> <>\n/home/app\n"},
		"root":            {"root", "uid=0(root) gid=0(root) groups=0(root)\n/root /root\n<root> <root>\n/home/app\n0:0\n"},
		"uid-0":           {"0", "uid=0(root) gid=0(root) groups=0(root)\n/root /root\n<root> <root>\n/home/app\n0:0\n"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := libdsec.Cmd{Shell: script, User: tc.user}
			r, err := sb.Exec(t.Context(), cmd)
			if err != nil {
				t.Fatal(err)
			}
			if got := string(r.Stdout); got != tc.want {
				t.Errorf("a command:\n%s\nwant:\n%s\nstderr: %s", got, tc.want, r.Stderr)
			}
			session, err := sb.NewSession(t.Context(), api.Session{User: tc.user})
			if err != nil {
				t.Fatal(err)
			}
			if r, err = sb.Exec(t.Context(), libdsec.Cmd{Shell: script, Session: session.ID}); err != nil {
				t.Fatal(err)
			}
			if got := string(r.Stdout); got != tc.want {
				t.Errorf("in a session:\n%s\nwant:\n%s\nstderr: %s", got, tc.want, r.Stderr)
			}
		})
	}
	_, err := sb.Exec(t.Context(), libdsec.Cmd{Shell: "id", User: "nobody-of-that-name"})
	wantRefused(t, err, api.CodeNoSuchUser)
	// A user that the sandbox makes for itself counts at once.
	testbedRoot := func(script string) {
		if r, err := sb.Exec(t.Context(), libdsec.Cmd{Shell: script, User: "root"}); err != nil || !exitsWith(r.ExitStatus, 0) {
			t.Fatalf("%s: %+v, %v", script, r, err)
		}
	}
	testbedRoot("echo 'late:x:2000:999::/tmp:/bin/sh' >> /etc/passwd; echo 'more:x:2001:app,late' >> /etc/group")
	r, err := sb.Exec(t.Context(), libdsec.Cmd{Shell: "id; echo $HOME", User: "late"})
	if want := "uid=2000(late) gid=999(docker) groups=999(docker),2001(more)\n/tmp\n"; err != nil || string(r.Stdout) != want {
		t.Errorf("a user made in the sandbox: %+v, %v, want %q", r, err, want)
	}
}
