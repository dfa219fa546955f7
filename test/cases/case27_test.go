package cases

import (
	"io"
	"strings"
	"testing"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

// zeros is an input of n bytes.
func zeros(n int) io.Reader { return strings.NewReader(strings.Repeat("\x00", n)) }

// longComment begins a script that is too long to be an argument.
func longComment() string { return "# " + strings.Repeat("x", 200<<10) + "\n" }

func TestCase27MissingWorkingDirectory(t *testing.T) {
	t.Parallel()
	n := testbed.Shared(t)
	sb := n.Create(t, api.Spec{Workdir: "/made/by declaration/é"})
	if got := testbed.Output(t, sb, `pwd; stat -c %a:%u .`); got != "/made/by declaration/é\n755:0" {
		t.Errorf("the declared directory: %q", got)
	}
	testbed.Output(t, sb, "rm -r '/made/by declaration'")
	if got := testbed.Output(t, sb, "pwd"); got != "/made/by declaration/é" {
		t.Errorf("the declared directory, after it was removed: %q", got)
	}
	testbed.Output(t, sb, "echo text > /file; mkdir -m 700 /closed; ln -s /nowhere /dangling; ln -s /loop /loop")
	for name, tc := range map[string]struct{ cwd, user string }{
		"missing":       {"/nope", ""},
		"missing-below": {"/made/nope/deep", ""},
		"file":          {"/file", ""},
		"below-a-file":  {"/file/dir", ""},
		"dangling-link": {"/dangling", ""},
		"loop":          {"/loop", ""},
		"closed":        {"/closed", "1234"},
		"long-name":     {"/" + strings.Repeat("n", 256), ""},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := libdsec.Cmd{Argv: []string{"pwd"}, Cwd: tc.cwd, User: tc.user}
			r, err := sb.Exec(t.Context(), cmd)
			if e := wantRefused(t, err, api.CodeWorkdirNotFound); !strings.Contains(e.Detail, tc.cwd[:min(len(tc.cwd), 100)]) || e.Field != "cwd" {
				t.Errorf("%+v; error %q on field %q doesn't name %s", r, e.Detail, e.Field, tc.cwd)
			}
			_, err = sb.Start(t.Context(), cmd, libdsec.StartOptions{TTY: &api.Size{Rows: 24, Cols: 80}})
			wantRefused(t, err, api.CodeWorkdirNotFound)
			_, problem := postExec(t, n, sb.ID(), api.ExecRequest{Argv: cmd.Argv, Cwd: tc.cwd, User: tc.user})
			if problem == nil || problem.HTTP != 422 || problem.Code != api.CodeWorkdirNotFound || problem.Field != "cwd" {
				t.Errorf("by REST: %+v", problem)
			}
		})
	}
	if got := testbed.Output(t, sb, "test -e /nope || test -e /made/nope || echo nothing"); got != "nothing" {
		t.Error("a directory that only a command named was made")
	}
}

func TestCase27DirectoryDeletedDuringASession(t *testing.T) {
	t.Parallel()
	sb := testbed.Shared(t).Create(t, api.Spec{})
	session, err := sb.NewSession(t.Context(), api.Session{})
	if err != nil {
		t.Fatal(err)
	}
	in := func(cwd, script string) (*libdsec.Result, error) {
		return sb.Exec(t.Context(), libdsec.Cmd{Shell: script, Session: session.ID, Cwd: cwd})
	}
	if r, err := in("", "mkdir -p /work/deep; cd /work/deep; kept=1; export SHOWN=2; pwd"); err != nil || string(r.Stdout) != "/work/deep\n" {
		t.Fatalf("%+v, %v", r, err)
	}
	for name, remove := range map[string]func() error{
		"from-outside": func() error { testbed.Output(t, sb, "rm -r /work"); return nil },
		"from-inside":  func() error { _, err := in("", "rm -r /work"); return err },
	} {
		t.Run(name, func(t *testing.T) {
			if err := remove(); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				_, err := in("", "pwd")
				if e := wantRefused(t, err, api.CodeWorkdirNotFound); !strings.Contains(e.Detail, "/work/deep") {
					t.Errorf("error %q doesn't name the directory", e.Detail)
				}
			}
			// It's alive: with a directory that is there its commands run, and it still has what it had.
			r, err := in("/", `mkdir -p /work/deep; cd /work/deep; echo "$SHOWN $PWD"`)
			if err != nil || string(r.Stdout) != "2 /work/deep\n" {
				t.Fatalf("%+v, %v", r, err)
			}
			if r, err := in("", "pwd"); err != nil || string(r.Stdout) != "/work/deep\n" {
				t.Errorf("%+v, %v", r, err)
			}
		})
	}
}
