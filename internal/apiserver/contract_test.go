package apiserver

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/apiserver/edgelink"
)

// templates are all routes that do something, with a place for an id of every kind.
func templates() []string {
	const sb = "/v1/sandboxes/{id}"
	return []string{
		"POST /v1/sandboxes", "GET /v1/sandboxes", "GET " + sb, "PATCH " + sb, "DELETE " + sb,
		"GET " + sb + "/metrics", "GET " + sb + "/events", "GET " + sb + "/logs", "POST " + sb + "/exec",
		"POST " + sb + "/processes", "GET " + sb + "/processes", "GET " + sb + "/processes/{pid}", "DELETE " + sb + "/processes/{pid}",
		"GET " + sb + "/processes/{pid}/attach", "POST " + sb + "/processes/{pid}/stdin", "POST " + sb + "/processes/{pid}/signal",
		"POST " + sb + "/processes/{pid}/resize", "POST " + sb + "/sessions", "GET " + sb + "/sessions",
		"DELETE " + sb + "/sessions/{sid}", "POST " + sb + "/sessions/{sid}/interrupt", "GET /v1/aether", "GET /healthz", "GET /readyz",
		"POST " + sb + "/pause", "POST " + sb + "/resume", "POST " + sb + "/extend", "GET " + sb + "/network", "GET /v1/jobs", "GET /v1/quota",
		"POST /v1/images", "GET /v1/images", "GET /v1/images/{id}", "DELETE /v1/images/{id}", "GET /v1/images/{id}/export", "POST /v1/images/gc",
	}
}

// TestNoInputIsOurFault: whatever a client sends, on whichever route, is answered by a status that isn't 500, as JSON
// that says what is wrong where something is.
func TestNoInputIsOurFault(t *testing.T) {
	r := newRig(t)
	id := rapid.SampledFrom([]string{ourBox, ourBox, foreignBox, "x", "%00", "%2e%2e", "a%2Fb", strings.Repeat("z", 300), "%ff", "p1", "s1"})
	body := rapid.OneOf(
		rapid.SampledFrom([]string{
			"", "{}", "null", "[]", `{"argv":["exit"]}`, `{"argv":[]}`, `{"shell":"x"}`, `{"image":"busybox"}`, `{"signal":"SIGKILL"}`,
			`{"rows":1,"cols":1}`, `{"rows":99999999}`, `{"env":{"=":""}}`, `{"env":null,"labels":{}}`, `{"argv":["exit"],"timeout_ms":-1}`,
			`{"argv":["exit"],"tty":{}}`, `{"resources":{"cpu":-0.0}}`, `{"cwd":"/","busy":true}`, "\xff", `{"argv":["\u0000"]}`,
		}),
		rapid.String(),
		rapid.StringMatching(`\{("(argv|image|env|rows|stdin)":(1|-1|1e9|"x"|\[\]|\{\}|null|true|\["a"\]),?){1,3}\}`),
	)
	queries := rapid.SampledFrom([]string{"", "", "?follow=1&since=0", "?since=-1", "?since=99999999999999999999", "?limit=0", "?state=odd", "?label=x", "?label=a%3Db", "?stream=maybe", "?close=1", "?x=%zz", "?stdout_offset=5", "?cursor=%00", "?name=x", "?name=x&replace", "?name=x&squash=maybe", "?name=%00", "?force", "?all=1"})
	rapid.Check(t, func(rt *rapid.T) {
		method, path, _ := strings.Cut(rapid.SampledFrom(templates()).Draw(rt, "route"), " ")
		for _, name := range []string{"{id}", "{pid}", "{sid}"} {
			path = strings.Replace(path, name, id.Draw(rt, name), 1)
		}
		if rapid.IntRange(0, 9).Draw(rt, "odd method") == 0 {
			method = rapid.SampledFrom([]string{"PUT", "POST", "GET", "DELETE", "OPTIONS", "TRACE", "BREW"}).Draw(rt, "method")
		}
		q := request{method: method, path: path + queries.Draw(rt, "query"), body: body.Draw(rt, "body"), header: http.Header{}}
		for name, values := range map[string][]string{
			"Content-Type":    {"", "", "application/json", "application/json; charset=utf-8", "text/plain", "application/merge-patch+json", ";"},
			"Accept":          {"", "application/x-ndjson", "text/event-stream", "*/*", ","},
			"Last-Event-Id":   {"", "", "3", "x", "-1"},
			"Idempotency-Key": {"", "", "", "k"},
			"Upgrade":         {"", "", "", "websocket", "h2c"},
		} {
			if v := rapid.SampledFrom(values).Draw(rt, name); v != "" {
				q.header.Set(name, v)
			}
		}
		resp, err := r.send(t.Context(), q)
		if err != nil {
			rt.Fatalf("%s %s: %v", q.method, q.path, err)
		}
		switch {
		case resp.status == 500:
			rt.Fatalf("%s %s %q = 500 %s", q.method, q.path, q.body, resp.body)
		case resp.status >= 400 && q.method != "HEAD":
			p := resp.problem
			if p.Code == "" || p.Detail == "" || p.HTTP != resp.status || p.Code.Status() != resp.status || p.RequestID != resp.header.Get("X-Request-Id") {
				rt.Fatalf("%s %s %q = %d %v %s isn't a problem document", q.method, q.path, q.body, resp.status, resp.header, resp.body)
			}
		}
	})
}

func TestErrorMapping(t *testing.T) {
	typed := api.FieldError(api.CodeConflict, "id", "another", "taken")
	for name, tc := range map[string]struct {
		err  error
		want api.Code
	}{
		"typed":          {typed, api.CodeConflict},
		"wrapped":        {errors.Join(errors.New("x"), typed), api.CodeConflict},
		"connection":     {aether.ErrConnLost, api.CodeUnavailable},
		"reset":          {aether.ErrReset, api.CodeUnavailable},
		"anything":       {errors.New("x"), api.CodeInternal},
		"unreachable":    {edgelink.Unreachable(errors.New("x"), 5), api.CodeUnavailable},
		"repeatable":     {repeatable(aether.ErrConnLost), api.CodeUnavailable},
		"not-repeatable": {repeatable(typed), api.CodeConflict},
	} {
		t.Run(name, func(t *testing.T) {
			if got := asProblem(tc.err); got.Code != tc.want {
				t.Errorf("asProblem(%v) = %s, want %s", tc.err, got.Code, tc.want)
			}
		})
	}
	if e := asProblem(aether.ErrConnLost); e.RetryMS != 0 {
		t.Error("a lost answer says that a repeat is safe")
	}
	if e := asProblem(repeatable(aether.ErrConnLost)); e.RetryMS == 0 {
		t.Error("a lost answer to a read doesn't say that a repeat is safe")
	}
}

// TestEveryCodeIsAProblem: each code of the API has a status of its own class and a document that names it.
func TestEveryCodeIsAProblem(t *testing.T) {
	r := newRig(t)
	for _, code := range []api.Code{
		api.CodeInvalid, api.CodeNotFound, api.CodeConflict, api.CodeFrozen, api.CodeImpossible, api.CodeQuota, api.CodeSandboxDied,
		api.CodeNotStarted, api.CodeNoCapacity, api.CodeTimeout, api.CodeDiskFull, api.CodeWorkdirNotFound, api.CodeInternal,
	} {
		m, err := json.Marshal(map[string]any{"argv": []string{"fail", string(code)}})
		if err != nil {
			t.Fatal(err)
		}
		resp := r.do(request{method: "POST", path: box + "/exec", body: string(m)})
		if resp.status != code.Status() || resp.problem.Code != code || resp.problem.RetryMS != 1500 || resp.header.Get("Retry-After") != "2" {
			t.Errorf("%s = %d %v %s", code, resp.status, resp.header, resp.body)
		}
	}
}

func TestListPassesItsQuery(t *testing.T) {
	r := newRig(t)
	r.do(request{method: "GET", path: "/v1/sandboxes?label=a%3Db&label=c%3D&state=running&limit=7&cursor=xyz"})
	want := `{"project":"default","labels":{"a":"b","c":""},"state":"running","limit":7,"cursor":"xyz"}`
	if got := string(r.edge.last(t, "sandbox.list").Body); got != want {
		t.Errorf("the edge was asked %s, want %s", got, want)
	}
}

func TestIdempotencyKeyIsRefused(t *testing.T) {
	r := newRig(t)
	resp := r.do(request{method: "POST", path: "/v1/images?name=x", body: `x`, header: http.Header{"Idempotency-Key": {"k"}}})
	if resp.problem.Code != api.CodeUnsupportedConstraint || resp.problem.Field != "Idempotency-Key" {
		t.Errorf("answer = %d %s", resp.status, resp.body)
	}
}

func FuzzBody(f *testing.F) {
	r := newRig(f)
	f.Add("POST", "/v1/sandboxes", `{"image":"busybox"}`)
	f.Add("POST", box+"/exec", `{"argv":["exit"]}`)
	f.Add("PATCH", box, `{"env":{}}`)
	f.Fuzz(func(t *testing.T, method, path, body string) {
		if !strings.HasPrefix(path, "/") || method == "" {
			return
		}
		resp, err := r.send(t.Context(), request{method: method, path: path, body: body})
		if err == nil && resp.status == 500 {
			t.Fatalf("%s %s %q = 500 %s", method, path, body, resp.body)
		}
	})
}
