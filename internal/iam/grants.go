package iam

import (
	"slices"
	"strings"

	"github.com/dsec-io/dsec/api"
)

// Set is a set of scopes.
type Set uint32

// SetOf makes a set. Of a scope that there isn't it makes nothing, so a set of it alone allows nothing and, asked for,
// is never allowed.
func SetOf(scopes ...api.Scope) Set {
	var s Set
	all := api.Scopes()
	for _, scope := range scopes {
		if i := slices.Index(all, scope); i >= 0 {
			s |= 1 << i
		}
	}
	return s
}

// Scopes lists what is in the set.
func (s Set) Scopes() []api.Scope {
	list := []api.Scope{}
	for i, scope := range api.Scopes() {
		if s&(1<<i) != 0 {
			list = append(list, scope)
		}
	}
	return list
}

// Holds tells whether all of want is in s; wanting nothing is never held, so that what has no scope is denied.
func (s Set) Holds(want Set) bool { return want != 0 && s&want == want }

// machineWide are the scopes that reach beyond a project, so a role on a project is without them.
func machineWide() Set {
	return SetOf(api.ScopeImageWrite, api.ScopeProjectAdmin, api.ScopeNodeAdmin)
}

// access is what a list of grants comes to.
type access struct {
	any Set            // in every project
	per map[string]Set // in this one, in addition
}

func compile(grants []api.Grant) access {
	a := access{per: map[string]Set{}}
	for _, g := range grants {
		s := SetOf(g.Role.Scopes()...)
		if g.Project == api.AnyProject {
			a.any |= s | SetOf(g.Scopes...)
			continue
		}
		a.per[g.Project] |= s&^machineWide() | SetOf(g.Scopes...)
	}
	return a
}

// in is what may be done in a project.
func (a access) in(project string) Set { return a.any | a.per[project] }

// Decide tells what grants allow in a project. It is the whole of authorisation: pure, and nothing without a grant.
func Decide(grants []api.Grant, project string) Set { return compile(grants).in(project) }

// checkGrant refuses a grant that says nothing, or something that there isn't. Field is the grant's own; "" where role and
// scopes are fields of the request itself.
func checkGrant(field string, g api.Grant) error {
	member := func(name string) string { return strings.TrimPrefix(field+"."+name, ".") }
	if g.Project != api.AnyProject {
		if err := api.CheckProjectName(member("project"), g.Project); err != nil {
			return err
		}
	}
	if g.Role != "" && g.Role.Scopes() == nil {
		return api.FieldError(api.CodeInvalid, member("role"), "use admin, developer or reader", "there is no role %q", clip(string(g.Role)))
	}
	for _, s := range g.Scopes {
		if SetOf(s) == 0 {
			return api.FieldError(api.CodeInvalid, member("scopes"), "the scopes are "+scopeList(), "there is no scope %q", clip(string(s)))
		}
	}
	if g.Role == "" && len(g.Scopes) == 0 {
		return api.FieldError(api.CodeInvalid, field, "give a role or scopes", "the grant allows nothing")
	}
	return nil
}

func scopeList() string {
	var text strings.Builder
	for i, s := range api.Scopes() {
		if i > 0 {
			text.WriteString(", ")
		}
		text.WriteString(string(s))
	}
	return text.String()
}

// clip keeps what a client sent from filling an answer.
func clip(s string) string {
	const most = 64
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}
