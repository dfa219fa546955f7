package iam

import (
	"context"
	"time"

	"github.com/dsec-io/dsec/api"
)

// Principal is who a request comes from, as far as others need to know.
type Principal struct {
	Token   string // the token's id, never the token
	Project string // the project that it acts in
	Can     Set    // what it may do there

	token *token
}

// Holds tells whether the principal may do something in another project than the one it acts in.
func (p Principal) Holds(project string, want Set) bool {
	return p.token != nil && p.token.access.in(project).Holds(want)
}

// Everywhere tells whether the principal may do something in every project.
func (p Principal) Everywhere(want Set) bool {
	return p.token != nil && p.token.access.any.Holds(want)
}

// Admission is an admitted request. Ctx ends when its token is revoked or expires, or its project is deleted, with an
// [*api.Error] as the cause. Done must be called at the request's end.
type Admission struct {
	Principal
	Ctx  context.Context //nolint:containedctx // it is the request's
	Done func()
}

// Admit finds out who shows a secret and lets the request in, to act in a project, "" being the token's own. What the
// principal may do there is for the caller to look at. The error is an [*api.Error].
func (a *Authority) Admit(ctx context.Context, secret, project string) (Admission, error) {
	t, err := a.lookup(ctx, secret)
	if err != nil {
		return Admission{}, err
	}
	now := time.Now()
	if t.expired(now) {
		return Admission{}, errExpired()
	}
	if project == "" {
		project = t.rec.Project
	}
	p := Principal{Token: t.rec.ID, Project: project, Can: t.access.in(project), token: t}
	if p.Can == 0 {
		// Whether the project is there is nothing that this token may learn.
		return Admission{Principal: p}, api.FieldError(api.CodeForbidden, api.HeaderProject, "`dsec token whoami` tells what it may do", "the token may do nothing in project %q", clip(project))
	}
	t.touch(now)
	return a.open(ctx, p, t)
}

// open registers a request with everybody who may have to end it. Requests of the server's own tokens in the default
// project are with nobody.
func (a *Authority) open(ctx context.Context, p Principal, t *token) (Admission, error) {
	var holders [2]*leases
	n := 0
	if p.Project != api.DefaultProject {
		held, err := a.projectLeases(ctx, p.Project)
		if err != nil {
			return Admission{Principal: p}, err
		}
		holders[n] = held
		n++
	}
	if !t.rec.Bootstrap {
		holders[n] = t.leases
		n++
	}
	if n == 0 {
		return Admission{Principal: p, Ctx: ctx, Done: func() {}}, nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	stop := func() {}
	if !t.rec.ExpiresAt.IsZero() {
		// The cause of an end by time must be ours, so it is a cancel, too.
		timer := time.AfterFunc(time.Until(t.rec.ExpiresAt), func() { cancel(errExpired()) })
		stop = func() { timer.Stop() }
	}
	x := &lease{cancel: cancel}
	done := func() {
		stop()
		for _, h := range holders[:n] {
			h.remove(x)
		}
		cancel(nil)
	}
	for _, h := range holders[:n] {
		if err := h.add(x); err != nil {
			done()
			return Admission{Principal: p}, err
		}
	}
	return Admission{Principal: p, Ctx: ctx, Done: done}, nil
}

// projectLeases finds a project that lives.
func (a *Authority) projectLeases(ctx context.Context, name string) (*leases, error) {
	if err := a.load(ctx, false); err != nil {
		return nil, err
	}
	a.mu.RLock()
	defer a.mu.RUnlock()
	p := a.projects[name]
	if p == nil || p.rec.State == projectDeleted {
		return nil, noProject(name)
	}
	return p.leases, nil
}

func noProject(name string) *api.Error {
	return api.FieldError(api.CodeNotFound, "project", "`dsec project ls` lists them", "there is no project %q", clip(name))
}

// lookup finds the token of a secret, in the view alone where that is possible.
func (a *Authority) lookup(ctx context.Context, secret string) (*token, error) {
	if secret == "" || len(secret) > maxSecret {
		return nil, errUnknown()
	}
	h := hash(secret)
	find := func() (t *token, loaded bool) {
		a.mu.RLock()
		defer a.mu.RUnlock()
		return a.byHash[h], a.loaded
	}
	t, loaded := find()
	if t == nil && !loaded {
		if err := a.load(ctx, false); err != nil {
			return nil, err
		}
		t, _ = find()
	}
	if t == nil {
		return nil, errUnknown()
	}
	return t, nil
}

func errUnknown() *api.Error {
	return api.FieldError(api.CodeUnauthenticated, "Authorization", "is it the token of another instance, or was it revoked?", "the token isn't valid")
}

// Self tells who a principal is.
func (a *Authority) Self(p Principal) api.Identity {
	return api.Identity{Token: p.token.public(time.Now()), Project: p.Project, Scopes: p.Can.Scopes()}
}
