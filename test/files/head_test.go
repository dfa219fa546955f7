package files

import (
	"io"
	"net/http"
	"net/url"
	"testing"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/test/testbed"
)

// TestHeadSaysWhatGetDoes: HEAD of a file has the headers of a GET of it, its size above all, and never a document's.
func TestHeadSaysWhatGetDoes(t *testing.T) {
	t.Parallel()
	n := testbed.Shared(t)
	sb := n.Create(t, api.Spec{})
	f := faced{n, sb.ID()}
	put(t, sb.Files(), "/root/file", "12345678901")
	put(t, sb.Files(), "/root/empty", "")
	ask := func(method, path string) *http.Response {
		t.Helper()
		resp, err := http.DefaultClient.Do(f.request(t, method, url.Values{"path": {path}}, nil))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Fatal(err)
		}
		return resp
	}
	for _, path := range []string{"/root/file", "/root/empty", "/proc/uptime", "/etc/hostname"} {
		get, head := ask("GET", path), ask("HEAD", path)
		for _, name := range []string{"Content-Type", "Content-Length", "Accept-Ranges", "Content-Security-Policy", "X-Content-Type-Options"} {
			g, h := get.Header.Get(name), head.Header.Get(name)
			if name == "Content-Length" && h == "" && (path == "/root/empty" || path == "/proc/uptime") {
				continue // that nothing is in a file of size 0 isn't known before it's read
			}
			if g != h || head.StatusCode != http.StatusOK {
				t.Errorf("%s of %s: GET says %q, HEAD %q (%d)", name, path, g, h, head.StatusCode)
			}
		}
	}
	if resp := ask("HEAD", "/root/file"); resp.ContentLength != 11 || resp.Header.Get("Last-Modified") == "" {
		t.Errorf("HEAD of 11 bytes: %v", resp.Header)
	}
	if resp := ask("HEAD", "/root"); resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "application/json" {
		t.Errorf("HEAD of a directory: %d %v", resp.StatusCode, resp.Header)
	}
	if resp := ask("HEAD", "/root/none"); resp.StatusCode != http.StatusNotFound {
		t.Errorf("HEAD of nothing: %d", resp.StatusCode)
	}
}
