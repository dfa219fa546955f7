package edge

import (
	"slices"

	"github.com/dsec-io/dsec/api"
)

// after lists the states that may follow one. A sandbox that failed or stopped has reached its end.
func after(s api.State) []api.State {
	switch s {
	case api.StateCreating:
		return []api.State{api.StateRunning, api.StateFailed}
	case api.StateRunning:
		return []api.State{api.StatePausing, api.StateSnapshotting, api.StateForking, api.StateStopping, api.StateFailed}
	case api.StatePausing:
		return []api.State{api.StatePaused, api.StateRunning, api.StateStopping, api.StateFailed}
	case api.StatePaused:
		return []api.State{api.StateResuming, api.StateSnapshotting, api.StateForking, api.StateStopping, api.StateFailed}
	case api.StateResuming:
		return []api.State{api.StateRunning, api.StatePaused, api.StateStopping, api.StateFailed}
	case api.StateSnapshotting, api.StateForking:
		return []api.State{api.StateRunning, api.StatePaused, api.StateFailed}
	case api.StateStopping:
		return []api.State{api.StateStopped, api.StateFailed}
	default:
		return nil
	}
}

func legal(from, to api.State) bool { return slices.Contains(after(from), to) }

// short tells whether a state passes by itself, so that requests wait for it.
func short(s api.State) bool {
	return s != api.StateRunning && s != api.StatePaused && !s.Ended()
}

// alive tells whether a sandbox in this state can be changed or ended at once: it has been made, and its end hasn't begun.
func alive(s api.State) bool {
	return slices.Contains([]api.State{api.StateRunning, api.StatePausing, api.StatePaused, api.StateResuming}, s)
}
