package lifecycle

import (
	"slices"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

// TestCase53Pairs of {pause, resume, exec, delete, extend} at the same moment: each ends as some order explains.
func TestCase53Pairs(t *testing.T) {
	t.Parallel()
	n := testbed.Shared(t)
	act := map[string]func(sb *libdsec.Sandbox) error{
		"pause":  func(sb *libdsec.Sandbox) error { _, err := sb.Pause(t.Context()); return err },
		"resume": func(sb *libdsec.Sandbox) error { _, err := sb.Resume(t.Context()); return err },
		"delete": func(sb *libdsec.Sandbox) error { _, err := sb.Stop(t.Context()); return err },
		"extend": func(sb *libdsec.Sandbox) error { _, err := sb.Extend(t.Context(), time.Hour); return err },
		"exec": func(sb *libdsec.Sandbox) error {
			_, err := sb.Exec(t.Context(), libdsec.Cmd{Argv: []string{"true"}})
			return err
		},
	}
	names := []string{"pause", "resume", "exec", "delete", "extend"}
	spec := labelled("pairs")
	spec.TTL.RunningS = new(int64(600))
	for i, a := range names {
		for _, b := range names[i:] {
			t.Run(a+"-"+b, func(t *testing.T) {
				t.Parallel()
				var sb *libdsec.Sandbox
				for round := range 100 {
					if sb == nil {
						sb = n.Create(t, spec)
					}
					start := api.StateRunning
					if round%2 == 1 {
						pause(t, sb)
						start = api.StatePaused
					} else if _, err := sb.Resume(t.Context()); err != nil {
						t.Fatal(err)
					}
					second := make(chan error, 1)
					go func() { second <- act[b](n.Client.Sandbox(sb.ID())) }()
					err := act[a](n.Client.Sandbox(sb.ID()))
					explain(t, [2]string{a, b}, [2]error{err, <-second}, start, state(t, sb))
					if t.Failed() {
						return
					}
					if a == "delete" || b == "delete" {
						sb = nil
					}
				}
			})
		}
	}
}

// explain fails unless what came of two actions is what one order or the other gives.
func explain(t *testing.T, did [2]string, got [2]error, from, end api.State) {
	t.Helper()
	for _, order := range [][2]int{{0, 1}, {1, 0}} {
		at, fits := from, true
		for _, i := range order {
			refused := false
			switch {
			case at.Ended():
				refused = did[i] != "delete"
			case did[i] == "delete":
				at = api.StateStopped
			case did[i] == "pause":
				at = api.StatePaused
			case did[i] == "resume", did[i] == "exec":
				at = api.StateRunning
			}
			ended := libdsec.IsCode(got[i], api.CodeWrongState) || libdsec.IsCode(got[i], api.CodeSandboxDied)
			fits = fits && (got[i] == nil && !refused || refused && ended)
		}
		if fits && at == end {
			return
		}
	}
	// A delete in the middle of another action ends it.
	if end == api.StateStopped && slices.Contains(did[:], "delete") {
		other := got[0]
		if did[0] == "delete" {
			other = got[1]
		}
		if libdsec.IsCode(other, api.CodeWrongState) || libdsec.IsCode(other, api.CodeSandboxDied) {
			return
		}
	}
	t.Errorf("%v from %s: %v, and then it is %s", did, from, got, end)
}
