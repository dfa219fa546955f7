package iam

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/state"
)

const (
	maxProjects = 10_000
	// drainTime is how long cancelled requests of a project may take to end.
	drainTime = 20 * time.Second
)

// CreateProject makes a project, for who may administer every project.
func (a *Authority) CreateProject(ctx context.Context, p Principal, spec api.ProjectSpec) (api.Project, error) {
	if err := spec.Validate(); err != nil {
		return api.Project{}, err
	}
	if !p.Everywhere(SetOf(api.ScopeProjectAdmin)) {
		return api.Project{}, api.Errorf(api.CodeForbidden, "this token doesn't have %s in every project", api.ScopeProjectAdmin)
	}
	exists := api.FieldError(api.CodeExists, "name", "", "there is a project %q", spec.Name)
	if spec.Name == api.DefaultProject {
		return api.Project{}, exists
	}
	if err := a.load(ctx, true); err != nil {
		return api.Project{}, err
	}
	old, n := a.findProject(spec.Name)
	cond := state.Condition{Key: projectKeys + spec.Name}
	switch {
	case n >= maxProjects:
		return api.Project{}, api.Errorf(api.CodeQuota, "there are %d projects, as many as there can be", n)
	case old == nil:
	case old.rec.State != projectDeleted:
		return api.Project{}, exists
	default:
		if rest := nameRests - time.Since(old.rec.DeletedAt); rest > 0 {
			e := api.FieldError(api.CodeConflict, "name", "take another name, or wait", "a project %q was deleted; records of its sandboxes can still be read, so its name rests for %s more", spec.Name, rest.Round(time.Second))
			e.RetryMS = rest.Milliseconds()
			return api.Project{}, e
		}
		cond.Revision = old.revision
	}
	rec := projectRecord{Project: api.Project{Name: spec.Name, CreatedAt: now(), CreatedBy: p.Token}}
	value, err := json.Marshal(rec)
	if err != nil {
		return api.Project{}, fmt.Errorf("encode project: %w", err)
	}
	_, err = a.commitFor(ctx, p, state.Txn{If: []state.Condition{cond}, Put: []state.Entry{{Key: cond.Key, Value: value}}})
	if errors.Is(err, state.ErrConflict) {
		if err = busy("this token"); a.taken(spec.Name) {
			err = exists
		}
	}
	return rec.Project, err
}

// taken tells whether there is a project of a name.
func (a *Authority) taken(name string) bool {
	pr, _ := a.findProject(name)
	return pr != nil && pr.rec.State != projectDeleted
}

// now is a time as records have it.
func now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

// findProject gives a project of the view, deleted ones too, and how many there are.
func (a *Authority) findProject(name string) (*project, int) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.projects[name], len(a.projects)
}

// ListProjects lists the projects that the principal may look at, by name, after a name, and at most limit.
func (a *Authority) ListProjects(ctx context.Context, p Principal, after string, limit int) (api.ProjectList, error) {
	if err := a.load(ctx, false); err != nil {
		return api.ProjectList{}, err
	}
	read := SetOf(api.ScopeProjectRead)
	all := []api.Project{{Name: api.DefaultProject}}
	a.mu.RLock()
	for _, pr := range a.projects {
		if pr.rec.State != projectDeleted {
			all = append(all, pr.public())
		}
	}
	a.mu.RUnlock()
	all = slices.DeleteFunc(all, func(pr api.Project) bool { return pr.Name <= after || !p.Holds(pr.Name, read) })
	slices.SortFunc(all, func(x, y api.Project) int { return cmp.Compare(x.Name, y.Name) })
	list := api.ProjectList{Items: all}
	if len(all) > limit {
		list.Items = all[:limit]
		list.Cursor = list.Items[limit-1].Name
	}
	return list, nil
}

// GetProject tells a project. One that the principal may not look at is as unknown as one that isn't there.
func (a *Authority) GetProject(ctx context.Context, p Principal, name string) (api.Project, error) {
	if err := api.CheckProjectName("project", name); err != nil {
		return api.Project{}, err
	}
	if !p.Holds(name, SetOf(api.ScopeProjectRead)) {
		return api.Project{}, noProject(name)
	}
	if name == api.DefaultProject {
		return api.Project{Name: name}, nil
	}
	if err := a.load(ctx, false); err != nil {
		return api.Project{}, err
	}
	pr, _ := a.findProject(name)
	if pr == nil || pr.rec.State == projectDeleted {
		return api.Project{}, noProject(name)
	}
	return pr.public(), nil
}

// DeleteProject deletes a project that has no living sandbox, with its tokens, and takes the grants on it from others'.
// living counts its sandboxes. Requests that are open in it are cancelled once it's known that none lives.
func (a *Authority) DeleteProject(ctx context.Context, p Principal, name string, living func(context.Context) (int, error)) (api.ProjectDeleted, error) {
	none := api.ProjectDeleted{}
	if _, err := a.GetProject(ctx, p, name); err != nil {
		return none, err
	}
	switch {
	case !p.Holds(name, SetOf(api.ScopeProjectAdmin)):
		return none, api.Errorf(api.CodeForbidden, "this token doesn't have %s in project %q", api.ScopeProjectAdmin, name)
	case name == api.DefaultProject:
		return none, api.FieldError(api.CodeConflict, "project", "", "the default project can't be deleted")
	case p.Project == name: // it would wait for its own end
		return none, api.FieldError(api.CodeConflict, "project", "act in another one: leave out "+api.HeaderProject, "a project can't be deleted from within")
	}
	pr, _ := a.findProject(name)
	if pr == nil {
		return none, noProject(name)
	}
	if err := mustBeEmpty(ctx, name, living); err != nil {
		// A deletion that a crash has ended halfway would keep everybody from stopping them.
		return none, errors.Join(err, a.revive(ctx, p, name, pr.revision))
	}
	mine, err := a.markProject(ctx, p, name, projectDeleting, 0)
	if err != nil {
		return none, err
	}
	// What was let in before may still make a sandbox: it's waited for, then they are counted again.
	limited, cancel := context.WithTimeout(ctx, drainTime)
	defer cancel()
	if err = pr.leases.drained(limited); err == nil {
		err = mustBeEmpty(ctx, name, living)
	}
	if err != nil {
		return none, errors.Join(err, a.revive(ctx, p, name, mine))
	}
	n, err := a.dropTokens(ctx, name, mine)
	if err == nil {
		_, err = a.markProject(ctx, p, name, projectDeleted, mine)
	}
	return api.ProjectDeleted{Name: name, RevokedTokens: n}, err
}

// revive ends a deletion that was begun at a revision, if there is one. Who has begun another since decides what becomes of
// the project.
func (a *Authority) revive(ctx context.Context, p Principal, name string, begun int64) error {
	pr, _ := a.findProject(name)
	if pr == nil || pr.revision != begun || pr.rec.State != projectDeleting {
		return nil
	}
	_, err := a.markProject(ctx, p, name, projectLives, begun)
	if api.IsCode(err, api.CodeConflict) {
		return nil
	}
	return err
}

func mustBeEmpty(ctx context.Context, name string, living func(context.Context) (int, error)) error {
	n, err := living(ctx)
	if err == nil && n > 0 {
		err = api.FieldError(api.CodeConflict, "project", "stop them first: `dsec sandbox ls --project "+name+"`", "%d sandboxes live in project %q", n, name)
	}
	return err
}

// markProject changes how far a project's life is, and tells the revision of that. What begins with at, 0 being any
// revision, goes on only while nobody else has changed the project.
func (a *Authority) markProject(ctx context.Context, p Principal, name string, s projectState, at int64) (revision int64, err error) {
	pr, _ := a.findProject(name)
	switch {
	case pr == nil || pr.rec.State == projectDeleted:
		return 0, noProject(name)
	case at != 0 && pr.revision != at:
		return 0, busy("project " + name)
	}
	rec := pr.rec
	rec.State = s
	if s == projectDeleted {
		rec.DeletedAt = now()
	}
	value, err := json.Marshal(rec)
	if err != nil {
		return 0, fmt.Errorf("encode project: %w", err)
	}
	key := projectKeys + name
	t := state.Txn{If: []state.Condition{{Key: key, Revision: pr.revision}}, Put: []state.Entry{{Key: key, Value: value}}}
	if s == projectDeleting {
		revision, err = a.commitFor(ctx, p, t)
	} else {
		revision, err = a.commit(ctx, t) // what was begun is ended, also if the token was one of the project's
	}
	if errors.Is(err, state.ErrConflict) {
		err = busy("project " + name)
	}
	return revision, err
}

// busy is the answer to who lost a race.
func busy(what string) *api.Error {
	e := api.Errorf(api.CodeConflict, "%s is being changed by another request", what)
	e.RetryMS = 100
	return e
}

// dropTokens revokes the tokens of a project, and takes the grants on it from the tokens of others. It tells how many
// were revoked. The project must be as it was at a revision.
func (a *Authority) dropTokens(ctx context.Context, name string, at int64) (int, error) {
	begin := func() state.Txn { return state.Txn{If: []state.Condition{{Key: projectKeys + name, Revision: at}}} }
	t, revoked, size := begin(), 0, 0
	flush := func() error {
		_, err := a.commit(ctx, t)
		t, size = begin(), 0
		if errors.Is(err, state.ErrConflict) {
			return busy("a token of project " + name)
		}
		return err
	}
	for _, tok := range a.snapshot() {
		switch {
		case tok.rec.Bootstrap:
		case tok.rec.Project == name:
			t.Delete = append(t.Delete, tokenKeys+tok.rec.ID, usedKeys+tok.rec.ID)
			revoked++
		case slices.ContainsFunc(tok.rec.Grants, func(g api.Grant) bool { return g.Project == name }):
			rec := tok.rec
			rec.Grants = slices.DeleteFunc(slices.Clone(rec.Grants), func(g api.Grant) bool { return g.Project == name })
			value, err := json.Marshal(rec)
			if err != nil {
				return 0, fmt.Errorf("encode token: %w", err)
			}
			key := tokenKeys + rec.ID
			t.If = append(t.If, state.Condition{Key: key, Revision: tok.revision})
			t.Put = append(t.Put, state.Entry{Key: key, Value: value})
			size += len(value)
		}
		if len(t.Put)+len(t.Delete) >= batch || size >= batchBytes {
			if err := flush(); err != nil {
				return 0, err
			}
		}
	}
	if len(t.Put)+len(t.Delete) == 0 {
		return revoked, nil
	}
	return revoked, flush()
}

// snapshot is all tokens, by id.
func (a *Authority) snapshot() []*token {
	a.mu.RLock()
	all := make([]*token, 0, len(a.byID))
	for _, t := range a.byID {
		all = append(all, t)
	}
	a.mu.RUnlock()
	slices.SortFunc(all, func(x, y *token) int { return cmp.Compare(x.rec.ID, y.rec.ID) })
	return all
}

// ProjectSince tells since when a project has its name.
func (a *Authority) ProjectSince(ctx context.Context, name string) (time.Time, error) {
	if name == api.DefaultProject {
		return time.Time{}, nil
	}
	if err := a.load(ctx, false); err != nil {
		return time.Time{}, err
	}
	pr, _ := a.findProject(name)
	if pr == nil {
		return time.Time{}, noProject(name)
	}
	return pr.rec.CreatedAt, nil
}
