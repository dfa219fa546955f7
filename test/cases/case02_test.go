package cases

import (
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

func TestCase02InheritedOrNeverClosedStdinHangsTheCommand(t *testing.T) {
	t.Parallel()
	n := testbed.Shared(t)
	sb := n.Create(t, api.Spec{})
	for name, tc := range map[string]struct{ script, want string }{
		"cat-to-a-file": {"cat > f; wc -c < f", "0\n"},
		"read":          {"read x; echo $?", "1\n"},
		// A program that asks, as python3 -c "input()" does: a shell that reads its commands from stdin.
		"program-that-asks": {"sh; echo $?", "0\n"},
		"descriptor":        {"readlink /proc/self/fd/0", "/dev/null\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inTime(t, time.Second, func() {
				r := run(t, sb, hang, libdsec.Cmd{Shell: tc.script})
				if string(r.Stdout) != tc.want || !exited(r.ExitStatus, 0) {
					t.Errorf("%q = %q, %+v; want %q", tc.script, r.Stdout, r.ExitStatus, tc.want)
				}
			})
			p, err := sb.Start(within(t, hang), libdsec.Cmd{Shell: tc.script}, libdsec.StartOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if st, err := p.Wait(t.Context()); err != nil || !exited(st, 0) {
				t.Errorf("started process: %+v %v", st, err)
			}
			if res := execREST(t, n, sb, api.ExecRequest{Shell: tc.script, TimeoutMS: new(hang.Milliseconds())}); res.Stdout != tc.want {
				t.Errorf("over HTTP: %q, %+v", res.Stdout, res.ExitStatus)
			}
		})
	}
}
