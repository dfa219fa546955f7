package iam

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/state"
)

const (
	maxTokens   = 10_000        // of all projects together
	maxOfOne    = maxTokens / 2 // of a project that isn't the default one, so that a tenant leaves room for others
	maxRecord   = 8 << 10       // bytes; all tokens together must fit the store and memory
	maxGrants   = 100
	maxLabel    = 100               // characters
	longestLife = 10 * 365 * 86_400 // seconds
)

// CreateToken makes a token in the project that the principal acts in. It gets nothing that the principal doesn't have.
// When it returns, the token is on disk and accepted; its secret is kept nowhere.
func (a *Authority) CreateToken(ctx context.Context, p Principal, spec api.TokenSpec) (api.NewToken, error) {
	grants, err := a.grants(p, spec)
	if err != nil {
		return api.NewToken{}, err
	}
	if err := checkLabel(spec.Label); err != nil {
		return api.NewToken{}, err
	}
	id, secret := newSecret()
	h := hash(secret)
	rec := record{
		Token: api.Token{
			ID: id, Label: spec.Label, Project: p.Project, Grants: grants, CreatedAt: now(), CreatedBy: p.Token,
		},
		SHA256: hex.EncodeToString(h[:]),
	}
	if s := spec.ExpiresIn; s != nil {
		if *s < 1 || *s > longestLife {
			return api.NewToken{}, api.FieldError(api.CodeInvalid, "expires_in_s", "leave it out for a token that never expires", "%d isn't between 1 and %d seconds", *s, longestLife)
		}
		rec.ExpiresAt = rec.CreatedAt.Add(time.Duration(*s) * time.Second)
	}
	if err := a.load(ctx, true); err != nil {
		return api.NewToken{}, err
	}
	conds, err := a.projectsLive(grants, p.Project)
	if err != nil {
		return api.NewToken{}, err
	}
	key := tokenKeys + id
	value, err := json.Marshal(rec)
	if err != nil {
		return api.NewToken{}, fmt.Errorf("encode token: %w", err)
	}
	if len(value) > maxRecord {
		return api.NewToken{}, api.FieldError(api.CodeTooLarge, "grants", "make more than one token", "the grants take %d bytes, and a token at most %d", len(value), maxRecord)
	}
	_, err = a.commitFor(ctx, p, state.Txn{If: append(conds, state.Condition{Key: key}), Put: []state.Entry{{Key: key, Value: value}}})
	if errors.Is(err, state.ErrConflict) {
		err = busy("a project or this token")
	}
	if err != nil {
		return api.NewToken{}, err
	}
	out := rec.Token
	out.Prefix = secretPrefix + id
	return api.NewToken{Token: out, Secret: secret}, nil
}

// grants checks what is asked for, against what the principal may give.
func (a *Authority) grants(p Principal, spec api.TokenSpec) ([]api.Grant, error) {
	own := api.Grant{Project: p.Project, Role: spec.Role, Scopes: spec.Scopes}
	var grants []api.Grant
	switch {
	case own.Role != "" || len(own.Scopes) > 0:
		grants = append(grants, own)
	case len(spec.Grants) == 0:
		own.Role = api.RoleDeveloper
		grants = append(grants, own)
	}
	grants = append(grants, spec.Grants...)
	if len(grants) > maxGrants {
		return nil, api.FieldError(api.CodeInvalid, "grants", "", "%d grants are more than %d", len(grants), maxGrants)
	}
	for i, g := range grants {
		field := fmt.Sprintf("grants[%d]", i-len(grants)+len(spec.Grants))
		if i < len(grants)-len(spec.Grants) {
			field = ""
		}
		if err := checkGrant(field, g); err != nil {
			return nil, err
		}
		given, may := compile([]api.Grant{g}), p.token.access
		have, want := may.in(g.Project), given.in(g.Project)
		if g.Project == api.AnyProject {
			have, want = may.any, given.any
		}
		if want |= SetOf(api.ScopeTokenAdmin); !have.Holds(want) {
			return nil, api.FieldError(api.CodeForbidden, cmp.Or(field, "role"), "a token can be given only what the one that makes it has",
				"this token doesn't have %s in project %q", textOf(want&^have), clip(g.Project))
		}
		if len(g.Scopes) > 0 {
			grants[i].Scopes = SetOf(g.Scopes...).Scopes() // each once
		}
	}
	return grants, nil
}

func textOf(s Set) string {
	names := make([]string, 0, 8)
	for _, scope := range s.Scopes() {
		names = append(names, string(scope))
	}
	return strings.Join(names, ", ")
}

func checkLabel(label string) error {
	if utf8.RuneCountInString(label) > maxLabel || !utf8.ValidString(label) || strings.ContainsFunc(label, unicode.IsControl) {
		return api.FieldError(api.CodeInvalid, "label", "", "a label is up to %d characters of text", maxLabel)
	}
	if strings.Contains(label, secretPrefix) {
		return api.FieldError(api.CodeInvalid, "label", "labels are shown and logged", "a label must not hold a token")
	}
	return nil
}

// projectsLive are the conditions on which a token may have these grants: the projects are still those of now.
func (a *Authority) projectsLive(grants []api.Grant, home string) ([]state.Condition, error) {
	names := []string{home}
	for _, g := range grants {
		if g.Project != api.AnyProject {
			names = append(names, g.Project)
		}
	}
	slices.Sort(names)
	a.mu.RLock()
	defer a.mu.RUnlock()
	if len(a.byID) >= maxTokens {
		return nil, api.FieldError(api.CodeQuota, "", "revoke some", "there are %d tokens, as many as there can be", len(a.byID))
	}
	if n := a.tokensLocked(home); n >= maxOfOne && home != api.DefaultProject {
		return nil, api.FieldError(api.CodeQuota, "", "revoke some", "project %q has %d tokens, as many as one can have", home, n)
	}
	var conds []state.Condition
	for _, name := range slices.Compact(names) {
		pr := a.projects[name]
		switch {
		case name == api.DefaultProject:
		case pr == nil || pr.rec.State == projectDeleted:
			return nil, noProject(name)
		case pr.rec.State != projectLives:
			return nil, errDeleting()
		default:
			conds = append(conds, state.Condition{Key: projectKeys + name, Revision: pr.revision})
		}
	}
	return conds, nil
}

// tokensLocked counts the tokens of a project.
func (a *Authority) tokensLocked(project string) int {
	n := 0
	for _, t := range a.byID {
		if t.rec.Project == project {
			n++
		}
	}
	return n
}

// TokenQuery chooses tokens.
type TokenQuery struct {
	Prefix string // of the id or the secret; "" for all
	All    bool   // of all projects, which the caller has to allow
	After  string // an id
	Limit  int
}

// ListTokens lists tokens of the project that the principal acts in, by id.
func (a *Authority) ListTokens(ctx context.Context, p Principal, q TokenQuery) (api.TokenList, error) {
	if err := a.load(ctx, false); err != nil {
		return api.TokenList{}, err
	}
	prefix, at := IDOf(q.Prefix), time.Now()
	list := api.TokenList{Items: []api.Token{}}
	for _, t := range a.snapshot() {
		if !q.All && t.rec.Project != p.Project || !strings.HasPrefix(t.rec.ID, prefix) || t.rec.ID <= q.After {
			continue
		}
		if len(list.Items) == q.Limit {
			list.Cursor = list.Items[q.Limit-1].ID
			break
		}
		list.Items = append(list.Items, t.public(at))
	}
	return list, nil
}

// find finds the one token that is called so, see [IDOf], of the principal's project; of all projects for who may
// administer all their tokens, so that a leaked one is ended without a search for its project.
func (a *Authority) find(ctx context.Context, p Principal, given string) (*token, error) {
	if err := a.load(ctx, false); err != nil {
		return nil, err
	}
	id, everywhere := IDOf(given), p.Everywhere(SetOf(api.ScopeTokenAdmin))
	var found []*token
	for _, t := range a.snapshot() {
		if t.rec.Project != p.Project && !everywhere {
			continue
		}
		if t.rec.ID == id {
			return t, nil
		}
		if id != "" && strings.HasPrefix(t.rec.ID, id) {
			found = append(found, t)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return nil, api.FieldError(api.CodeNotFound, "id", "`dsec token ls` lists them", "there is no token %q in project %q", clip(id), p.Project)
	}
	return nil, api.FieldError(api.CodeConflict, "id", "give more of it", "%d tokens begin with %q", len(found), clip(id))
}

// GetToken tells a token that the principal may administer, by its id or a beginning of it that no other has.
func (a *Authority) GetToken(ctx context.Context, p Principal, id string) (api.Token, error) {
	t, err := a.find(ctx, p, id)
	if err != nil {
		return api.Token{}, err
	}
	return t.public(time.Now()), nil
}

// RevokeToken ends a token that the principal may administer, named as for [Authority.GetToken]. When it returns, no
// request is admitted for it any more, and those that were open have been cancelled.
func (a *Authority) RevokeToken(ctx context.Context, p Principal, id string) (api.Token, error) {
	t, err := a.find(ctx, p, id)
	if err != nil {
		return api.Token{}, err
	}
	if t.rec.Bootstrap {
		return api.Token{}, api.FieldError(api.CodeConflict, "id", "remove it from the server's token file and start the server again",
			"token %s is the server's own", t.rec.ID)
	}
	if !p.mayRevoke(t) {
		return api.Token{}, api.FieldError(api.CodeForbidden, "id", "", "token %s may do what this token may not", t.rec.ID)
	}
	_, err = a.commitFor(ctx, p, state.Txn{Delete: []string{tokenKeys + t.rec.ID, usedKeys + t.rec.ID}})
	if errors.Is(err, state.ErrConflict) {
		err = busy("this token")
	}
	if err != nil {
		return api.Token{}, err
	}
	return t.public(time.Now()), nil
}

// mayRevoke keeps an administrator of one project from ending a token of the whole machine that happens to be at home
// there.
func (p Principal) mayRevoke(t *token) bool {
	return t.access.any == 0 || p.token.access.any.Holds(t.access.any) || p.token == t
}
