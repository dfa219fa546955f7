package backendtest

import (
	"encoding/json"
	"os"
)

// killInit kills the process that a state names. Every backend's state has one under this key.
func killInit(r *run, state json.RawMessage) {
	r.Helper()
	var s struct {
		PID int `json:"pid"`
	}
	if err := json.Unmarshal(state, &s); err != nil || s.PID <= 1 {
		r.Fatalf("state %s: %v", state, err)
	}
	p, err := os.FindProcess(s.PID)
	if err == nil {
		err = p.Kill()
	}
	if err != nil {
		r.Fatalf("kill %d: %v", s.PID, err)
	}
}
