package sandboxcmd

import (
	"testing"

	"github.com/dsec-io/dsec/api"
)

// TestEventDetails: a row says what happened, not only that something did.
func TestEventDetails(t *testing.T) {
	for want, e := range map[string]api.Event{
		"":                              {Type: "running"},
		"stopped on request":            {Message: "stopped on request"},
		"image=busybox":                 {Data: map[string]any{"image": "busybox"}},
		"exit_code=3 process=p1":        {Data: map[string]any{"process": "p1", "exit": map[string]any{"exit_code": 3.0, "timed_out": false}}},
		"signal=SIGKILL timed_out=true": {Data: map[string]any{"exit": map[string]any{"signal": "SIGKILL", "timed_out": true}}},
	} {
		if got := eventDetails(e); got != want {
			t.Errorf("eventDetails(%+v) = %q, want %q", e, got, want)
		}
	}
}
