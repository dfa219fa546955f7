package apiserver

import (
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/dsec-io/dsec/api"
)

func TestAuthentication(t *testing.T) {
	r := newRig(t)
	for name, tc := range map[string]struct {
		path, auth string
		status     int
	}{
		"none":              {"/v1/sandboxes", "", 401},
		"wrong":             {"/v1/sandboxes", "Bearer dsec_wrong", 401},
		"basic":             {"/v1/sandboxes", "Basic " + r.token, 401},
		"empty-bearer":      {"/v1/sandboxes", "Bearer ", 401},
		"prefix":            {"/v1/sandboxes", "Bearer " + r.token[:len(r.token)-1], 401},
		"longer":            {"/v1/sandboxes", "Bearer " + r.token + "x", 401},
		"huge":              {"/v1/sandboxes", "Bearer " + strings.Repeat("x", 5000), 401},
		"right":             {"/v1/sandboxes", "Bearer " + r.token, 200},
		"scheme-any-case":   {"/v1/sandboxes", "bearer " + r.token, 200},
		"unknown-route":     {"/nowhere", "", 401},
		"unknown-known-us":  {"/nowhere", "Bearer " + r.token, 404},
		"aether":            {"/v1/aether", "", 401},
		"health-is-public":  {"/healthz", "", 200},
		"ready-is-public":   {"/readyz", "", 200},
		"metrics-are-local": {"/metrics", "", 200},
	} {
		t.Run(name, func(t *testing.T) {
			q := request{method: "GET", path: tc.path, anonymous: true, header: http.Header{}}
			if tc.auth != "" {
				q.header.Set("Authorization", tc.auth)
			}
			resp := r.do(q)
			if resp.status != tc.status {
				t.Errorf("status = %d, want %d: %s", resp.status, tc.status, resp.body)
			}
			if tc.status == 401 && (resp.problem.Code != api.CodeUnauthenticated || resp.header.Get("WWW-Authenticate") == "") {
				t.Errorf("answer %v %s isn't a 401 problem", resp.header, resp.body)
			}
		})
	}
}

func TestMetricsBehindProxyNeedToken(t *testing.T) {
	r := newRig(t)
	q := request{method: "GET", path: "/metrics", anonymous: true, header: http.Header{"X-Forwarded-For": {"192.0.2.1"}}}
	if resp := r.do(q); resp.status != 401 {
		t.Errorf("status = %d, want 401", resp.status)
	}
	q.anonymous = false
	if resp := r.do(q); resp.status != 200 {
		t.Errorf("with the token: status = %d, want 200", resp.status)
	}
}

func TestHostAndOrigin(t *testing.T) {
	r := newRig(t)
	for name, tc := range map[string]struct {
		header http.Header
		status int
	}{
		"address":           {nil, 200},
		"localhost":         {http.Header{"Host": {"localhost:99"}}, 200},
		"loopback-6":        {http.Header{"Host": {"[::1]:99"}}, 200},
		"configured":        {http.Header{"Host": {"DSEC.test."}}, 200},
		"rebound":           {http.Header{"Host": {"evil.example"}}, 403},
		"other-number":      {http.Header{"Host": {"192.0.2.7"}}, 403},
		"own-origin":        {http.Header{"Origin": {"http://localhost:3000"}}, 200},
		"foreign-origin":    {http.Header{"Origin": {"https://evil.example"}}, 403},
		"no-origin":         {http.Header{"Origin": {"null"}}, 403},
		"prefix-of-ours":    {http.Header{"Host": {"localhost.evil.example"}}, 403},
		"public-route-also": {http.Header{"Host": {"evil.example"}}, 403},
	} {
		t.Run(name, func(t *testing.T) {
			path := "/v1/sandboxes"
			if name == "public-route-also" {
				path = "/healthz"
			}
			resp := r.do(request{method: "GET", path: path, header: tc.header})
			if resp.status != tc.status || (tc.status == 403) != (resp.problem.Code == api.CodeForbidden) {
				t.Errorf("status = %d %s, want %d", resp.status, resp.body, tc.status)
			}
		})
	}
}

func TestRequestID(t *testing.T) {
	r := newRig(t)
	resp := r.do(request{method: "GET", path: "/nowhere", header: http.Header{"X-Request-Id": {"abc-1"}}})
	if resp.header.Get("X-Request-Id") != "abc-1" || resp.problem.RequestID != "abc-1" {
		t.Errorf("request id: header %q, body %q, want abc-1", resp.header.Get("X-Request-Id"), resp.problem.RequestID)
	}
	r.do(request{method: "GET", path: "/v1/sandboxes", header: http.Header{"X-Request-Id": {"abc-2"}}})
	if got := r.edge.last(t, "sandbox.list").RequestID; got != "abc-2" {
		t.Errorf("the edge got request id %q, want abc-2", got)
	}
	for _, bad := range []string{"a b", `"`, "\u00e9", strings.Repeat("x", 129)} {
		resp := r.do(request{method: "GET", path: "/nowhere", header: http.Header{"X-Request-Id": {bad}}})
		if got := resp.header.Get("X-Request-Id"); got == bad || got == "" {
			t.Errorf("request id %q became %q", bad, got)
		}
	}
}

func TestUnknownRoutes(t *testing.T) {
	r := newRig(t)
	box := "/v1/sandboxes/" + ourBox
	for _, tc := range []struct {
		method, path string
		code         api.Code
		allow        string
	}{
		{"GET", "/", api.CodeNotFound, ""},
		{"GET", "/v2/sandboxes", api.CodeNotFound, ""},
		{"GET", "/v1//sandboxes", api.CodeNotFound, ""},
		{"GET", "/v1/../v1/sandboxes", api.CodeNotFound, ""},
		{"GET", box + "/", api.CodeNotFound, ""},
		{"GET", box + "/nothing", api.CodeNotFound, ""},
		{"PUT", "/v1/sandboxes", api.CodeMethodNotAllowed, "GET, HEAD, POST"},
		{"OPTIONS", "/v1/sandboxes", api.CodeMethodNotAllowed, "GET, HEAD, POST"},
		{"POST", box, api.CodeMethodNotAllowed, "DELETE, GET, HEAD, PATCH"},
		{"GET", box + "/exec", api.CodeMethodNotAllowed, "POST"},
		{"POST", box + "/fork", api.CodeNotImplemented, ""},
		{"GET", box + "/pause", api.CodeMethodNotAllowed, "POST"},
		{"PUT", box + "/network", api.CodeNotImplemented, ""},
		{"GET", "/v1/layers", api.CodeNotImplemented, ""},
		{"GET", "/v1/nodes/n1", api.CodeNotImplemented, ""},
		{"GET", "/v1/watch?cursor=1", api.CodeNotImplemented, ""},
		{"POST", "/v1/jobs/j/stop", api.CodeNotImplemented, ""},
	} {
		resp := r.do(request{method: tc.method, path: tc.path})
		if resp.problem.Code != tc.code || resp.status != tc.code.Status() || resp.header.Get("Allow") != tc.allow {
			t.Errorf("%s %s = %d %s Allow %q, want %s Allow %q", tc.method, tc.path, resp.status, resp.body, resp.header.Get("Allow"), tc.code, tc.allow)
		}
	}
	// What isn't there yet says what it is.
	if resp := r.do(request{method: "POST", path: box + "/fork"}); !strings.Contains(resp.problem.Detail, "forking") {
		t.Errorf("detail %q doesn't name what is missing", resp.problem.Detail)
	}
}

func TestHeadHasNoBody(t *testing.T) {
	r := newRig(t)
	if resp := r.do(request{method: "HEAD", path: "/v1/sandboxes"}); resp.status != 200 || resp.body != "" {
		t.Errorf("HEAD = %d %q", resp.status, resp.body)
	}
}

func TestProblemDocument(t *testing.T) {
	r := newRig(t)
	resp := r.do(request{method: "POST", path: "/v1/sandboxes", body: `{"image":"busybox","resources":{"cpus":1}}`})
	p := resp.problem
	if resp.status != 400 || p.HTTP != 400 || p.Type != "/problems/unknown_field" || p.Title != "unknown field" ||
		p.Field != "resources.cpus" || p.Hint != "did you mean cpu?" || p.RequestID == "" {
		t.Errorf("answer = %d %s", resp.status, resp.body)
	}
}

func TestMetricsShowRequests(t *testing.T) {
	r := newRig(t)
	r.do(request{method: "GET", path: "/v1/sandboxes/" + ourBox})
	r.do(request{method: "GET", path: "/v1/sandboxes/" + foreignBox})
	body := r.do(request{method: "GET", path: "/metrics"}).body
	for _, code := range []int{200, 404} {
		want := `dsec_http_requests_total{code="` + strconv.Itoa(code) + `",route="GET /v1/sandboxes/{id}"} 1`
		if !strings.Contains(body, want) {
			t.Errorf("metrics lack %s:\n%s", want, body)
		}
	}
	if strings.Contains(body, ourBox) {
		t.Error("metrics name a sandbox")
	}
}

func TestForeignIsNotFound(t *testing.T) {
	r := newRig(t)
	for _, id := range []string{foreignBox, "x", "Saaaabcdefghijklmnopqr", strings.Repeat("a", 32), "saaaabcdefghijklmn%00pqr", ".."} {
		resp := r.do(request{method: "GET", path: "/v1/sandboxes/" + id})
		if resp.status != 404 || resp.problem.Code != api.CodeNotFound {
			t.Errorf("GET %q = %d %s, want 404", id, resp.status, resp.body)
		}
	}
}
