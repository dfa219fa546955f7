package cases

import (
	"strings"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

func TestCase21AMissingCommandFailsAtOnce(t *testing.T) {
	t.Parallel()
	sb := testbed.Shared(t).Create(t, api.Spec{})
	testbed.Output(t, sb, `mkdir -p /t/dir; echo text > /t/plain; printf '#!/no/interpreter\n' > /t/script; printf 'no program' > /t/garbage; `+
		`chmod 755 /t/script /t/garbage; chmod 644 /t/plain`)
	for name, tc := range map[string]struct {
		argv0 string
		user  string
		code  api.Code
		exit  int
	}{
		"missing":             {"/nope", "", api.CodeCommandNotFound, 127},
		"missing-on-path":     {"no-such-program", "", api.CodeCommandNotFound, 127},
		"missing-folder":      {"/no/such/folder/program", "", api.CodeCommandNotFound, 127},
		"directory":           {"/t/dir", "", api.CodeCommandNotExecutable, 126},
		"not-executable":      {"/t/plain", "", api.CodeCommandNotExecutable, 126},
		"not-executable-user": {"/t/plain", "1234", api.CodeCommandNotExecutable, 126},
		"no-interpreter":      {"/t/script", "", api.CodeCommandNotFound, 127},
		"no-program":          {"/t/garbage", "", api.CodeCommandNotExecutable, 126},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := libdsec.Cmd{Argv: []string{tc.argv0, "argument"}, User: tc.user}
			fastest := time.Hour
			for range 5 { // the machine may be busy, so the best time counts
				began := time.Now()
				_, err := sb.Exec(t.Context(), cmd)
				fastest = min(fastest, time.Since(began))
				e := wantRefused(t, err, tc.code)
				if e.ExitCode == nil || *e.ExitCode != tc.exit || !strings.Contains(e.Detail, tc.argv0) {
					t.Errorf("error %+v; want exit code %d, and %s named", e, tc.exit, tc.argv0)
				}
			}
			if fastest > 500*time.Millisecond {
				t.Errorf("it took %v, want less than 500 ms", fastest)
			}
			_, err := sb.Start(t.Context(), cmd, libdsec.StartOptions{})
			wantRefused(t, err, tc.code)
			_, err = sb.Start(t.Context(), cmd, libdsec.StartOptions{TTY: &api.Size{Rows: 24, Cols: 80}})
			wantRefused(t, err, tc.code)
			_, problem := postExec(t, testbed.Shared(t), sb.ID(), api.ExecRequest{Argv: cmd.Argv, User: tc.user})
			if problem == nil || problem.HTTP != 422 || problem.Code != tc.code || problem.ExitCode == nil || *problem.ExitCode != tc.exit {
				t.Errorf("by REST: %+v", problem)
			}
			// Behind a shell it's the shell's to say.
			if r := testbed.Shell(t, sb, tc.argv0); tc.user == "" && name != "no-program" && !exitsWith(r.ExitStatus, tc.exit) {
				t.Errorf("in a shell: %+v, %s", r.ExitStatus, r.Stderr)
			}
		})
	}
}
