package libdsec

import (
	"context"
	"iter"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/dsec-io/dsec/api"
)

// InProject is a client that acts in a project instead of the token's own, "" being that. The token needs a grant on the
// project. It has a connection of its own: Close it, too.
func (c *Client) InProject(name string) *Client {
	in := &Client{settings: c.settings, base: c.base, http: c.http, transport: c.transport, userAgent: c.userAgent, project: name}
	in.link = &link{dial: in.upgrade}
	return in
}

// CreateProject makes a project. A name that is taken is an error with [api.CodeExists].
func (c *Client) CreateProject(ctx context.Context, spec api.ProjectSpec) (api.Project, error) {
	var made api.Project
	err := c.call(ctx, http.MethodPost, "/v1/projects", spec, &made)
	return made, err
}

// Projects yields the projects that the token may look at, by name. After an error it yields no more.
func (c *Client) Projects(ctx context.Context) iter.Seq2[api.Project, error] {
	return pages(ctx, c, "/v1/projects", url.Values{}, func(l *api.ProjectList) ([]api.Project, string) { return l.Items, l.Cursor })
}

// Project tells a project. One that the token may not look at is as unknown as one that isn't there.
func (c *Client) Project(ctx context.Context, name string) (api.Project, error) {
	var got api.Project
	path, err := projectPath(name)
	if err == nil {
		err = c.call(ctx, http.MethodGet, path, nil, &got)
	}
	return got, err
}

// DeleteProject deletes a project and revokes its tokens. While sandboxes live in it, that's a conflict.
func (c *Client) DeleteProject(ctx context.Context, name string) (api.ProjectDeleted, error) {
	var done api.ProjectDeleted
	path, err := projectPath(name)
	if err == nil {
		err = c.call(ctx, http.MethodDelete, path, nil, &done)
	}
	return done, err
}

func projectPath(name string) (string, error) {
	if err := api.CheckProjectName("project", name); err != nil {
		return "", err
	}
	return "/v1/projects/" + name, nil
}

// CreateToken makes a token in the project that the client acts in. Its secret is told here and never again.
func (c *Client) CreateToken(ctx context.Context, spec api.TokenSpec) (api.NewToken, error) {
	var made api.NewToken
	err := c.call(ctx, http.MethodPost, "/v1/tokens", spec, &made)
	return made, err
}

// Tokens yields tokens by id, without their secrets. After an error it yields no more.
func (c *Client) Tokens(ctx context.Context, want api.TokenQuery) iter.Seq2[api.Token, error] {
	q := url.Values{}
	if want.Prefix != "" {
		q.Set("prefix", tokenID(want.Prefix))
	}
	if want.All {
		q.Set("all", "1")
	}
	return pages(ctx, c, "/v1/tokens", q, func(l *api.TokenList) ([]api.Token, string) { return l.Items, l.Cursor })
}

// Token tells a token, by its id or a beginning of it that no other has.
func (c *Client) Token(ctx context.Context, id string) (api.Token, error) {
	var got api.Token
	path, err := tokenPath(id)
	if err == nil {
		err = c.call(ctx, http.MethodGet, path, nil, &got)
	}
	return got, err
}

// RevokeToken ends a token, by its id, a beginning of it that no other has, or its secret. When it returns, the token
// isn't accepted any more and its open requests have been cancelled.
func (c *Client) RevokeToken(ctx context.Context, id string) (api.Token, error) {
	var gone api.Token
	path, err := tokenPath(id)
	if err == nil {
		err = c.call(ctx, http.MethodDelete, path, nil, &gone)
	}
	return gone, err
}

// Self tells who the client is, and what it may do in the project that it acts in.
func (c *Client) Self(ctx context.Context) (api.Identity, error) {
	var who api.Identity
	err := c.call(ctx, http.MethodGet, "/v1/tokens/self", nil, &who)
	return who, err
}

const (
	tokenPrefix = "dsec_"
	tokenIDLen  = 10
)

// tokenID keeps the secret part of a token out of a URL, which others log.
func tokenID(given string) string {
	if len(given) > len(tokenPrefix) && given[:len(tokenPrefix)] == tokenPrefix {
		given = given[len(tokenPrefix):]
	}
	return given[:min(len(given), tokenIDLen)]
}

func tokenPath(id string) (string, error) {
	if id = tokenID(id); id == "" || id == "self" || id == "." || id == ".." {
		return "", api.FieldError(api.CodeInvalid, "id", "`dsec token ls` lists them", "%q isn't the id of a token", id)
	}
	return "/v1/tokens/" + url.PathEscape(id), nil
}

// Audit yields records of the audit log, newest first, asking for further pages as they are needed. After an error it
// yields no more.
func (c *Client) Audit(ctx context.Context, o api.AuditQuery) iter.Seq2[api.AuditRecord, error] {
	q := url.Values{}
	for name, value := range map[string]string{
		"token": tokenID(o.Token), "action": string(o.Action), "resource": o.Resource, "decision": string(o.Decision), "result": o.Result,
	} {
		if value != "" {
			q.Set(name, value)
		}
	}
	for name, at := range map[string]time.Time{"since": o.Since, "until": o.Until} {
		if !at.IsZero() {
			q.Set(name, at.Format(time.RFC3339Nano))
		}
	}
	if o.All {
		q.Set("all", "1")
	}
	if o.Page > 0 {
		q.Set("limit", strconv.Itoa(o.Page))
	}
	return pages(ctx, c, "/v1/audit", q, func(l *api.AuditList) ([]api.AuditRecord, string) { return l.Items, l.Cursor })
}

// Audit yields what was done to the sandbox and by whom, newest first, also when the sandbox has ended.
func (s *Sandbox) Audit(ctx context.Context) iter.Seq2[api.AuditRecord, error] {
	return pages(ctx, s.client, s.path("/audit"), url.Values{}, func(l *api.AuditList) ([]api.AuditRecord, string) { return l.Items, l.Cursor })
}

// pages yields the items of a listing page by page.
func pages[L, T any](ctx context.Context, c *Client, path string, q url.Values, of func(*L) (items []T, cursor string)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		q := maps.Clone(q) // each range begins anew
		for {
			var page L
			if err := c.call(ctx, http.MethodGet, path+"?"+q.Encode(), nil, &page); err != nil {
				var none T
				yield(none, err)
				return
			}
			items, cursor := of(&page)
			for _, item := range items {
				if !yield(item, nil) {
					return
				}
			}
			if cursor == "" {
				return
			}
			q.Set("cursor", cursor)
		}
	}
}
