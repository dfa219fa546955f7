// Package limits holds the field's bug reports about limits as tests: what happens when memory, processes or the
// machine run out, what is told of it, and what a sandbox that can't be helped any more leaves. Each is named after its
// number and drives a real `dsec dev` through the SDK or plain HTTP.
package limits

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

func TestMain(m *testing.M) { testbed.Main(m) }

// hang is when a test that waits counts as hanging.
const hang = 3 * time.Minute

const mib = 1 << 20

// small is a sandbox with so much memory and so many processes.
func small(memoryMB, pids int64) api.Spec {
	return api.Spec{Resources: api.Resources{MemoryMB: &memoryMB, PIDs: &pids}}
}

// usage asks for a sandbox's figures.
func usage(t *testing.T, n *testbed.Node, sb *libdsec.Sandbox) api.Usage {
	t.Helper()
	var u api.Usage
	if status := get(t, n, "/v1/sandboxes/"+sb.ID()+"/metrics", &u); status != http.StatusOK {
		t.Fatalf("metrics: %d", status)
	}
	return u
}

// get asks the node over plain HTTP.
func get(t *testing.T, n *testbed.Node, path string, into any) (status int) {
	t.Helper()
	return send(t, n, http.MethodGet+" "+path, "", into)
}

// send sends a request, whose route is a method and a path.
func send(t *testing.T, n *testbed.Node, route, body string, into any) (status int) {
	t.Helper()
	method, path, _ := strings.Cut(route, " ")
	req, err := http.NewRequestWithContext(t.Context(), method, n.Endpoint+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+n.Token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, into); err != nil {
		t.Fatalf("%s %s: %d %s: %v", method, path, resp.StatusCode, raw, err)
	}
	return resp.StatusCode
}

// event waits for an event of a type.
func event(t *testing.T, sb *libdsec.Sandbox, kind string) api.Event {
	t.Helper()
	var found api.Event
	testbed.Until(t, hang, "an event "+kind, func() bool {
		for e, err := range sb.Events(t.Context(), libdsec.WatchOptions{}) {
			if err != nil {
				t.Fatal(err)
			}
			if e.Type == kind {
				found = e
			}
		}
		return found.Type != ""
	})
	return found
}

// number is a number of an event's data.
func number(e api.Event, name string) float64 {
	n, _ := e.Data[name].(float64)
	return n
}
