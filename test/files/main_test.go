// Package files tests the files of sandboxes by way of a real `dsec dev`: watching them, what happens to them when
// something dies or runs full, and how it is with many and large ones.
package files

import (
	"encoding/json"
	"io"
	"net/http"
	"net/url"
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

// faced is a sandbox's files as plain HTTP has them.
type faced struct {
	node    *testbed.Node
	sandbox string
}

// request makes a request.
func (f faced) request(t testing.TB, method string, q url.Values, body io.Reader) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, f.node.Endpoint+"/v1/sandboxes/"+f.sandbox+"/files?"+q.Encode(), body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+f.node.Token)
	return req
}

// do does a request and returns its status and body.
func (f faced) do(t testing.TB, method string, q url.Values, body io.Reader) (int, []byte) {
	t.Helper()
	resp, err := http.DefaultClient.Do(f.request(t, method, q, body))
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
