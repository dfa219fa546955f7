package openapi

import (
	"strings"

	"github.com/dsec-io/dsec/api"
)

// Operation is what one method does on one path.
type Operation struct {
	ID          string // stable: generated clients name their functions by it
	Method      string
	Path        string // with {parameters}
	Tag         string
	Summary     string
	Description string // Markdown
	Params      []Param
	Body        *Content // nil: none is taken
	Answers     []Answer // those of success
	Codes       []api.Code
	Public      bool // no token is needed
}

// Param is a parameter in the query or a header. Those of the path are found in it.
type Param struct {
	Name        string
	In          string // "query" or "header"
	Description string
	Schema      *Schema
	Required    bool
	Repeats     bool // may be given several times
}

// Content is a body, in one or several media types.
type Content struct {
	Description string
	Optional    bool // of a request: it may be left out
	Media       []Media
}

// Media is a body of one media type. Of is a value of its Go type, nil where it has none; Lines says that it comes as
// such documents, one a line.
type Media struct {
	Type  string
	Of    any
	Lines bool
}

// Answer is one status of success.
type Answer struct {
	Status  int      // 0: any
	Headers []string // what it may carry beside the usual; see headerWords
	Content
}

// The media types of the interface.
const (
	mediaJSON    = "application/json"
	mediaLines   = "application/x-ndjson"
	mediaText    = "text/plain"
	mediaBytes   = "application/octet-stream"
	mediaTar     = "application/x-tar"
	mediaSSE     = "text/event-stream"
	mediaProblem = "application/problem+json"
	mediaHTML    = "text/html"
)

func jsonOf(v any) *Content { return &Content{Media: []Media{{Type: mediaJSON, Of: v}}} }

// answers is a JSON answer of success.
func answers(status int, v any, says string) []Answer {
	a := Answer{Status: status, Content: *jsonOf(v)}
	a.Description = says
	return []Answer{a}
}

func nothing(says string) []Answer {
	return []Answer{{Status: 204, Content: Content{Description: says}}}
}

func flag(name, says string) Param {
	return Param{Name: name, In: "query", Description: says, Schema: &Schema{Type: "boolean", Default: false}}
}

func number(name, says string, low float64) Param {
	return Param{Name: name, In: "query", Description: says, Schema: &Schema{Type: "integer", Format: "int64", Minimum: &low}}
}

func text(name, says string) Param {
	return Param{Name: name, In: "query", Description: says, Schema: &Schema{Type: "string"}}
}

func header(name, says string) Param {
	return Param{Name: name, In: "header", Description: says, Schema: &Schema{Type: "string"}}
}

// needed is a parameter that must be given.
func needed(p Param) Param {
	p.Required = true
	return p
}

// codes joins sets of codes.
func codes(sets ...[]api.Code) []api.Code {
	var all []api.Code
	for _, s := range sets {
		all = append(all, s...)
	}
	return all
}

// Sets of codes that operations have in common.

// everywhere may be met on every route that takes a token.
func everywhere() []api.Code {
	return []api.Code{
		api.CodeInvalid, api.CodeUnknownField, api.CodeUnauthenticated, api.CodeForbidden, api.CodeTooMany, api.CodeInternal, api.CodeUnavailable,
		api.CodeTimeout, api.CodeNotFound, // of the project that the request is to act in
	}
}

// withBody may be met where a JSON body is taken.
func withBody() []api.Code { return []api.Code{api.CodeTooLarge, api.CodeUnsupportedMedia} }

// ofSandbox may be met where a sandbox has to be there.
func ofSandbox() []api.Code { return []api.Code{api.CodeNotFound} }

// inSandbox may be met where a sandbox has to be running, or is woken.
func inSandbox() []api.Code {
	return []api.Code{api.CodeNotFound, api.CodeWrongState, api.CodeFrozen, api.CodeResumeFailed, api.CodeSandboxDied, api.CodeNotStarted}
}

// ofStart may be met where a command is started.
func ofStart() []api.Code {
	return []api.Code{
		api.CodeCommandNotFound, api.CodeCommandNotExecutable, api.CodeWorkdirNotFound, api.CodeNoShell, api.CodeNoSuchUser,
		api.CodeNoSuchSession, api.CodeConflict, api.CodeUnsupportedConstraint, api.CodeQuota, api.CodeDiskFull,
	}
}

// ofFiles may be met where a file is named.
func ofFiles() []api.Code {
	return []api.Code{
		api.CodeFileNotFound, api.CodePermissionDenied, api.CodeNotDirectory, api.CodeLinkLoop, api.CodeNoSuchUser, api.CodeUnsupportedConstraint,
		api.CodeNotImplemented,
	}
}

// takesKey tells whether a repeated request with the same Idempotency-Key runs once.
func (o *Operation) takesKey() bool {
	switch o.ID {
	case "writeStdin", "importImage": // their bodies are passed on as they come
		return false
	}
	return o.Method == "POST" && (strings.HasPrefix(o.Path, "/v1/sandboxes") && o.Tag != "ports" || o.ID == "collectImages")
}

// withKey adds what the key brings to an operation.
func (o *Operation) withKey() {
	switch {
	case o.takesKey():
		key := header("Idempotency-Key", "1 to 255 printable ASCII characters: for 24 hours a repeat with the same key and body isn't carried out again, and answers what the first did, with `Idempotency-Replayed: true`")
		key.Schema.Pattern, key.Schema.MaxLength = "^[!-~]+$", 255
		o.Params = append(o.Params, key)
		o.Codes = append(o.Codes, api.CodeKeyReused, api.CodeResultGone, api.CodeTooMany, api.CodeUnavailable, api.CodeQuota, api.CodeDiskFull)
		for i := range o.Answers {
			o.Answers[i].Headers = append(o.Answers[i].Headers, "Idempotency-Replayed")
		}
	case o.Method == "POST":
		o.Codes = append(o.Codes, api.CodeUnsupportedConstraint) // the key is refused
	}
}

// pathParams are the names in a path's braces.
func pathParams(path string) []string {
	var names []string
	for part := range strings.SplitSeq(path, "{") {
		if name, _, ok := strings.Cut(part, "}"); ok {
			names = append(names, name)
		}
	}
	return names
}

// pathWords describe the parameters of paths.
func pathWords() map[string]Param {
	return map[string]Param{
		"id":      {Description: "a sandbox's id", Schema: &Schema{Type: "string", Pattern: sandboxPattern}},
		"pid":     {Description: "a process's id, as its start answered it; not its number inside the sandbox", Schema: &Schema{Type: "string", MaxLength: 128}},
		"sid":     {Description: "a session's id", Schema: &Schema{Type: "string", Pattern: `^[A-Za-z0-9_-]{1,64}$`}},
		"port":    {Description: "a TCP port of 127.0.0.1 inside the sandbox", Schema: &Schema{Type: "integer", Minimum: new(1.0), Maximum: new(65535.0)}},
		"path":    {Description: "the path that the program is asked for", Schema: &Schema{Type: "string"}},
		"project": {Description: "a project's name", Schema: &Schema{Type: "string", Pattern: projectPattern}},
		"token":   {Description: "a token's id, or the beginning of it or of the secret, where only one begins so", Schema: &Schema{Type: "string"}},
		"name":    {Description: "an image's name", Schema: &Schema{Type: "string", Pattern: imagePattern}},
	}
}
