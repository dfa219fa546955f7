package api

import (
	"fmt"
	"strings"
	"time"
)

// DefaultProject is the project that is always there.
const DefaultProject = "default"

// AnyProject in a [Grant] stands for every project, also those to come.
const AnyProject = "*"

// HeaderProject names the project that a request acts in, where that isn't the token's own.
const HeaderProject = "X-Dsec-Project"

// Role is a named set of scopes.
type Role string

// The roles. What they hold is in [Role.Scopes].
const (
	RoleAdmin     Role = "admin"     // everything; on one project: everything but what concerns the whole machine
	RoleDeveloper Role = "developer" // sandboxes and what is in them, images to start from
	RoleReader    Role = "reader"    // what there is and how it is, but nothing from inside a sandbox
)

// Scope is one kind of thing that a token may do.
type Scope string

// The scopes.
const (
	ScopeSandboxRead  Scope = "sandbox:read"  // list, get, logs, events, metrics
	ScopeSandboxWrite Scope = "sandbox:write" // create, change, stop, pause, resume
	ScopeSandboxExec  Scope = "sandbox:exec"  // commands, processes, sessions
	ScopeFilesRead    Scope = "files:read"
	ScopeFilesWrite   Scope = "files:write"
	ScopePorts        Scope = "ports:connect" // to a port inside a sandbox
	ScopeImageRead    Scope = "image:read"
	ScopeImageWrite   Scope = "image:write" // import, remove, collect: for every project of the machine
	ScopeTokenAdmin   Scope = "token:admin" // list, make and revoke the tokens of a project
	ScopeProjectRead  Scope = "project:read"
	ScopeProjectAdmin Scope = "project:admin" // make and delete projects
	ScopeAuditRead    Scope = "audit:read"
	ScopeNodeRead     Scope = "node:read"  // nodes, cluster, metrics
	ScopeNodeAdmin    Scope = "node:admin" // cordon, drain
)

// Scopes are all scopes, in the order in which they are shown.
func Scopes() []Scope {
	return []Scope{
		ScopeSandboxRead, ScopeSandboxWrite, ScopeSandboxExec, ScopeFilesRead, ScopeFilesWrite, ScopePorts, ScopeImageRead, ScopeImageWrite,
		ScopeTokenAdmin, ScopeProjectRead, ScopeProjectAdmin, ScopeAuditRead, ScopeNodeRead, ScopeNodeAdmin,
	}
}

// Scopes are what a role holds; none for a role that there isn't. RoleAdmin on a single project is without
// [ScopeImageWrite], [ScopeProjectAdmin] and [ScopeNodeAdmin], which concern the whole machine.
func (r Role) Scopes() []Scope {
	switch r {
	case RoleAdmin:
		return Scopes()
	case RoleDeveloper:
		return []Scope{
			ScopeSandboxRead, ScopeSandboxWrite, ScopeSandboxExec, ScopeFilesRead, ScopeFilesWrite, ScopePorts, ScopeImageRead,
			ScopeProjectRead, ScopeAuditRead, ScopeNodeRead,
		}
	case RoleReader:
		return []Scope{ScopeSandboxRead, ScopeImageRead, ScopeProjectRead, ScopeNodeRead}
	}
	return nil
}

// Grant is what a token may do in a project: what its role and its scopes say together.
type Grant struct {
	Project string  `json:"project"` // a name, or "*" for every project
	Role    Role    `json:"role,omitempty"`
	Scopes  []Scope `json:"scopes,omitempty"`
}

// ProjectSpec is what a project is made of.
type ProjectSpec struct {
	// Name is 1 to 63 of a-z, 0-9 and '-', from a letter on.
	Name string `json:"name"`
}

// Validate tells the first thing that is wrong with s.
func (s ProjectSpec) Validate() error { return CheckProjectName("name", s.Name) }

// maxProjectName is that of a DNS label.
const maxProjectName = 63

// CheckProjectName refuses what can't be the name of a project. The error names the field.
func CheckProjectName(field, name string) error {
	hint := fmt.Sprintf("use 1 to %d of a-z, 0-9 and '-', from a letter on", maxProjectName)
	if name == "" {
		return FieldError(CodeInvalid, field, hint, "there is no project name")
	}
	ok := len(name) <= maxProjectName && 'a' <= name[0] && name[0] <= 'z'
	for i := 0; ok && i < len(name); i++ {
		c := name[i]
		ok = 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '-'
	}
	if !ok {
		return FieldError(CodeInvalid, field, hint, "%q can't be the name of a project", shorten(strings.ToValidUTF8(name, "?")))
	}
	return nil
}

// Project is a tenant: sandboxes and tokens belong to one, and know nothing of another's.
type Project struct {
	Name      string    `json:"name"`
	CreatedAt time.Time `json:"created_at,omitzero"`  // absent for the default project
	CreatedBy string    `json:"created_by,omitempty"` // the id of a token
	Deleting  bool      `json:"deleting,omitempty"`   // a deletion was broken off; repeat it
}

// ProjectList is a page of projects, by name.
type ProjectList struct {
	Items  []Project `json:"items"`
	Cursor string    `json:"cursor,omitempty"`
}

// ProjectDeleted is the answer to the deletion of a project.
type ProjectDeleted struct {
	Name          string `json:"name"`
	RevokedTokens int    `json:"revoked_tokens"` // those of the project
}

// TokenSpec is what a token is made of. Without grants it is a developer's in the project that the request acts in. It
// can be given nothing that the token which asks for it doesn't have itself.
type TokenSpec struct {
	Label     string  `json:"label,omitempty"`        // what it is for; up to 100 characters
	Role      Role    `json:"role,omitempty"`         // in the project that the request acts in
	Scopes    []Scope `json:"scopes,omitempty"`       // the same; with no role: these alone
	Grants    []Grant `json:"grants,omitempty"`       // in other projects
	ExpiresIn *int64  `json:"expires_in_s,omitempty"` // seconds from now; absent: never
}

// Token is a token without its secret.
type Token struct {
	ID         string    `json:"id"`
	Prefix     string    `json:"prefix,omitempty"` // how the secret begins
	Label      string    `json:"label,omitempty"`
	Project    string    `json:"project"` // its own: where it acts when a request doesn't say
	Grants     []Grant   `json:"grants"`
	CreatedAt  time.Time `json:"created_at,omitzero"`
	CreatedBy  string    `json:"created_by,omitempty"`  // the id of a token
	ExpiresAt  time.Time `json:"expires_at,omitzero"`   // absent: never
	LastUsedAt time.Time `json:"last_used_at,omitzero"` // to the minute
	Expired    bool      `json:"expired,omitempty"`     // it's no longer accepted
	Bootstrap  bool      `json:"bootstrap,omitempty"`   // from the server's token file; it can't be revoked here
}

// NewToken is the answer to the making of a token: the only time that the secret is told.
type NewToken struct {
	Token
	Secret string `json:"secret"`
}

// TokenList is a page of tokens, by id.
type TokenList struct {
	Items  []Token `json:"items"`
	Cursor string  `json:"cursor,omitempty"`
}

// TokenQuery chooses tokens. The zero value chooses those of the project that the request acts in.
type TokenQuery struct {
	Prefix string // of the id or the secret
	All    bool   // of every project
}

// Identity is who a request comes from, and what it may do in the project it acts in.
type Identity struct {
	Token   Token   `json:"token"`
	Project string  `json:"project"`
	Scopes  []Scope `json:"scopes"`
}

// Decision is what was decided about a request.
type Decision string

// The decisions.
const (
	Allow Decision = "allow"
	Deny  Decision = "deny"
)

// AuditRecord is one entry of the audit log: who asked for what, what was decided, and what came of it.
type AuditRecord struct {
	Seq        uint64    `json:"seq"` // grows with time
	Time       time.Time `json:"time"`
	RequestID  string    `json:"request_id,omitempty"`
	Token      string    `json:"token,omitempty"` // its id; absent if nobody was recognised
	Project    string    `json:"project,omitempty"`
	Action     string    `json:"action"`             // a scope
	Operation  string    `json:"operation"`          // the route or method
	Resource   string    `json:"resource,omitempty"` // "sandbox/ID", "image/NAME", "token/ID", "project/NAME"
	Decision   Decision  `json:"decision"`
	Result     string    `json:"result"`               // "ok", or the code of the error
	Client     string    `json:"client,omitempty"`     // the address it came from
	Suppressed int64     `json:"suppressed,omitempty"` // how many records like it, or lost ones, came before it and aren't kept
}

// AuditQuery chooses records of the audit log. The zero value chooses all of the project that the request acts in.
type AuditQuery struct {
	Token    string    // an id
	Action   Scope     // what was needed
	Resource string    // "sandbox/ID", "image/NAME", "token/ID", "project/NAME"
	Decision Decision  // empty: both
	Result   string    // "ok" or the code of an error
	Since    time.Time // at or after
	Until    time.Time // before
	All      bool      // of every project
	Page     int       // how many are asked for at a time; 0: the server's default
}

// AuditList is a page of the audit log, newest first.
type AuditList struct {
	Items  []AuditRecord `json:"items"`
	Cursor string        `json:"cursor,omitempty"`
}
