package cases

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

// put writes a file, which must work.
func put(t testing.TB, f *libdsec.Files, name, content string) api.FileInfo {
	t.Helper()
	info, err := f.WriteFile(t.Context(), name, []byte(content), libdsec.WriteOptions{Parents: true})
	if err != nil {
		t.Fatalf("write %q: %v", name, err)
	}
	return info
}

// wantContent demands a file's content.
func wantContent(t testing.TB, f *libdsec.Files, name, want string) {
	t.Helper()
	got, err := f.ReadFile(t.Context(), name)
	if err != nil || string(got) != want {
		t.Errorf("read %q: %.100q, %v; want %.100q", name, got, err, want)
	}
}

// names lists a directory, which must work.
func names(t testing.TB, f *libdsec.Files, dir string) map[string]api.FileInfo {
	t.Helper()
	all := map[string]api.FileInfo{}
	for info, err := range f.List(t.Context(), dir) {
		if err != nil {
			t.Fatalf("list %q: %v", dir, err)
		}
		all[info.RawName()] = info
	}
	return all
}

// rawFiles is plain HTTP on a sandbox's files, which nobody repeats.
type rawFiles struct {
	node    *testbed.Node
	sandbox string
}

// answered is what came back.
type answered struct {
	status int
	header http.Header
	body   []byte
}

func (r rawFiles) do(t testing.TB, method string, q url.Values, body string, header ...string) answered {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, r.node.Endpoint+"/v1/sandboxes/"+r.sandbox+"/files?"+q.Encode(), strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+r.node.Token)
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answered{resp.StatusCode, resp.Header, raw}
}

// problem is the problem document that came back.
func (a answered) problem(t testing.TB) *api.Error {
	t.Helper()
	e := new(api.Error)
	if err := json.Unmarshal(a.body, e); err != nil || e.HTTP != a.status || e.Code == "" {
		t.Fatalf("status %d isn't told by a problem document: %v: %.300s", a.status, err, a.body)
	}
	return e
}
