package apiserver

import (
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/apiserver/docs"
)

// served lists the routes that this build serves. package openapi describes each of them; a test compares.
func (s *Server) served() map[string]handler {
	const sb = "/v1/sandboxes/{id}"
	site := docs.New(slices.Concat(slices.Collect(maps.Values(pending()))...))
	return map[string]handler{
		"GET /healthz": s.health,
		"GET /readyz":  s.ready,
		"GET /metrics": s.scrape,

		"POST /v1/sandboxes":     s.create,
		"GET /v1/sandboxes":      s.list,
		"GET " + sb:              s.get,
		"PATCH " + sb:            changer[api.Patch](s, "sandbox.patch", false),
		"DELETE " + sb:           s.stopSandbox,
		"POST " + sb + "/extend": changer[api.Extension](s, "sandbox.extend", false),
		"POST " + sb + "/pause":  changer[struct{}](s, "sandbox.pause", true),
		"POST " + sb + "/resume": changer[api.Resumption](s, "sandbox.resume", true),
		"GET " + sb + "/metrics": s.usage,
		"GET " + sb + "/events":  s.events,
		"GET " + sb + "/logs":    s.logs,

		"POST " + sb + "/exec":                   s.exec,
		"POST " + sb + "/processes":              s.startProcess,
		"GET " + sb + "/processes":               s.listProcesses,
		"GET " + sb + "/processes/{pid}":         s.getProcess,
		"DELETE " + sb + "/processes/{pid}":      s.killProcess,
		"GET " + sb + "/processes/{pid}/attach":  s.attach,
		"POST " + sb + "/processes/{pid}/stdin":  s.stdin,
		"POST " + sb + "/processes/{pid}/signal": s.signal,
		"POST " + sb + "/processes/{pid}/resize": s.resize,

		"POST " + sb + "/sessions":                 s.createSession,
		"GET " + sb + "/sessions":                  s.listSessions,
		"DELETE " + sb + "/sessions/{sid}":         s.closeSession,
		"POST " + sb + "/sessions/{sid}/interrupt": s.interruptSession,

		"POST /v1/images":              s.importImage,
		"GET /v1/images":               s.listImages,
		"GET /v1/images/{name}":        s.getImage,
		"DELETE /v1/images/{name}":     s.removeImage,
		"GET /v1/images/{name}/export": s.exportImage,
		"POST /v1/images/gc":           s.collectImages,
		"POST /v1/images/pull":         s.pullImage,
		"POST /v1/images/{name}/push":  s.pushImage,

		"GET " + sb + "/files":    s.getFile,
		"PUT " + sb + "/files":    s.putFile,
		"POST " + sb + "/files":   s.postFile,
		"DELETE " + sb + "/files": s.deleteFile,

		"GET /v1/aether":    s.upgrade,
		"GET /openapi.json": s.described(site.Document),
		"GET /docs":         s.described(site.Page),
	}
}

// described answers with what is said about the interface.
func (s *Server) described(of func() (docs.File, error)) handler {
	return func(c *call, r *http.Request) error {
		if _, err := query(r); err != nil {
			return err
		}
		f, err := of()
		if err != nil {
			return err
		}
		for _, h := range f.Headers {
			c.Header().Set(h[0], h[1])
		}
		c.send(http.StatusOK, f.Body)
		return nil
	}
}

// routes fills the mux. Everything the design names is here: what this build can't do yet answers 501 and says what is
// missing, so that a client can tell it from a mistyped path.
func (s *Server) routes() {
	s.handle("/", s.unmatched)
	for pattern, h := range s.served() {
		s.handle(pattern, h)
	}
	for pattern, h := range s.face.Routes() {
		s.handle(pattern, func(c *call, r *http.Request) error { return h(c, r, c.principal) })
	}
	for missing, patterns := range pending() {
		for _, p := range patterns {
			s.handle(p, func(*call, *http.Request) error {
				return api.Errorf(api.CodeNotImplemented, "this build has no %s yet", missing)
			})
		}
	}
}

// pending lists the routes of the design that this build can't serve, by what is missing.
func pending() map[string][]string {
	const sb = "/v1/sandboxes/{id}"
	return map[string][]string{
		"forking":         {"POST " + sb + "/fork"},
		"checkpoints":     {"POST " + sb + "/checkpoint"},
		"pack-diff":       {"POST " + sb + "/pack-diff"},
		"network policy":  {"GET " + sb + "/network", "PUT " + sb + "/network"},
		"stages":          {"POST " + sb + "/stage"},
		"jobs":            {"GET /v1/jobs", "GET /v1/jobs/{job}", "POST /v1/jobs/{job}/pause", "POST /v1/jobs/{job}/resume", "POST /v1/jobs/{job}/stop"},
		"layers":          {"/v1/layers", "/v1/layers/"},
		"snapshots":       {"/v1/snapshots", "/v1/snapshots/"},
		"function calls":  {"/v1/fn", "/v1/fn/"},
		"quota":           {"/v1/quota", "/v1/quota/"},
		"node management": {"/v1/nodes", "/v1/nodes/"},
		"cluster view":    {"/v1/cluster", "/v1/cluster/"},
		"watch stream":    {"GET /v1/watch"},
	}
}

// unmatched answers what no route takes: 405 where another method would be taken, else 404.
func (s *Server) unmatched(c *call, r *http.Request) error {
	c.route = ""
	var allowed []string
	for _, m := range []string{"DELETE", "GET", "HEAD", "PATCH", "POST", "PUT"} {
		probe := &http.Request{Method: m, URL: r.URL, Host: r.Host}
		if _, pattern := s.mux.Handler(probe); pattern != "/" {
			allowed = append(allowed, m)
		}
	}
	if len(allowed) == 0 {
		return api.Errorf(api.CodeNotFound, "there is nothing at %s", clip(r.URL.Path))
	}
	c.Header().Set("Allow", strings.Join(allowed, ", "))
	return api.Errorf(api.CodeMethodNotAllowed, "%s takes %s, not %s", clip(r.URL.Path), strings.Join(allowed, ", "), clip(r.Method))
}

// isCanonical tells whether a path is one that the mux takes as it is. The mux would answer any other with a redirect,
// which a client must not follow with its token.
func isCanonical(r *http.Request) bool {
	p := r.URL.EscapedPath()
	if !strings.HasPrefix(p, "/") {
		return false
	}
	clean := path.Clean(p)
	if len(p) > 1 && strings.HasSuffix(p, "/") {
		clean += "/"
	}
	return p == clean
}
