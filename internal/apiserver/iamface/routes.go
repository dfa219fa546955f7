package iamface

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/iam"
	"github.com/dsec-io/dsec/internal/iam/audit"
)

// Handler serves a route for a principal that may use it. A returned error is to become a problem document.
type Handler func(w http.ResponseWriter, r *http.Request, p iam.Principal) error

// Routes are the routes of projects, tokens and the audit log, by the mux's pattern.
func (f *Face) Routes() map[string]Handler {
	return map[string]Handler{
		"GET /v1/projects":              f.listProjects,
		"POST /v1/projects":             f.createProject,
		"GET /v1/projects/{project}":    f.getProject,
		"DELETE /v1/projects/{project}": f.deleteProject,
		"GET /v1/tokens":                f.listTokens,
		"POST /v1/tokens":               f.createToken,
		"GET /v1/tokens/self":           f.self,
		"GET /v1/tokens/{id}":           f.getToken,
		"DELETE /v1/tokens/{id}":        f.revokeToken,
		"GET /v1/audit":                 f.audit,
		"GET /v1/sandboxes/{id}/audit":  f.sandboxAudit,
	}
}

const (
	defaultLimit = 100
	maxLimit     = 1000
	maxCursor    = 128
)

// query reads the parameters, each known and given once.
func query(r *http.Request, known ...string) (url.Values, error) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, api.FieldError(api.CodeInvalid, "query", "", "the query string can't be read: %v", err)
	}
	for name, v := range values {
		switch {
		case !slices.Contains(known, name):
			hint := "this route takes none"
			if len(known) > 0 {
				hint = "this route takes " + strings.Join(known, ", ")
			}
			return nil, api.FieldError(api.CodeUnknownField, strings.ToValidUTF8(name[:min(len(name), 80)], "?"), hint, "there is no such query parameter here")
		case len(v) > 1:
			return nil, api.FieldError(api.CodeInvalid, name, "", "it is given %d times", len(v))
		}
	}
	return values, nil
}

// page reads limit and cursor.
func page(q url.Values) (limit int, cursor string, err error) {
	limit = defaultLimit
	if q.Has("limit") {
		if limit, err = strconv.Atoi(q.Get("limit")); err != nil || limit < 1 || limit > maxLimit {
			return 0, "", api.FieldError(api.CodeInvalid, "limit", "", "it isn't a number between 1 and %d", maxLimit)
		}
	}
	if cursor = q.Get("cursor"); len(cursor) > maxCursor {
		return 0, "", api.FieldError(api.CodeInvalid, "cursor", "take it from the page before", "it isn't a cursor")
	}
	return limit, cursor, nil
}

// flag is true for 1 and true, and when there is only the name.
func flag(q url.Values, name string) (bool, error) {
	if !q.Has(name) {
		return false, nil
	}
	switch q.Get(name) {
	case "", "1", "true":
		return true, nil
	case "0", "false":
		return false, nil
	}
	return false, api.FieldError(api.CodeInvalid, name, "give 1 or 0", "it is neither")
}

func (f *Face) listProjects(w http.ResponseWriter, r *http.Request, p iam.Principal) error {
	q, err := query(r, "limit", "cursor")
	if err != nil {
		return err
	}
	limit, after, err := page(q)
	if err != nil {
		return err
	}
	list, err := f.cfg.Authority.ListProjects(r.Context(), p, after, limit)
	if err != nil {
		return err
	}
	return answer(w, http.StatusOK, list)
}

func (f *Face) createProject(w http.ResponseWriter, r *http.Request, p iam.Principal) error {
	if _, err := query(r); err != nil {
		return err
	}
	data, err := body(w, r)
	if err != nil {
		return err
	}
	spec, err := f.decoders.project.Decode(data)
	if err != nil {
		return err
	}
	made, err := f.cfg.Authority.CreateProject(r.Context(), p, spec)
	if err != nil {
		return err
	}
	w.Header().Set("Location", "/v1/projects/"+made.Name)
	return answer(w, http.StatusCreated, made)
}

func (f *Face) getProject(w http.ResponseWriter, r *http.Request, p iam.Principal) error {
	if _, err := query(r); err != nil {
		return err
	}
	pr, err := f.cfg.Authority.GetProject(r.Context(), p, r.PathValue("project"))
	if err != nil {
		return err
	}
	return answer(w, http.StatusOK, pr)
}

func (f *Face) deleteProject(w http.ResponseWriter, r *http.Request, p iam.Principal) error {
	if _, err := query(r); err != nil {
		return err
	}
	name := r.PathValue("project")
	done, err := f.cfg.Authority.DeleteProject(r.Context(), p, name, func(ctx context.Context) (int, error) { return f.living(ctx, name) })
	if err != nil {
		return err
	}
	return answer(w, http.StatusOK, done)
}

// living counts a project's sandboxes that haven't ended.
func (f *Face) living(ctx context.Context, project string) (int, error) {
	n, cursor := 0, ""
	for {
		ask, err := json.Marshal(map[string]any{"project": project, "limit": maxLimit, "cursor": cursor})
		if err != nil {
			return 0, err
		}
		raw, err := f.cfg.Ask(ctx, aether.Open{Method: "sandbox.list", Project: project, Body: ask})
		if err != nil {
			return 0, err
		}
		var list api.SandboxList
		if err := json.Unmarshal(raw, &list); err != nil {
			return 0, fmt.Errorf("list sandboxes of %s: %w", project, err)
		}
		for i := range list.Items {
			if s := list.Items[i].State; s != api.StateStopped && s != api.StateFailed {
				n++
			}
		}
		if cursor = list.Cursor; cursor == "" {
			return n, nil
		}
	}
}

func (f *Face) listTokens(w http.ResponseWriter, r *http.Request, p iam.Principal) error {
	q, err := query(r, "limit", "cursor", "prefix", "all")
	if err != nil {
		return err
	}
	want := iam.TokenQuery{Prefix: q.Get("prefix")}
	if want.Limit, want.After, err = page(q); err != nil {
		return err
	}
	if want.All, err = flag(q, "all"); err != nil {
		return err
	}
	if want.All && !p.Everywhere(iam.SetOf(api.ScopeTokenAdmin)) {
		return notEverywhere(api.ScopeTokenAdmin)
	}
	list, err := f.cfg.Authority.ListTokens(r.Context(), p, want)
	if err != nil {
		return err
	}
	return answer(w, http.StatusOK, list)
}

func notEverywhere(scope api.Scope) error {
	return api.FieldError(api.CodeForbidden, "all", "leave it out", "this token doesn't have %s in every project", scope)
}

func (f *Face) createToken(w http.ResponseWriter, r *http.Request, p iam.Principal) error {
	if _, err := query(r); err != nil {
		return err
	}
	data, err := body(w, r)
	if err != nil {
		return err
	}
	spec, err := f.decoders.token.Decode(data)
	if err != nil {
		return err
	}
	made, err := f.cfg.Authority.CreateToken(r.Context(), p, spec)
	if err != nil {
		return err
	}
	w.Header().Set("Location", "/v1/tokens/"+made.ID)
	return answer(w, http.StatusCreated, made)
}

func (f *Face) self(w http.ResponseWriter, r *http.Request, p iam.Principal) error {
	if _, err := query(r); err != nil {
		return err
	}
	return answer(w, http.StatusOK, f.cfg.Authority.Self(p))
}

func (f *Face) getToken(w http.ResponseWriter, r *http.Request, p iam.Principal) error {
	if _, err := query(r); err != nil {
		return err
	}
	t, err := f.cfg.Authority.GetToken(r.Context(), p, r.PathValue("id"))
	if err != nil {
		return err
	}
	return answer(w, http.StatusOK, t)
}

func (f *Face) revokeToken(w http.ResponseWriter, r *http.Request, p iam.Principal) error {
	if _, err := query(r); err != nil {
		return err
	}
	t, err := f.cfg.Authority.RevokeToken(r.Context(), p, r.PathValue("id"))
	if err != nil {
		return err
	}
	return answer(w, http.StatusOK, t)
}

func (f *Face) audit(w http.ResponseWriter, r *http.Request, p iam.Principal) error {
	q, err := query(r, "limit", "cursor", "all", "token", "action", "resource", "decision", "result", "since", "until")
	if err != nil {
		return err
	}
	want, err := auditQuery(q)
	if err != nil {
		return err
	}
	all, err := flag(q, "all")
	if err != nil {
		return err
	}
	if all && !p.Everywhere(iam.SetOf(api.ScopeAuditRead)) {
		return notEverywhere(api.ScopeAuditRead)
	}
	if !all {
		want.Project = p.Project
	}
	return f.readAudit(w, r, p, want)
}

// auditQuery reads what the routes of the log have in common.
func auditQuery(q url.Values) (audit.Query, error) {
	want := audit.Query{
		Action: q.Get("action"), Resource: q.Get("resource"), Decision: api.Decision(q.Get("decision")), Result: q.Get("result"),
		Token: iam.IDOf(q.Get("token")),
	}
	if d := want.Decision; d != "" && d != api.Allow && d != api.Deny {
		return want, api.FieldError(api.CodeInvalid, "decision", "give allow or deny", "it is neither")
	}
	for name, at := range map[string]*time.Time{"since": &want.Since, "until": &want.Until} {
		if !q.Has(name) {
			continue
		}
		t, err := time.Parse(time.RFC3339, q.Get(name))
		if err != nil {
			return want, api.FieldError(api.CodeInvalid, name, "write 2006-01-02T15:04:05Z", "it isn't a time")
		}
		*at = t
	}
	limit, cursor, err := page(q)
	if err != nil {
		return want, err
	}
	want.Limit = limit
	if cursor != "" {
		if want.Before, err = strconv.ParseUint(cursor, 10, 64); err != nil || want.Before == 0 {
			return want, api.FieldError(api.CodeInvalid, "cursor", "take it from the page before", "it isn't a cursor")
		}
	}
	return want, nil
}

// readAudit answers with a page. Who sees one project sees nothing of an earlier one of the same name.
func (f *Face) readAudit(w http.ResponseWriter, r *http.Request, p iam.Principal, want audit.Query) error {
	list, err := f.auditPage(r.Context(), p, want)
	if err != nil {
		return err
	}
	return answer(w, http.StatusOK, list)
}

func (f *Face) auditPage(ctx context.Context, p iam.Principal, want audit.Query) (api.AuditList, error) {
	if want.Project != "" && want.Project != api.DefaultProject {
		begun, err := f.cfg.Authority.ProjectSince(ctx, want.Project)
		if err != nil {
			return api.AuditList{}, err
		}
		if want.Since.Before(begun) && !p.Everywhere(iam.SetOf(api.ScopeAuditRead)) {
			want.Since = begun
		}
	}
	select {
	case f.reads <- struct{}{}:
		defer func() { <-f.reads }()
	case <-ctx.Done():
		return api.AuditList{}, context.Cause(ctx)
	}
	items, more, err := f.cfg.Audit.Read(ctx, want)
	if err != nil {
		return api.AuditList{}, err
	}
	list := api.AuditList{Items: items}
	if items == nil {
		list.Items = []api.AuditRecord{}
	}
	if more {
		list.Cursor = strconv.FormatUint(items[len(items)-1].Seq, 10)
	}
	return list, nil
}

// sandboxAudit tells what was done to a sandbox. One that neither the edge nor the project's log knows isn't there,
// whosever it is.
func (f *Face) sandboxAudit(w http.ResponseWriter, r *http.Request, p iam.Principal) error {
	q, err := query(r, "limit", "cursor")
	if err != nil {
		return err
	}
	want, err := auditQuery(q)
	if err != nil {
		return err
	}
	id := r.PathValue("id")
	missing := api.Errorf(api.CodeNotFound, "there is no such sandbox in project %q", p.Project)
	if !isSandboxID(id) {
		return missing
	}
	want.Project, want.Resource = p.Project, "sandbox/"+id
	if _, err := f.cfg.Ask(r.Context(), aether.Open{Method: "sandbox.get", Project: p.Project, Sandbox: id}); err != nil {
		if !api.IsCode(err, api.CodeNotFound) {
			return err
		}
		// Its record has gone; that it was created here shows that it was the project's. A guess leaves a record, too.
		made := want
		made.Action, made.Result, made.Before, made.Limit = string(api.ScopeSandboxWrite), "ok", 0, 1
		list, err := f.auditPage(r.Context(), p, made)
		if err != nil {
			return err
		}
		if len(list.Items) == 0 {
			return missing
		}
	}
	return f.readAudit(w, r, p, want)
}

func isSandboxID(id string) bool {
	ok := 20 <= len(id) && len(id) <= 31 && 'a' <= id[0] && id[0] <= 'z'
	for i := 0; ok && i < len(id); i++ {
		ok = 'a' <= id[i] && id[i] <= 'z' || '0' <= id[i] && id[i] <= '9'
	}
	return ok
}
