package iam_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/iam"
	"github.com/dsec-io/dsec/internal/state"
)

// TestTooLate: what was admitted and asks for a change only after its token's end, as by a body that comes slowly, gets
// nothing: else who has a leaked token keeps a new one.
func TestTooLate(t *testing.T) {
	b := start(t, t.TempDir())
	b.project("a")
	all := api.TokenSpec{Grants: []api.Grant{{Project: api.AnyProject, Role: api.RoleAdmin}}}
	victim := b.token("", api.TokenSpec{})
	try := func(what string, ctx context.Context, p iam.Principal, code api.Code) {
		t.Helper()
		for change, do := range map[string]func() error{
			"CreateToken":   func() error { _, err := b.CreateToken(ctx, p, api.TokenSpec{}); return err },
			"RevokeToken":   func() error { _, err := b.RevokeToken(ctx, p, victim.ID); return err },
			"CreateProject": func() error { _, err := b.CreateProject(ctx, p, api.ProjectSpec{Name: "ghost"}); return err },
			"DeleteProject": func() error { _, err := b.DeleteProject(ctx, p, "a", none); return err },
		} {
			if err := do(); !api.IsCode(err, code) {
				t.Errorf("%s, %s() = %v, want %s", what, change, err, code)
			}
		}
	}
	revoked := b.token("", all)
	in := b.admit(revoked.Secret, "")
	defer in.Done()
	if _, err := b.RevokeToken(t.Context(), b.root(""), revoked.ID); err != nil {
		t.Fatal(err)
	}
	try("after the revocation", in.Ctx, in.Principal, api.CodeUnauthenticated)
	try("in the moment of the revocation", t.Context(), in.Principal, api.CodeConflict)

	one := int64(1)
	all.ExpiresIn = &one
	expired := b.admit(b.token("", all).Secret, "")
	defer expired.Done()
	<-expired.Ctx.Done()
	try("after the token's time", expired.Ctx, expired.Principal, api.CodeUnauthenticated)
	try("in the moment of the token's end", t.Context(), expired.Principal, api.CodeUnauthenticated)
	b.admit(victim.Secret, "").Done()
}

// TestTakenGrant: a token that has lost a grant since it was admitted can't hand it on.
func TestTakenGrant(t *testing.T) {
	b := start(t, t.TempDir())
	b.project("a")
	b.project("b")
	in := b.admit(b.token("b", api.TokenSpec{Role: api.RoleAdmin, Grants: []api.Grant{{Project: "a", Role: api.RoleAdmin}}}).Secret, "")
	defer in.Done()
	if _, err := b.DeleteProject(t.Context(), b.root(""), "a", none); err != nil {
		t.Fatal(err)
	}
	_, err := b.CreateToken(in.Ctx, in.Principal, api.TokenSpec{})
	wantCode(t, err, api.CodeConflict)
}

// TestInterruptedDeletion: a deletion that a crash has ended halfway doesn't shut those out who could stop the sandboxes.
func TestInterruptedDeletion(t *testing.T) {
	b := start(t, t.TempDir())
	b.project("a")
	tok := b.token("a", api.TokenSpec{})
	if _, err := b.store.Commit(t.Context(), state.Txn{Put: []state.Entry{
		{Key: "iam/project/a", Value: []byte(`{"name":"a","created_at":"2026-01-01T00:00:00Z","state":"deleting"}`)},
	}}); err != nil {
		t.Fatal(err)
	}
	b.token("", api.TokenSpec{}) // and the view has it
	_, err := b.Admit(t.Context(), tok.Secret, "")
	wantCode(t, err, api.CodeConflict)
	_, err = b.DeleteProject(t.Context(), b.root(""), "a", func(context.Context) (int, error) { return 1, nil })
	wantCode(t, err, api.CodeConflict)
	b.admit(tok.Secret, "").Done()
	if done, err := b.DeleteProject(t.Context(), b.root(""), "a", none); err != nil || done.RevokedTokens != 1 {
		t.Errorf("DeleteProject() = %+v, %v", done, err)
	}
}

// TestTwoDeletions: one that was given up and one that goes on don't mix: a project that lives again keeps its tokens.
func TestTwoDeletions(t *testing.T) {
	b := start(t, t.TempDir())
	b.project("a")
	tok := b.token("a", api.TokenSpec{})
	root, counted := b.root(""), 0
	_, err := b.DeleteProject(t.Context(), root, "a", func(context.Context) (int, error) {
		if counted++; counted == 2 {
			_, err := b.DeleteProject(t.Context(), root, "a", func(context.Context) (int, error) { return 1, nil })
			wantCode(t, err, api.CodeConflict)
		}
		return 0, nil
	})
	wantCode(t, err, api.CodeConflict)
	b.admit(tok.Secret, "").Done()
}

// TestSizeOfTokens: a scope that is named often is kept once, and a token has a size at most: all of them must fit the store.
func TestSizeOfTokens(t *testing.T) {
	b := start(t, t.TempDir())
	got := b.token("", api.TokenSpec{Scopes: append(make([]api.Scope, 0, 2000), repeat(api.ScopeFilesRead, 2000)...)})
	if n := len(got.Grants[0].Scopes); n != 1 {
		t.Errorf("one scope is kept %d times", n)
	}
	var grants []api.Grant
	for i := range 100 {
		name := fmt.Sprintf("%s-%02d", strings.Repeat("a", 59), i)
		b.project(name)
		grants = append(grants, api.Grant{Project: name, Scopes: api.Role(api.RoleDeveloper).Scopes()})
	}
	_, err := b.CreateToken(t.Context(), b.root(""), api.TokenSpec{Grants: grants})
	wantCode(t, err, api.CodeTooLarge)
}

func repeat(s api.Scope, n int) []api.Scope {
	list := make([]api.Scope, n)
	for i := range list {
		list[i] = s
	}
	return list
}

// fill writes tokens as other instances of the server would, n of a project, each with grants on another.
func (b *bed) fill(n int, project, other string, size int) {
	b.t.Helper()
	var t state.Txn
	for i := range n {
		id := fmt.Sprintf("t%s%06d", project[:3], i)
		rec := fmt.Sprintf(`{"id":%q,"project":%q,"created_at":"2026-01-01T00:00:00Z","label":%q,"grants":[{"project":%q,"role":"reader"}],"sha256":"%064d"}`,
			id, project, strings.Repeat("l", size), other, i)
		t.Put = append(t.Put, state.Entry{Key: "iam/token/" + id, Value: []byte(rec)})
		if len(t.Put) == 100 || i == n-1 {
			if _, err := b.store.Commit(b.t.Context(), t); err != nil {
				b.t.Fatal(err)
			}
			t = state.Txn{}
		}
	}
}

// TestRoomForOthers: a tenant can't take all the tokens that there may be.
func TestRoomForOthers(t *testing.T) {
	b := start(t, t.TempDir())
	b.project("tenant")
	b.fill(5000, "tenant", "tenant", 0)
	b.token("", api.TokenSpec{}) // and the view has them
	_, err := b.CreateToken(t.Context(), b.root("tenant"), api.TokenSpec{})
	wantCode(t, err, api.CodeQuota)
	b.token("", api.TokenSpec{})
}

// TestDeleteWithLargeTokens: what has to be rewritten may be more than a transaction takes.
func TestDeleteWithLargeTokens(t *testing.T) {
	b := start(t, t.TempDir())
	b.project("tenant")
	b.project("other")
	b.fill(300, "other", "tenant", 7<<10)
	b.token("", api.TokenSpec{})
	begun := time.Now()
	if _, err := b.DeleteProject(t.Context(), b.root(""), "tenant", none); err != nil {
		t.Errorf("DeleteProject() = %v after %s", err, time.Since(begun))
	}
}

// TestRedact: a token that was given as the name of something else doesn't get into a log.
func TestRedact(t *testing.T) {
	for given, want := range map[string]string{
		"": "", "debian": "debian", "dsec_": "dsec_", "dsec_3xlp5ny2xisecret": "dsec_3xlp5ny2xi", "a dsec_3xlp5ny2xisecret and dsec_4xlp5ny2xisecret": "a dsec_3xlp5ny2xidsec_4xlp5ny2xi",
	} {
		if got := iam.Redact(given); got != want {
			t.Errorf("Redact(%q) = %q, want %q", given, got, want)
		}
	}
}
