package cases

import (
	"bytes"
	"fmt"
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
	quiet := fmt.Sprintf(`i=0; while [ $i -lt 2000 ]; do i=$((i+1)); echo "line $i"; echo "error $i" >&2; done
sleep %d
i=0; while [ $i -lt 20 ]; do i=$((i+1)); echo "late $i"; sleep %.3f; done; printf end; exit 37`, int(silent.Seconds()), talks.Seconds()/20)
	// More than any window holds, so that each cut comes in the midst of it; the process waits for its reader.
	flood := `seq 1 3000000; exit 38`
	for name, tc := range map[string]struct {
		script   string
		code     int
		lossless bool
		every    time.Duration
	}{
		"silent": {quiet, 37, false, (silent + talks) / (cuts + 1)},
		"flood":  {flood, 38, true, 10 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			local := exec.CommandContext(t.Context(), "sh", "-c", tc.script)
			var want, wantErr bytes.Buffer
			local.Stdout, local.Stderr = &want, &wantErr
			if err := local.Start(); err != nil {
				t.Fatal(err)
			}
			sb := n.Create(t, api.Spec{})
			p := through(t, n)
			var got, gotErr bytes.Buffer
			process, err := p.client.Sandbox(sb.ID()).Start(t.Context(), libdsec.Cmd{Shell: tc.script}, libdsec.StartOptions{
				Lossless: tc.lossless,
				Handlers: libdsec.Handlers{
					OnStdout: func(b []byte) error { got.Write(b); return nil },
					OnStderr: func(b []byte) error { gotErr.Write(b); return nil },
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			if done := cutting(t, p, process, tc.every); done < cuts {
				t.Errorf("the command ended after %d of %d cuts", done, cuts)
			}
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

// cutting cuts all connections every so often, each time after the client has made a new one. It returns how many times.
func cutting(t *testing.T, p *proxy, process *libdsec.Process, every time.Duration) int {
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
