package lifecycle

import (
	"sync"
	"testing"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

// TestCase28ExecIntoAPausedSandboxWakesIt once, however many come.
func TestCase28ExecIntoAPausedSandboxWakesIt(t *testing.T) {
	t.Parallel()
	n := testbed.Shared(t)
	sb := n.Create(t, api.Spec{})
	info, err := sb.Pause(t.Context())
	if err != nil || info.State != api.StatePaused || info.PausedAt == nil {
		t.Fatalf("%s since %v, %v", info.State, info.PausedAt, err)
	}
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			r, err := sb.Exec(t.Context(), libdsec.Cmd{Argv: []string{"echo", "here"}})
			if err != nil || string(r.Stdout) != "here\n" {
				t.Errorf("%v %v", r, err)
			}
		})
	}
	wg.Wait()
	resumed := 0
	for ev, err := range sb.Events(t.Context(), libdsec.WatchOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		t.Log(ev.Type, ev.Message)
		if ev.Type == "resumed" {
			resumed++
		}
	}
	if resumed != 1 {
		t.Errorf("%d resumes", resumed)
	}
}
