package lifecycle

import (
	"encoding/json"
	"net/http"
	"sync"
	"testing"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/test/testbed"
)

// TestToldSandboxesStay: a sandbox that its creator was told of, without a key, isn't taken for one whose creator left,
// however closely the end of the request follows the answer.
func TestToldSandboxesStay(t *testing.T) {
	n := testbed.Shared(t)
	const creators, each = 8, 150
	var wg sync.WaitGroup
	for range creators {
		wg.Go(func() {
			for range each {
				resp, body := post(t, n, "/v1/sandboxes", "", `{"image":"busybox"}`)
				var sb api.Sandbox
				if err := json.Unmarshal(body, &sb); err != nil || resp.StatusCode != http.StatusCreated {
					t.Errorf("create: %d %s", resp.StatusCode, body)
					continue
				}
				if resp, body := post(t, n, "/v1/sandboxes/"+sb.ID+"/exec", "", `{"argv":["true"]}`); resp.StatusCode != http.StatusOK {
					t.Errorf("exec in a sandbox that was answered for: %d %s", resp.StatusCode, body)
				}
				stopAll(t, n, map[string]bool{sb.ID: true})
			}
		})
	}
	wg.Wait()
}
