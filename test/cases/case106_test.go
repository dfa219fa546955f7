package cases

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/dsec-io/dsec/test/testbed"
)

func TestCase106ZeroLimits(t *testing.T) {
	t.Parallel()
	n := testbed.Shared(t)
	for _, field := range []string{"cpu", "memory_mb", "disk_mb", "pids"} {
		for _, value := range []string{"0", "-1", "0.0001", "1e12"} {
			body := fmt.Sprintf(`{"image":"busybox","resources":{%q:%s}}`, field, value)
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, n.Endpoint+"/v1/sandboxes", strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer "+n.Token)
			req.Header.Set("Content-Type", "application/json")
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			var doc struct{ Code, Field, ID string }
			err = json.NewDecoder(resp.Body).Decode(&doc)
			_ = resp.Body.Close()
			if err != nil || resp.StatusCode != http.StatusBadRequest && resp.StatusCode != http.StatusUnprocessableEntity ||
				doc.Code == "" || !strings.Contains(doc.Field, field) {
				t.Errorf("%s: %d %+v, %v", body, resp.StatusCode, doc, err)
			}
		}
	}
}
