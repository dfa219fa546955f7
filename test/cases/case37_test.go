package cases

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

func TestCase37Names(t *testing.T) {
	t.Parallel()
	n := testbed.Shared(t)
	sb := n.Create(t, api.Spec{})
	f := sb.Files()
	raw := rawFiles{n, sb.ID()}
	all := []string{
		"项目 é.txt", "..a", "...", "a%2Fb", "a\nb", "a b+c?d#e", strings.Repeat("n", 255), "\xff\xfe\x80", "-rf", " ", "\t", "\\", "'", `"`, "*", "\x01",
	}
	for _, name := range all {
		path := "/n/" + name
		put(t, f, path, "sdk "+name)
		wantContent(t, f, path, "sdk "+name)
		q := url.Values{"path": {path}}
		if got := raw.do(t, http.MethodGet, q, ""); got.status != http.StatusOK || string(got.body) != "sdk "+name {
			t.Errorf("GET %q: %d %s", name, got.status, got.body)
		}
		if got := raw.do(t, http.MethodPut, q, "rest "+name); got.status != http.StatusOK {
			t.Errorf("PUT %q: %d %s", name, got.status, got.body)
		}
		wantContent(t, f, path, "rest "+name)
		r, err := sb.Exec(t.Context(), libdsec.Cmd{Argv: []string{"cat", path}})
		if err != nil || string(r.Stdout) != "rest "+name {
			t.Errorf("cat %q: %+v, %v", name, r, err)
		}
		var info api.FileInfo
		got := raw.do(t, http.MethodGet, url.Values{"path": {path}, "stat": {"1"}}, "")
		if err := json.Unmarshal(got.body, &info); err != nil || info.RawName() != name {
			t.Errorf("stat %q: %v %s", name, err, got.body)
		}
	}
	listed := names(t, f, "/n")
	if len(listed) != len(all) {
		t.Errorf("%d names are listed, %d were made", len(listed), len(all))
	}
	for _, name := range all {
		if _, ok := listed[name]; !ok {
			t.Errorf("%q isn't listed", name)
		}
	}
	if e, ok := listed["\xff\xfe\x80"]; !ok || e.NameB64 == nil || e.Name != "\uFFFD\uFFFD\uFFFD" {
		t.Errorf("a name that isn't UTF-8: %+v", e)
	}
	for name, code := range map[string]api.Code{
		"/n/.": api.CodeIsDirectory, "/n/..": api.CodeIsDirectory, "/n/": api.CodeIsDirectory, "n/x": api.CodeInvalid, "/n/a\x00b": api.CodeInvalid,
		"/n/" + strings.Repeat("n", 256): api.CodeInvalid, "/" + strings.Repeat("n/", 4000): api.CodeInvalid,
	} {
		if _, err := f.WriteFile(t.Context(), name, nil, libdsec.WriteOptions{}); !libdsec.IsCode(err, code) {
			t.Errorf("write %.40q: %v, want %s", name, err, code)
		}
	}
}
