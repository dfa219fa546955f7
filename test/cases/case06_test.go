package cases

import (
	"context"
	"errors"
	"testing"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

// A child that has made a session of its own is still the command's: it goes with the rest, because what is killed is
// the command's cgroup. The test of the third script is the declaration.
func TestCase06CancelKillsOnlyTheLeader(t *testing.T) {
	t.Parallel()
	n := testbed.Shared(t)
	for name, tc := range map[string]struct {
		script string
		sleeps int
	}{
		"background":    {"sleep 9999 & sleep 9999", 2},
		"pipeline":      {"sleep 9999 | cat", 1},
		"setsid":        {"setsid sleep 9999 & sleep 9999", 2},
		"double-setsid": {"setsid sh -c 'setsid sleep 9999 & sleep 9999' & wait", 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sb := n.Create(t, api.Spec{})
			cancelled := errors.New("the caller has cancelled")
			gone := func() bool { return inside(t, sb, "sleep 9999 ") == 0 && len(commands(t, n, sb)) == 0 }
			all := func() bool { return inside(t, sb, "sleep 9999 ") == tc.sleeps }

			ctx, cancel := context.WithCancelCause(t.Context())
			ended := make(chan error, 1) // one result
			go func() {
				_, err := sb.Exec(ctx, libdsec.Cmd{Argv: []string{"sh", "-c", tc.script}})
				ended <- err
			}()
			testbed.Until(t, hang, "all run", all)
			cancel(cancelled)
			if err := <-ended; !errors.Is(err, cancelled) {
				t.Errorf("Exec() = %v, want the cause", err)
			}
			testbed.Until(t, hang, "none is left after a cancelled Exec", gone)

			p, err := sb.Start(t.Context(), libdsec.Cmd{Argv: []string{"sh", "-c", tc.script}}, libdsec.StartOptions{Detach: true})
			if err != nil {
				t.Fatal(err)
			}
			testbed.Until(t, hang, "all run", all)
			if err := p.Kill(t.Context()); err != nil {
				t.Fatal(err)
			}
			st, err := p.Wait(within(t, hang))
			if err != nil || st.Signal != "SIGKILL" || st.ExitCode != nil {
				t.Errorf("killed process: %+v %v", st, err)
			}
			testbed.Until(t, hang, "none is left after a kill", gone)
		})
	}
}
