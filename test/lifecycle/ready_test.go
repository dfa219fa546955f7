package lifecycle

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/test/testbed"
)

// TestCase63WarmPoolAgeCounts: a create gets a sandbox that was made ahead, with a key and without, and its life begins
// with that.
func TestCase63WarmPoolAgeCounts(t *testing.T) {
	const slack = time.Second // the record's times are whole milliseconds
	n := testbed.Start(t, testbed.Options{})
	made := map[string]bool{n.Create(t, api.Spec{}).ID(): true}
	for _, key := range []string{"", "case63"} {
		var ahead map[string]bool
		testbed.Until(t, hang, "sandboxes made ahead to have an age", func() bool {
			ahead = map[string]bool{}
			for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
				groups, err := filepath.Glob(root + "/dsec-" + n.Instance() + "/shard-*/s*")
				if err != nil {
					t.Fatal(err)
				}
				for _, g := range groups {
					st, err := os.Stat(g)
					if id := filepath.Base(g); err == nil && len(id) > 20 && !made[id] && time.Since(st.ModTime()) > 2*slack {
						ahead[id] = true
					}
				}
			}
			return len(ahead) >= 4
		})
		began := time.Now()
		_, body := post(t, n, "/v1/sandboxes", key, `{"image":"busybox","ttl":{"running_s":3600}}`)
		var sb api.Sandbox
		if err := json.Unmarshal(body, &sb); err != nil || sb.ID == "" {
			t.Fatalf("create: %v: %s", err, body)
		}
		made[sb.ID] = true
		if !ahead[sb.ID] {
			t.Errorf("key %q: %s was made anew, with %d ready", key, sb.ID, len(ahead))
		}
		if sb.StartedAt == nil || sb.StartedAt.Before(began.Add(-slack)) || sb.CreatedAt.Before(began.Add(-slack)) {
			t.Errorf("key %q: created %v, started %v, asked for %v", key, sb.CreatedAt, sb.StartedAt, began)
		}
		if sb.ExpiresAt == nil || sb.ExpiresAt.Before(began.Add(time.Hour-slack)) {
			t.Errorf("key %q: it ends %v, asked for %v", key, sb.ExpiresAt, began)
		}
	}
}
