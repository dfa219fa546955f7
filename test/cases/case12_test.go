package cases

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

const cuts = 10

// TestCase12ReattachingLosesOrRepeatsOutput leaves out that attaching wakes a paused sandbox.
func TestCase12ReattachingLosesOrRepeatsOutput(t *testing.T) {
	t.Parallel()
	n := testbed.Shared(t)
	silent := span(t, 4*time.Second, 4*time.Minute)
	talks := span(t, time.Second, time.Minute)
	// It doesn't end before the last cut, whatever time that takes.
	quiet := fmt.Sprintf(`i=0; while [ $i -lt 2000 ]; do i=$((i+1)); echo "line $i"; echo "error $i" >&2; done
sleep %d
i=0; while [ $i -lt 20 ]; do i=$((i+1)); echo "late $i"; sleep %.3f; done; until [ -e "$LAST_CUT" ]; do sleep 0.05; done; printf end; exit 37`, int(silent.Seconds()), talks.Seconds()/20)
	// The process waits for its reader, who takes no more than a piece between two cuts: each comes in the midst of it.
	flood := `seq 1 3000000; exit 38`
	for name, tc := range map[string]struct {
		script string
		code   int
		piece  int // 0: not lossless, and all is taken
		every  time.Duration
	}{
		"silent": {quiet, 37, 0, (silent + talks) / (cuts + 1)},
		"flood":  {flood, 38, 2 << 20, 10 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			local := exec.CommandContext(t.Context(), "sh", "-c", tc.script)
			local.Env = append(os.Environ(), "LAST_CUT=/")
			var want, wantErr bytes.Buffer
			local.Stdout, local.Stderr = &want, &wantErr
			if err := local.Start(); err != nil {
				t.Fatal(err)
			}
			sb := n.Create(t, api.Spec{})
			p := through(t, n)
			var got, gotErr bytes.Buffer
			made, seen := make(chan struct{}, cuts), 0
			process, err := p.client.Sandbox(sb.ID()).Start(t.Context(), libdsec.Cmd{
				Shell: tc.script, Env: map[string]string{"LAST_CUT": "/last-cut"},
			}, libdsec.StartOptions{
				Lossless: tc.piece > 0,
				Handlers: libdsec.Handlers{
					OnStdout: func(b []byte) error {
						for tc.piece > 0 && seen < cuts && got.Len() >= (seen+1)*tc.piece {
							select {
							case <-made:
								seen++
							case <-t.Context().Done():
								return t.Context().Err()
							}
						}
						got.Write(b)
						return nil
					},
					OnStderr: func(b []byte) error { gotErr.Write(b); return nil },
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			if done := cutting(t, p, process, tc.every, made); done < cuts {
				t.Errorf("the command ended after %d of %d cuts", done, cuts)
			}
			testbed.Output(t, n.Client.Sandbox(sb.ID()), "touch /last-cut")
			st, err := process.Wait(within(t, hang+talks))
			if err != nil || !exited(st, tc.code) || len(process.Gaps()) > 0 {
				t.Errorf("end: %+v %v, gaps %v; want exit %d", st, err, process.Gaps(), tc.code)
			}
			_ = local.Wait() // by its own code
			if code := local.ProcessState.ExitCode(); code != tc.code {
				t.Fatalf("local run exited with %d", code)
			}
			if !bytes.Equal(got.Bytes(), want.Bytes()) || !bytes.Equal(gotErr.Bytes(), wantErr.Bytes()) {
				t.Errorf("%d and %d bytes differ from the local run's %d and %d", got.Len(), gotErr.Len(), want.Len(), wantErr.Len())
			}
			retained(t, n, sb, process.ID(), tc.code)
		})
	}
}

// cutting cuts all connections every so often, each time after the client has made a new one, and tells made of each. It
// returns how many times.
func cutting(t *testing.T, p *proxy, process *libdsec.Process, every time.Duration, made chan<- struct{}) int {
	t.Helper()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for i := range cuts {
		select {
		case <-tick.C:
		case <-process.Done():
			return i
		}
		before := p.answered.Load()
		p.cutAll()
		made <- struct{}{}
		testbed.Until(t, hang, "the client is back", func() bool { return p.answered.Load() > before })
	}
	return cuts
}

// retained checks that the end is still told to who comes after it, and the output from any offset.
func retained(t *testing.T, n *testbed.Node, sb *libdsec.Sandbox, id string, code int) {
	t.Helper()
	list, err := sb.Processes(t.Context())
	if err != nil || len(list) != 1 || list[0].Exit == nil || !exited(*list[0].Exit, code) {
		t.Errorf("the list of processes afterwards: %+v %v", list, err)
		return
	}
	var tail bytes.Buffer
	again, err := n.Client.Sandbox(sb.ID()).Attach(t.Context(), id, libdsec.AttachOptions{
		StdoutOffset: list[0].Exit.StdoutTotal - 3,
		Handlers:     libdsec.Handlers{OnStdout: func(b []byte) error { tail.Write(b); return nil }},
	})
	if err != nil {
		t.Fatal(err)
	}
	if st, err := again.Wait(within(t, hang)); err != nil || !exited(st, code) || tail.Len() != 3 {
		t.Errorf("attached after the end: %q, %+v %v", tail.String(), st, err)
	}
}
