package cases

import (
	"net/http"
	"net/url"
	"testing"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/test/testbed"
)

// TestCase38ErrorMapping asks for everything that can't be done to a file, by plain HTTP.
func TestCase38ErrorMapping(t *testing.T) {
	t.Parallel()
	n := testbed.Shared(t)
	sb := n.Create(t, api.Spec{})
	testbed.Output(t, sb, "mkdir -p /d/sub && echo hello > /f && mkdir -m 700 /closed && echo x > /closed/f && mkdir -m 755 /roots && echo x > /roots/f && chmod 600 /roots/f && ln -s loop /loop && mkfifo /fifo")
	raw := rawFiles{n, sb.ID()}
	for _, c := range refusals() {
		q, err := url.ParseQuery(c.query)
		if err != nil {
			t.Fatal(err)
		}
		got := raw.do(t, c.method, q, "hello")
		if got.status != c.status || got.problem(t).Code != c.code {
			t.Errorf("%s ?%s: %d %s; want %d %s", c.method, c.query, got.status, got.body, c.status, c.code)
		}
	}
	t.Run("ranges", func(t *testing.T) {
		for ranges, want := range map[string]struct {
			status        int
			body, content string
		}{
			"bytes=0-1":  {206, "he", "bytes 0-1/6"},
			"bytes=1-":   {206, "ello\n", "bytes 1-5/6"},
			"bytes=-2":   {206, "o\n", "bytes 4-5/6"},
			"bytes=-99":  {206, "hello\n", "bytes 0-5/6"},
			"bytes=5-99": {206, "\n", "bytes 5-5/6"},
			"bytes=6-":   {416, "", "bytes */6"},
			"bytes=-0":   {416, "", "bytes */6"},
			"bytes=3-1":  {200, "hello\n", ""},
			"lines=1-2":  {200, "hello\n", ""},
		} {
			got := raw.do(t, http.MethodGet, url.Values{"path": {"/f"}}, "", "Range", ranges)
			if got.status != want.status || got.header.Get("Content-Range") != want.content || want.body != "" && string(got.body) != want.body {
				t.Errorf("%s: %d %q %q", ranges, got.status, got.header.Get("Content-Range"), got.body)
			}
		}
	})
	if got := testbed.Output(t, sb, "find / -xdev -name '.dsec-*'; cat /f"); got != "hello" {
		t.Errorf("left behind: %s", got)
	}
}

// refusal is a request that can't be served, and how it is answered.
type refusal struct {
	method, query string
	status        int
	code          api.Code
}

func refusals() []refusal {
	const user = "1000:1000"
	return []refusal{
		{"GET", "path=/no", 404, api.CodeFileNotFound},
		{"GET", "path=/no/where", 404, api.CodeFileNotFound},
		{"GET", "path=/d", 409, api.CodeIsDirectory},
		{"GET", "path=/f/x", 409, api.CodeNotDirectory},
		{"GET", "path=/loop", 409, api.CodeLinkLoop},
		{"GET", "path=/fifo", 409, api.CodeNotRegular},
		{"GET", "path=/roots/f&user=" + user, 403, api.CodePermissionDenied},
		{"GET", "path=/closed/f&user=" + user, 403, api.CodePermissionDenied},
		{"GET", "path=/f&max_bytes=5", 413, api.CodeTooLarge},
		{"GET", "path=/f&user=nobody-of-this-name", 422, api.CodeNoSuchUser},
		{"GET", "path=f", 400, api.CodeInvalid},
		{"GET", "", 400, api.CodeInvalid},
		{"GET", "path=/f&what=1", 400, api.CodeUnknownField},
		{"GET", "path=/no&watch=1", 404, api.CodeFileNotFound},
		{"GET", "path=/no&list=1", 404, api.CodeFileNotFound},
		{"GET", "path=/f&list=1", 409, api.CodeNotDirectory},
		{"GET", "path=/closed&list=1&user=" + user, 403, api.CodePermissionDenied},
		{"GET", "path=/no&stat=1", 404, api.CodeFileNotFound},
		{"GET", "path=/f/x&stat=1", 409, api.CodeNotDirectory},
		{"GET", "path=/closed/f&stat=1&user=" + user, 403, api.CodePermissionDenied},
		{"GET", "path=/d&stat=1&digest=1", 409, api.CodeIsDirectory},
		{"GET", "path=/no&tar=1", 404, api.CodeFileNotFound},
		{"GET", "path=/closed&tar=1&user=" + user, 403, api.CodePermissionDenied},
		{"PUT", "path=/d", 409, api.CodeIsDirectory},
		{"PUT", "path=/", 409, api.CodeIsDirectory},
		{"PUT", "path=/no/where", 404, api.CodeFileNotFound},
		{"PUT", "path=/f/x", 409, api.CodeNotDirectory},
		{"PUT", "path=/f/x/y&parents=1", 409, api.CodeNotDirectory},
		{"PUT", "path=/fifo", 409, api.CodeNotRegular},
		{"PUT", "path=/f&no_replace=1", 409, api.CodeExists},
		{"PUT", "path=/loop", 409, api.CodeLinkLoop},
		{"PUT", "path=/roots/new&user=" + user, 403, api.CodePermissionDenied},
		{"PUT", "path=/roots/a/b&parents=1&user=" + user, 403, api.CodePermissionDenied},
		{"PUT", "path=/closed/new&user=" + user, 403, api.CodePermissionDenied},
		{"PUT", "path=/proc/new", 404, api.CodeFileNotFound},
		{"PUT", "path=/big&max_bytes=3", 413, api.CodeTooLarge},
		{"PUT", "path=/x&mode=9", 400, api.CodeInvalid},
		{"PUT", "path=/f&tar=1", 409, api.CodeNotDirectory},
		{"PUT", "path=/t&tar=1", 400, api.CodeInvalid},
		{"POST", "path=/d&op=mkdir", 409, api.CodeExists},
		{"POST", "path=/no/d&op=mkdir", 404, api.CodeFileNotFound},
		{"POST", "path=/f&op=mkdir&parents=1", 409, api.CodeNotDirectory},
		{"POST", "path=/roots/d&op=mkdir&user=" + user, 403, api.CodePermissionDenied},
		{"POST", "path=/no&op=rename&to=/y", 404, api.CodeFileNotFound},
		{"POST", "path=/f&op=rename&to=/no/y", 404, api.CodeFileNotFound},
		{"POST", "path=/f&op=rename&to=/d", 409, api.CodeIsDirectory},
		{"POST", "path=/d/sub&op=rename&to=/f", 409, api.CodeNotDirectory},
		{"POST", "path=/f&op=rename&to=/fifo&no_replace=1", 409, api.CodeExists},
		{"POST", "path=/f&op=rename", 400, api.CodeInvalid},
		{"POST", "path=/no&op=chmod&mode=600", 404, api.CodeFileNotFound},
		{"POST", "path=/f&op=chmod", 400, api.CodeInvalid},
		{"POST", "path=/f&op=chmod&mode=777&user=" + user, 403, api.CodePermissionDenied},
		{"POST", "path=/f&op=chown&uid=1&user=" + user, 403, api.CodePermissionDenied},
		{"POST", "path=/f&op=chown&uid=70000", 400, api.CodeInvalid},
		{"POST", "path=/f&op=symlink&to=/x", 409, api.CodeExists},
		{"POST", "path=/f&op=burn", 400, api.CodeInvalid},
		{"DELETE", "path=/no", 404, api.CodeFileNotFound},
		{"DELETE", "path=/no&recursive=1", 404, api.CodeFileNotFound},
		{"DELETE", "path=/d", 409, api.CodeNotEmpty},
		{"DELETE", "path=/f/x", 409, api.CodeNotDirectory},
		{"DELETE", "path=/roots/f&user=" + user, 403, api.CodePermissionDenied},
		{"DELETE", "path=/roots&recursive=1&user=" + user, 403, api.CodePermissionDenied},
	}
}
