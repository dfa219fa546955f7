package apiserver

import (
	"encoding/json"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/dsec-io/dsec/api/openapi"
)

// TestEveryRouteIsDescribed holds the mux and the OpenAPI document to each other.
func TestEveryRouteIsDescribed(t *testing.T) {
	s := newRig(t).srv
	served := map[string]bool{}
	for pattern := range s.served() {
		served[pattern] = true
	}
	for pattern := range s.face.Routes() {
		served[pattern] = true
	}
	described, wildcards := map[string]bool{}, regexp.MustCompile(`\{\w+(\.\.\.)?\}`)
	for _, op := range openapi.Operations() {
		described[op.Method+" "+op.Path] = true
		if strings.HasPrefix(op.Path, routePorts) {
			continue // it isn't in the mux
		}
		path := wildcards.ReplaceAllString(op.Path, "x")
		req, err := http.NewRequestWithContext(t.Context(), op.Method, "http://localhost"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, pattern := s.mux.Handler(req)
		if !served[pattern] {
			t.Errorf("%s: %s %s is described and served by %q only", op.ID, op.Method, op.Path, pattern)
		}
		if need, _ := s.face.Need(pattern); !op.Public && need.Scope() != op.Scope() {
			t.Errorf("%s: it needs the scope %q and is described with %q", op.ID, need.Scope(), op.Scope())
		}
	}
	for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} {
		if !described[method+" "+routePorts+"{path}"] {
			t.Errorf("%s %s is served and not described", method, routePorts)
		}
	}
	for pattern := range served {
		if !described[pattern] {
			t.Errorf("%s is served and not described: add it to api/openapi and run go generate ./api/openapi", pattern)
		}
	}
}

func TestDescription(t *testing.T) {
	r := newRig(t)
	doc := r.do(request{method: "GET", path: "/openapi.json", anonymous: true})
	if doc.status != 200 || doc.header.Get("Content-Type") != "application/json" {
		t.Fatalf("GET /openapi.json = %d %v", doc.status, doc.header)
	}
	var v struct {
		OpenAPI string   `json:"openapi"`
		Pending []string `json:"x-not-implemented"`
	}
	if err := json.Unmarshal([]byte(doc.body), &v); err != nil || v.OpenAPI != "3.1.0" || len(v.Pending) == 0 {
		t.Errorf("the document says %+v, %v", v, err)
	}
	page := r.do(request{method: "GET", path: "/docs", anonymous: true})
	policy := page.header.Get("Content-Security-Policy")
	if page.status != 200 || !strings.HasPrefix(page.header.Get("Content-Type"), "text/html") || !strings.HasPrefix(policy, "default-src 'none'; ") || strings.Contains(policy, "unsafe") {
		t.Errorf("GET /docs = %d %v", page.status, page.header)
	}
	for _, path := range []string{"/docs", "/openapi.json"} {
		if resp := r.do(request{method: "GET", path: path, anonymous: true, header: http.Header{"Host": {"evil.example"}}}); resp.status != 403 {
			t.Errorf("GET %s under a foreign name = %d", path, resp.status)
		}
		if resp := r.do(request{method: "GET", path: path + "?x=1", anonymous: true}); resp.status != 400 {
			t.Errorf("GET %s?x=1 = %d", path, resp.status)
		}
	}
}
