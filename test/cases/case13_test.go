package cases

import (
	"io"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

func TestCase13ExitEventOvertakesTheLastOutput(t *testing.T) {
	t.Parallel()
	n := testbed.Shared(t)
	printf := libdsec.Cmd{Argv: []string{"printf", "x"}}
	for name, once := range map[string]func(*testing.T, *libdsec.Sandbox) (string, api.ExitStatus, error){
		"exec": func(t *testing.T, sb *libdsec.Sandbox) (string, api.ExitStatus, error) {
			r, err := sb.Exec(t.Context(), printf)
			if err != nil {
				return "", api.ExitStatus{}, err
			}
			return string(r.Stdout), r.ExitStatus, nil
		},
		"started": func(t *testing.T, sb *libdsec.Sandbox) (string, api.ExitStatus, error) {
			return started(t, sb, printf, libdsec.StartOptions{})
		},
		"terminal": func(t *testing.T, sb *libdsec.Sandbox) (string, api.ExitStatus, error) {
			return started(t, sb, printf, libdsec.StartOptions{TTY: &api.Size{Rows: 24, Cols: 80}})
		},
		"http": func(t *testing.T, sb *libdsec.Sandbox) (string, api.ExitStatus, error) {
			r := execREST(t, n, sb, api.ExecRequest{Argv: printf.Argv})
			return r.Stdout, r.ExitStatus, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sb := n.Create(t, api.Spec{})
			const rounds, workers = 1000, 32
			var next, bad atomic.Int64
			var wg sync.WaitGroup
			for range workers {
				wg.Go(func() {
					for next.Add(1) <= rounds {
						out, st, err := once(t, sb)
						if (err != nil || out != "x" || !exited(st, 0)) && bad.Add(1) < 5 {
							t.Errorf("%q, %+v, %v; want x, exit 0", out, st, err)
						}
					}
				})
			}
			wg.Wait()
			if bad.Load() > 0 {
				t.Errorf("%d of %d were wrong", bad.Load(), rounds)
			}
		})
	}
}

// started runs a command as a process and returns what came before its end was told.
func started(t *testing.T, sb *libdsec.Sandbox, cmd libdsec.Cmd, o libdsec.StartOptions) (string, api.ExitStatus, error) {
	p, err := sb.Start(t.Context(), cmd, o)
	if err != nil {
		return "", api.ExitStatus{}, err
	}
	out, err := io.ReadAll(p.Stdout())
	if err != nil {
		return "", api.ExitStatus{}, err
	}
	st, err := p.Wait(within(t, hang))
	return string(out), st, err
}
