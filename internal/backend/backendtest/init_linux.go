package backendtest

import (
	"encoding/json"
	"os"
)

// initOf finds the process that a state names. Every backend's state has one under this key.
func initOf(r *run, state json.RawMessage) *os.Process {
	r.Helper()
	var s struct {
		PID int `json:"pid"`
	}
	if err := json.Unmarshal(state, &s); err != nil || s.PID <= 1 {
		r.Fatalf("state %s: %v", state, err)
	}
	p, err := os.FindProcess(s.PID)
	if err != nil {
		r.Fatalf("find init: %v", err)
	}
	return p
}
