package cases

import (
	"path/filepath"
	"testing"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/image"
	"github.com/dsec-io/dsec/internal/image/imagetest"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

// TestCase26ImageWithoutAnyShell runs an image of one static program: no shell, no /etc, no /dev, no /proc.
func TestCase26ImageWithoutAnyShell(t *testing.T) {
	t.Parallel()
	n := testbed.Shared(t)
	imagetest.Build(t, filepath.Join(n.Dir, "images"), "case26-scratch", imagetest.Scratch(t), image.Config{})
	sb := n.Create(t, api.Spec{Image: "case26-scratch", Workdir: "/not/there/yet"})
	for name, cmd := range map[string]libdsec.Cmd{
		"argv":        {Argv: []string{"/hello"}},
		"path":        {Argv: []string{"hello"}, Env: map[string]string{"PATH": "/"}},
		"other-user":  {Argv: []string{"/hello"}, User: "1234:5678"},
		"relative":    {Argv: []string{"../../../hello"}}, // from /not/there/yet, which was made
		"directory":   {Argv: []string{"./hello"}, Cwd: "/"},
		"with-stdin":  {Argv: []string{"/hello"}, Stdin: zeros(100)},
		"environment": {Argv: []string{"/hello"}, Env: map[string]string{"A": "1"}},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := sb.Exec(t.Context(), cmd)
			if err != nil || !exitsWith(r.ExitStatus, 7) || string(r.Stdout) != "hello\n" {
				t.Errorf("%+v, %v; want hello and 7", r, err)
			}
		})
	}
	for name, o := range map[string]libdsec.StartOptions{"started": {}, "terminal": {TTY: &api.Size{Rows: 24, Cols: 80}}} {
		t.Run(name, func(t *testing.T) {
			var said transcript
			o.OnStdout = said.take
			p, err := sb.Start(t.Context(), libdsec.Cmd{Argv: []string{"/hello"}}, o)
			if err != nil {
				t.Fatal(err)
			}
			if st, err := p.Wait(t.Context()); err != nil || !exitsWith(st, 7) {
				t.Errorf("Wait() = %+v, %v", st, err)
			}
			if got := said.String(); got != "hello\n" && got != "hello\r\n" {
				t.Errorf("it printed %q", got)
			}
		})
	}
	_, err := sb.Exec(t.Context(), libdsec.Cmd{Shell: "true"})
	wantRefused(t, err, api.CodeNoShell)
	_, err = sb.Exec(t.Context(), libdsec.Cmd{Shell: longComment() + "true"})
	wantRefused(t, err, api.CodeNoShell)
	_, err = sb.Start(t.Context(), libdsec.Cmd{Shell: "true"}, libdsec.StartOptions{})
	wantRefused(t, err, api.CodeNoShell)
	_, problem := postExec(t, n, sb.ID(), api.ExecRequest{Shell: "true"})
	if problem == nil || problem.Code != api.CodeNoShell || problem.HTTP != 422 {
		t.Errorf("by REST: %+v", problem)
	}
	// A session is a shell's.
	session, err := sb.NewSession(t.Context(), api.Session{})
	if err == nil {
		_, err = sb.Exec(t.Context(), libdsec.Cmd{Argv: []string{"/hello"}, Session: session.ID})
	}
	wantRefused(t, err, api.CodeNoShell)
	// A shell by name is a program like any other.
	_, err = sb.Exec(t.Context(), libdsec.Cmd{Argv: []string{"/bin/sh", "-c", "true"}})
	wantRefused(t, err, api.CodeCommandNotFound)
	// The file API needs nothing of the image.
	f := sb.Files()
	put(t, f, "/data/deep/f", "content")
	wantContent(t, f, "/data/deep/f", "content")
	if got := names(t, f, "/data/deep"); got["f"].Size != int64(len("content")) {
		t.Errorf("list: %v", got)
	}
	if err := f.RemoveAll(t.Context(), "/data"); err != nil {
		t.Error(err)
	}
	if ok, err := f.Exists(t.Context(), "/data"); ok || err != nil {
		t.Errorf("removed: %v, %v", ok, err)
	}
}
