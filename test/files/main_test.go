// Package files tests the files of sandboxes by way of a real `dsec dev`: watching them, what happens to them when
// something dies or runs full, and how it is with many and large ones.
package files

import (
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

func TestMain(m *testing.M) { testbed.Main(m) }

// put writes a file, which must work.
func put(t testing.TB, f *libdsec.Files, name, content string) {
	t.Helper()
	if _, err := f.WriteFile(t.Context(), name, []byte(content), libdsec.WriteOptions{Parents: true}); err != nil {
		t.Fatalf("write %q: %v", name, err)
	}
}

// wantContent demands a file's content.
func wantContent(t testing.TB, f *libdsec.Files, name, want string) {
	t.Helper()
	got, err := f.ReadFile(t.Context(), name)
	if err != nil || string(got) != want {
		t.Errorf("read %q: %.100q, %v; want %.100q", name, got, err, want)
	}
}

// request makes a request about a sandbox's files.
func request(t testing.TB, n *testbed.Node, method, id string, q url.Values, body io.Reader) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, n.Endpoint+"/v1/sandboxes/"+id+"/files?"+q.Encode(), body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+n.Token)
	return req
}

// rest does a request by plain HTTP and returns its status and body.
func rest(t testing.TB, n *testbed.Node, method, id string, q url.Values, body string) (int, []byte) {
	t.Helper()
	resp, err := http.DefaultClient.Do(request(t, n, method, id, q, strings.NewReader(body)))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, raw
}

// wantProblem demands a problem document of this code.
func wantProblem(t testing.TB, status int, body []byte, code api.Code) {
	t.Helper()
	var e api.Error
	if err := json.Unmarshal(body, &e); err != nil || e.Code != code || e.HTTP != status || status != code.Status() {
		t.Errorf("status %d, %.300s; want a problem document that says %s", status, body, code)
	}
}
