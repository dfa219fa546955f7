package iamface

import (
	"slices"
	"strings"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/iam"
	"github.com/dsec-io/dsec/internal/iam/audit"
)

// anybody is the scope of what every valid token may do.
const anybody api.Scope = "-"

// routeScopes says which scope each route needs, by the mux's pattern. What isn't here is refused to everybody.
func routeScopes() map[string]api.Scope {
	const sb = "/v1/sandboxes/{id}"
	return map[string]api.Scope{
		"/": anybody, // what no route takes: it answers 404 or 405

		"GET /healthz": anybody, "GET /readyz": anybody, "GET /metrics": api.ScopeNodeRead,
		"GET /openapi.json": anybody, "GET /docs": anybody,
		"GET /v1/aether": anybody, // each stream needs its method's

		"POST /v1/sandboxes": api.ScopeSandboxWrite, "GET /v1/sandboxes": api.ScopeSandboxRead,
		"GET " + sb: api.ScopeSandboxRead, "PATCH " + sb: api.ScopeSandboxWrite, "DELETE " + sb: api.ScopeSandboxWrite,
		"GET " + sb + "/metrics": api.ScopeSandboxRead, "GET " + sb + "/events": api.ScopeSandboxRead, "GET " + sb + "/logs": api.ScopeSandboxRead,
		"GET " + sb + "/audit": api.ScopeAuditRead,

		"POST " + sb + "/pause": api.ScopeSandboxWrite, "POST " + sb + "/resume": api.ScopeSandboxWrite,
		"POST " + sb + "/fork": api.ScopeSandboxWrite, "POST " + sb + "/checkpoint": api.ScopeSandboxWrite,
		"POST " + sb + "/pack-diff": api.ScopeSandboxWrite, "POST " + sb + "/extend": api.ScopeSandboxWrite,
		"GET " + sb + "/network": api.ScopeSandboxRead, "PUT " + sb + "/network": api.ScopeSandboxWrite, "POST " + sb + "/stage": api.ScopeSandboxWrite,

		"POST " + sb + "/exec": api.ScopeSandboxExec, "POST " + sb + "/processes": api.ScopeSandboxExec,
		"GET " + sb + "/processes": api.ScopeSandboxRead, "GET " + sb + "/processes/{pid}": api.ScopeSandboxRead,
		"DELETE " + sb + "/processes/{pid}": api.ScopeSandboxExec, "GET " + sb + "/processes/{pid}/attach": api.ScopeSandboxExec,
		"POST " + sb + "/processes/{pid}/stdin": api.ScopeSandboxExec, "POST " + sb + "/processes/{pid}/signal": api.ScopeSandboxExec,
		"POST " + sb + "/processes/{pid}/resize": api.ScopeSandboxExec,
		"POST " + sb + "/sessions":               api.ScopeSandboxExec, "GET " + sb + "/sessions": api.ScopeSandboxRead,
		"DELETE " + sb + "/sessions/{sid}": api.ScopeSandboxExec, "POST " + sb + "/sessions/{sid}/interrupt": api.ScopeSandboxExec,

		"GET " + sb + "/files": api.ScopeFilesRead, "PUT " + sb + "/files": api.ScopeFilesWrite,
		"POST " + sb + "/files": api.ScopeFilesWrite, "DELETE " + sb + "/files": api.ScopeFilesWrite,
		sb + "/ports": api.ScopePorts, sb + "/ports/": api.ScopePorts,
		sb + "/ports/{port}": api.ScopePorts, sb + "/ports/{port}/": api.ScopePorts, sb + "/ports/{port}/{rest...}": api.ScopePorts,

		"GET /v1/images": api.ScopeImageRead, "GET /v1/images/{name}": api.ScopeImageRead, "GET /v1/images/{name}/export": api.ScopeImageRead,
		"POST /v1/images": api.ScopeImageWrite, "DELETE /v1/images/{name}": api.ScopeImageWrite, "POST /v1/images/gc": api.ScopeImageWrite,
		"POST /v1/images/pull": api.ScopeImageWrite, "POST /v1/images/{name}/push": api.ScopeImageWrite, // they make the node talk to other hosts
		"/v1/layers": api.ScopeImageRead, "/v1/layers/": api.ScopeImageWrite, "/v1/snapshots": api.ScopeImageRead, "/v1/snapshots/": api.ScopeImageWrite,

		"GET /v1/projects": api.ScopeProjectRead, "POST /v1/projects": api.ScopeProjectAdmin,
		"GET /v1/projects/{project}": api.ScopeProjectRead, "DELETE /v1/projects/{project}": api.ScopeProjectAdmin,
		"GET /v1/tokens": api.ScopeTokenAdmin, "POST /v1/tokens": api.ScopeTokenAdmin, "GET /v1/tokens/self": anybody,
		"GET /v1/tokens/{id}": api.ScopeTokenAdmin, "DELETE /v1/tokens/{id}": api.ScopeTokenAdmin,
		"GET /v1/audit": api.ScopeAuditRead,

		"GET /v1/jobs": api.ScopeSandboxRead, "GET /v1/jobs/{job}": api.ScopeSandboxRead, "POST /v1/jobs/{job}/pause": api.ScopeSandboxWrite,
		"POST /v1/jobs/{job}/resume": api.ScopeSandboxWrite, "POST /v1/jobs/{job}/stop": api.ScopeSandboxWrite,
		"/v1/fn": api.ScopeSandboxExec, "/v1/fn/": api.ScopeSandboxExec, "GET /v1/watch": api.ScopeSandboxRead,
		"/v1/quota": api.ScopeProjectRead, "/v1/quota/": api.ScopeProjectAdmin,
		"/v1/nodes": api.ScopeNodeRead, "/v1/nodes/": api.ScopeNodeAdmin, "/v1/cluster": api.ScopeNodeRead, "/v1/cluster/": api.ScopeNodeRead,
	}
}

// methodScopes says which scope each method of the aether protocol needs.
func methodScopes() map[string]api.Scope {
	return map[string]api.Scope{
		"exec": api.ScopeSandboxExec, "attach": api.ScopeSandboxExec, "signal": api.ScopeSandboxExec, "resize": api.ScopeSandboxExec,
		"forget": api.ScopeSandboxExec, "processes": api.ScopeSandboxRead, "process": api.ScopeSandboxRead,
		"session.create": api.ScopeSandboxExec, "session.interrupt": api.ScopeSandboxExec, "session.close": api.ScopeSandboxExec,
		"session.list": api.ScopeSandboxRead,
		"file.read":    api.ScopeFilesRead, "file.list": api.ScopeFilesRead, "file.tar": api.ScopeFilesRead, "file.watch": api.ScopeFilesRead,
		"file.write": api.ScopeFilesWrite, "file.untar": api.ScopeFilesWrite,
		"file.op":        api.ScopeFilesWrite, // also stat, which who may only read has in file.list
		"port.dial":      api.ScopePorts,
		"sandbox.create": api.ScopeSandboxWrite, "sandbox.patch": api.ScopeSandboxWrite, "sandbox.stop": api.ScopeSandboxWrite,
		"sandbox.pause": api.ScopeSandboxWrite, "sandbox.resume": api.ScopeSandboxWrite, "sandbox.extend": api.ScopeSandboxWrite,
		"sandbox.get": api.ScopeSandboxRead, "sandbox.list": api.ScopeSandboxRead, "sandbox.events": api.ScopeSandboxRead,
		"sandbox.logs": api.ScopeSandboxRead, "sandbox.metrics": api.ScopeSandboxRead,
	}
}

// Need is what a route or method demands, and how it is recorded.
type Need struct {
	Operation string // the pattern or method
	scope     api.Scope
	set       iam.Set
	changes   bool // it is recorded when it was allowed, too
	kind      audit.Kind
}

func needOf(operation string, scope api.Scope) Need {
	verb, _, _ := strings.Cut(operation, " ")
	n := Need{Operation: operation, scope: scope, set: iam.SetOf(scope), kind: audit.Use}
	reads := []api.Scope{
		anybody, "", api.ScopeSandboxRead, api.ScopeFilesRead, api.ScopeImageRead, api.ScopeProjectRead, api.ScopeAuditRead, api.ScopeNodeRead,
	}
	switch scope {
	case api.ScopeTokenAdmin:
		n.changes, n.kind = verb != "GET", audit.Control
	case api.ScopeProjectAdmin, api.ScopeImageWrite, api.ScopeNodeAdmin:
		n.changes, n.kind = true, audit.Control
	default:
		n.changes = !slices.Contains(reads, scope)
	}
	return n
}

// Scope is the scope that is needed; "" where any valid token will do.
func (n Need) Scope() api.Scope {
	if n.scope == anybody {
		return ""
	}
	return n.scope
}

// Allow decides whether a principal may do what needs n. The error is an [*api.Error].
func (n Need) Allow(p iam.Principal) error {
	if n.scope == anybody && p.Token != "" || p.Can.Holds(n.set) {
		return nil
	}
	if n.set == 0 {
		return api.Errorf(api.CodeForbidden, "nobody may do this: no scope is known for it")
	}
	return api.FieldError(api.CodeForbidden, "", "`dsec token whoami` tells what it may do", "this token doesn't have %s in project %q", n.scope, p.Project)
}
