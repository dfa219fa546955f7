package openapi

import (
	"strings"

	"github.com/dsec-io/dsec/api"
)

func iamOperations() []Operation {
	const projects, project = "/v1/projects", "/v1/projects/{project}"
	const all, one = "/v1/tokens", "/v1/tokens/{id}" // of tokens
	limit := Param{Name: "limit", In: "query", Description: "at most so many; 100 unless said", Schema: &Schema{Type: "integer", Minimum: new(1.0), Maximum: new(1000.0)}}
	cursor := text("cursor", "of the answer before: the next page")
	writes := []api.Code{api.CodeConflict, api.CodeExists, api.CodeQuota, api.CodeNotFound, api.CodeDiskFull}
	return []Operation{
		{
			ID: "listProjects", Method: "GET", Path: projects, Tag: "access", Summary: "List projects", Description: "Those that the token may act in, by name.",
			Params: []Param{limit, cursor}, Answers: answers(200, api.ProjectList{}, ""), Codes: everywhere(),
		},
		{
			ID: "createProject", Method: "POST", Path: projects, Tag: "access", Summary: "Make a project",
			Body: jsonOf(api.ProjectSpec{}), Answers: []Answer{{Status: 201, Headers: []string{"Location"}, Content: *jsonOf(api.Project{})}},
			Codes: codes(everywhere(), withBody(), writes),
		},
		{
			ID: "getProject", Method: "GET", Path: project, Tag: "access", Summary: "Look at a project",
			Answers: answers(200, api.Project{}, ""), Codes: codes(everywhere(), ofSandbox()),
		},
		{
			ID: "deleteProject", Method: "DELETE", Path: project, Tag: "access", Summary: "Delete a project",
			Description: "Its tokens are revoked. A conflict while sandboxes of it live; the default project stays.",
			Answers:     answers(200, api.ProjectDeleted{}, ""), Codes: codes(everywhere(), writes),
		},
		{
			ID: "listTokens", Method: "GET", Path: all, Tag: "access", Summary: "List a project's tokens", Description: "Never their secrets.",
			Params:  []Param{limit, cursor, text("prefix", "only those whose id, or secret, begins so"), flag("all", "of every project")},
			Answers: answers(200, api.TokenList{}, ""), Codes: everywhere(),
		},
		{
			ID: "createToken", Method: "POST", Path: all, Tag: "access", Summary: "Make a token",
			Description: "It can do nothing that the token which makes it can't. The secret is in this answer and never told again.",
			Body:        jsonOf(api.TokenSpec{}), Answers: []Answer{{Status: 201, Headers: []string{"Location"}, Content: *jsonOf(api.NewToken{})}},
			Codes: codes(everywhere(), withBody(), writes),
		},
		{
			ID: "whoami", Method: "GET", Path: all + "/self", Tag: "access", Summary: "The request's own token, and what it may do",
			Answers: answers(200, api.Identity{}, ""), Codes: everywhere(),
		},
		{
			ID: "getToken", Method: "GET", Path: one, Tag: "access", Summary: "Look at a token", Description: "Of the project; of any where the request's own token administers all of them.",
			Answers: answers(200, api.Token{}, ""), Codes: codes(everywhere(), ofSandbox(), []api.Code{api.CodeConflict}),
		},
		{
			ID: "revokeToken", Method: "DELETE", Path: one, Tag: "access", Summary: "Revoke a token",
			Description: "At once: what it has open is ended, too.", Answers: answers(200, api.Token{}, "what was revoked"), Codes: codes(everywhere(), writes),
		},
		{
			ID: "readAudit", Method: "GET", Path: "/v1/audit", Tag: "access", Summary: "Who asked for what, and what was decided",
			Description: "The log of the project, newest first: what changes something, and every refusal.",
			Params: []Param{
				limit, cursor, flag("all", "of every project"), text("token", "only of this token, by its id"), text("action", "only of this scope"),
				text("resource", "only of this resource: `sandbox/ID`, `image/NAME`, `token/ID`, `project/NAME`"),
				{Name: "decision", In: "query", Description: "only of this decision", Schema: &Schema{Type: "string", Enum: words("allow", "deny")}},
				text("result", "only of this result: `ok`, or a code"),
				{Name: "since", In: "query", Description: "from this time", Schema: &Schema{Type: "string", Format: "date-time"}},
				{Name: "until", In: "query", Description: "to this time", Schema: &Schema{Type: "string", Format: "date-time"}},
			},
			Answers: answers(200, api.AuditList{}, ""), Codes: codes(everywhere(), ofSandbox()),
		},
		{
			ID: "readSandboxAudit", Method: "GET", Path: sandboxPath + "/audit", Tag: "access", Summary: "What was done to a sandbox, by whom",
			Params: []Param{limit, cursor}, Answers: answers(200, api.AuditList{}, ""), Codes: codes(everywhere(), ofSandbox()),
		},
	}
}

// Scope is what a token needs for the operation; "" where any token will do, or none is needed.
func (o *Operation) Scope() api.Scope {
	reads := o.Method == "GET" || o.Method == "HEAD"
	pick := func(read, write api.Scope) api.Scope {
		if reads {
			return read
		}
		return write
	}
	switch o.Tag {
	case "sandboxes", "observing":
		return pick(api.ScopeSandboxRead, api.ScopeSandboxWrite)
	case "commands", "processes", "sessions":
		if o.ID == "attachProcess" {
			return api.ScopeSandboxExec
		}
		return pick(api.ScopeSandboxRead, api.ScopeSandboxExec)
	case "files":
		return pick(api.ScopeFilesRead, api.ScopeFilesWrite)
	case "ports":
		return api.ScopePorts
	case "images":
		return pick(api.ScopeImageRead, api.ScopeImageWrite)
	}
	switch {
	case strings.HasSuffix(o.Path, "/audit"):
		return api.ScopeAuditRead
	case strings.HasPrefix(o.Path, "/v1/projects"):
		return pick(api.ScopeProjectRead, api.ScopeProjectAdmin)
	case strings.HasPrefix(o.Path, "/v1/tokens") && o.ID != "whoami":
		return api.ScopeTokenAdmin
	}
	return ""
}
