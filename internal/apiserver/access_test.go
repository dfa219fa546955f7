package apiserver

import (
	"maps"
	"net/http"
	"slices"
	"testing"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/apiserver/iamface"
	"github.com/dsec-io/dsec/internal/iam"
)

// patterns are all routes that the mux and its neighbours serve.
func patterns() []string {
	var s Server
	s.face = iamface.New(iamface.Config{})
	all := []string{"/", routePorts}
	all = slices.AppendSeq(all, maps.Keys(s.served()))
	all = slices.AppendSeq(all, maps.Keys(s.face.Routes()))
	for _, some := range pending() {
		all = append(all, some...)
	}
	return all
}

// TestEveryRouteNeedsSomething: a route that the table of scopes doesn't name would be refused to everybody. Give it a
// line in package iamface.
func TestEveryRouteNeedsSomething(t *testing.T) {
	face := iamface.New(iamface.Config{})
	for _, pattern := range patterns() {
		if _, ok := face.Need(pattern); !ok {
			t.Errorf("route %q has no scope", pattern)
		}
	}
}

// TestUnknownRouteIsRefused: forgetting the table's line gives nothing away.
func TestUnknownRouteIsRefused(t *testing.T) {
	need, ok := iamface.New(iamface.Config{}).Need("GET /v1/new")
	everything := iam.Principal{Token: "t", Project: "p", Can: iam.SetOf(api.Scopes()...)}
	if err := need.Allow(everything); ok || !api.IsCode(err, api.CodeForbidden) {
		t.Errorf("Allow() = %v", err)
	}
}

// TestNobodyMayDoNothing: without a principal there is no route behind the mux, whichever it is.
func TestNobodyMayDoNothing(t *testing.T) {
	face := iamface.New(iamface.Config{})
	for _, pattern := range patterns() {
		need, _ := face.Need(pattern)
		if err := need.Allow(iam.Principal{}); !api.IsCode(err, api.CodeForbidden) {
			t.Errorf("%s: %v", pattern, err)
		}
	}
	r := newRig(t)
	for _, q := range []request{
		{method: "GET", path: "/v1/tokens/self", anonymous: true},
		{method: "GET", path: "/v1/sandboxes", header: http.Header{"Authorization": {"Bearer dsec_" + "a"}}},
		{method: "GET", path: "/v1/sandboxes", header: http.Header{"Authorization": {"Basic eA=="}}},
	} {
		if resp := r.do(q); resp.status != http.StatusUnauthorized || resp.problem.Code != api.CodeUnauthenticated {
			t.Errorf("%s %v = %d %s", q.path, q.header, resp.status, resp.body)
		}
	}
}

// TestProjectHeader: it names a project by the rules of names, once; one that isn't there is not found.
func TestProjectHeader(t *testing.T) {
	r := newRig(t)
	for name, tc := range map[string]struct {
		given []string
		code  api.Code
	}{
		"upper-case": {[]string{"Default"}, api.CodeInvalid},
		"empty":      {[]string{""}, api.CodeInvalid},
		"twice":      {[]string{"default", "default"}, api.CodeInvalid},
		"unknown":    {[]string{"elsewhere"}, api.CodeNotFound},
		"own":        {[]string{"default"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			resp := r.do(request{method: "GET", path: "/v1/tokens/self", header: http.Header{api.HeaderProject: tc.given}})
			if resp.problem.Code != tc.code {
				t.Errorf("answer = %d %s", resp.status, resp.body)
			}
		})
	}
}
