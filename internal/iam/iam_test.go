package iam_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/iam"
	"github.com/dsec-io/dsec/internal/state"
)

// TestMain looks for goroutines that outlive what started them.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bed is an authority over a real store.
type bed struct {
	*iam.Authority
	t      testing.TB
	dir    string
	secret string // the bootstrap token
	store  *state.Store
}

func start(t testing.TB, dir string) *bed {
	t.Helper()
	b := &bed{t: t, dir: dir}
	file := filepath.Join(dir, "tokens.json")
	var err error
	if b.secret, err = iam.EnsureToken(file, read(dir)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "secret"), []byte(b.secret), 0o600); err != nil {
		t.Fatal(err)
	}
	boot, err := iam.ReadBootstrap(file)
	if err != nil {
		t.Fatal(err)
	}
	b.store = state.New(state.Config{DataDir: filepath.Join(dir, "etcd"), SocketDir: filepath.Join(dir, "run")})
	if b.Authority, err = iam.New(iam.Config{Store: b.store, Bootstrap: boot}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.stop)
	return b
}

func read(dir string) string {
	b, _ := os.ReadFile(filepath.Join(dir, "secret"))
	return string(b)
}

func (b *bed) stop() {
	if b.Authority == nil {
		return
	}
	if err := errors.Join(b.Close(), b.store.Close()); err != nil {
		b.t.Errorf("Close() = %v", err)
	}
	b.Authority = nil
}

func (b *bed) admit(secret, project string) iam.Admission {
	b.t.Helper()
	in, err := b.Admit(b.t.Context(), secret, project)
	if err != nil {
		b.t.Fatalf("Admit() = %v", err)
	}
	b.t.Cleanup(in.Done)
	return in
}

// root is the bootstrap token in a project.
func (b *bed) root(project string) iam.Principal {
	b.t.Helper()
	in, err := b.Admit(b.t.Context(), b.secret, project)
	if err != nil {
		b.t.Fatalf("Admit() = %v", err)
	}
	in.Done()
	return in.Principal
}

func (b *bed) project(name string) {
	b.t.Helper()
	if _, err := b.CreateProject(b.t.Context(), b.root(""), api.ProjectSpec{Name: name}); err != nil {
		b.t.Fatalf("CreateProject(%s) = %v", name, err)
	}
}

func (b *bed) token(project string, spec api.TokenSpec) api.NewToken {
	b.t.Helper()
	made, err := b.CreateToken(b.t.Context(), b.root(project), spec)
	if err != nil {
		b.t.Fatalf("CreateToken() = %v", err)
	}
	return made
}

func none(context.Context) (int, error) { return 0, nil }

func wantCode(t testing.TB, err error, code api.Code) {
	t.Helper()
	if !api.IsCode(err, code) {
		t.Errorf("error %v, want %s", err, code)
	}
}

// TestBootstrapNeedsNoStore: the server's own token works without the store, and strangers don't make it open.
func TestBootstrapNeedsNoStore(t *testing.T) {
	b := start(t, t.TempDir())
	in := b.admit(b.secret, "")
	if in.Project != api.DefaultProject || !in.Can.Holds(iam.SetOf(api.Scopes()...)) {
		t.Errorf("admission %+v", in.Principal)
	}
	_, err := b.Admit(t.Context(), "dsec_unknown", "")
	wantCode(t, err, api.CodeUnauthenticated)
	if _, err := b.ListTokens(t.Context(), in.Principal, iam.TokenQuery{Limit: 10}); err != nil {
		t.Error(err)
	}
	if b.store.Opened() {
		t.Error("the store was opened")
	}
	if again, err := iam.EnsureToken(filepath.Join(b.dir, "tokens.json"), b.secret); err != nil || again != b.secret {
		t.Errorf("EnsureToken() = %q, %v", again, err)
	}
	_, err = b.RevokeToken(t.Context(), in.Principal, in.Token)
	wantCode(t, err, api.CodeConflict)
}

// TestTokenLife: made, used, listed, found by a beginning, revoked; and never kept in the clear.
func TestTokenLife(t *testing.T) {
	dir := t.TempDir()
	b := start(t, dir)
	made := b.token("", api.TokenSpec{Label: "ci", Role: api.RoleReader})
	if !strings.HasPrefix(made.Secret, "dsec_"+made.ID) || len(made.Secret) < len("dsec_")+10+26 {
		t.Errorf("secret %q of id %q", made.Secret, made.ID)
	}
	if in := b.admit(made.Secret, ""); in.Token != made.ID || in.Can != iam.SetOf(api.RoleReader.Scopes()...) {
		t.Errorf("admission %+v", in.Principal)
	}
	for _, name := range []string{made.ID, made.ID[:4], made.Prefix, made.Secret} {
		got, err := b.GetToken(t.Context(), b.root(""), name)
		if err != nil || got.ID != made.ID || got.LastUsedAt.IsZero() {
			t.Errorf("GetToken(%s) = %+v, %v", name, got, err)
		}
	}
	list, err := b.ListTokens(t.Context(), b.root(""), iam.TokenQuery{Prefix: made.Prefix[:8], Limit: 10})
	if err != nil || len(list.Items) != 1 {
		t.Errorf("ListTokens() = %+v, %v", list, err)
	}
	if _, err := b.RevokeToken(t.Context(), b.root(""), made.ID); err != nil {
		t.Fatal(err)
	}
	_, err = b.Admit(t.Context(), made.Secret, "")
	wantCode(t, err, api.CodeUnauthenticated)
	_, err = b.RevokeToken(t.Context(), b.root(""), made.ID)
	wantCode(t, err, api.CodeNotFound)
	b.stop()
	err = filepath.WalkDir(filepath.Join(dir, "etcd"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		raw, err := os.ReadFile(path)
		if strings.Contains(string(raw), made.Secret[len(made.Prefix):]) {
			t.Errorf("%s holds a secret", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestRestart: what there was is there again, with its last use; what was revoked isn't.
func TestRestart(t *testing.T) {
	dir := t.TempDir()
	b := start(t, dir)
	b.project("team")
	kept, gone := b.token("team", api.TokenSpec{}), b.token("team", api.TokenSpec{})
	b.admit(kept.Secret, "").Done()
	if _, err := b.RevokeToken(t.Context(), b.root("team"), gone.ID); err != nil {
		t.Fatal(err)
	}
	b.stop()
	b = start(t, dir)
	if in := b.admit(kept.Secret, ""); in.Project != "team" {
		t.Errorf("admission %+v", in.Principal)
	}
	_, err := b.Admit(t.Context(), gone.Secret, "")
	wantCode(t, err, api.CodeUnauthenticated)
	if got, err := b.GetToken(t.Context(), b.root("team"), kept.ID); err != nil || got.LastUsedAt.IsZero() {
		t.Errorf("GetToken() = %+v, %v", got, err)
	}
}

// TestRevokeEndsRequests: when the revocation has answered, the open requests have been told why.
func TestRevokeEndsRequests(t *testing.T) {
	b := start(t, t.TempDir())
	made, other := b.token("", api.TokenSpec{}), b.token("", api.TokenSpec{})
	var open []iam.Admission
	for range 3 {
		open = append(open, b.admit(made.Secret, ""))
	}
	bystander := b.admit(other.Secret, "")
	if _, err := b.RevokeToken(t.Context(), b.root(""), made.ID); err != nil {
		t.Fatal(err)
	}
	for _, in := range open {
		wantCode(t, context.Cause(in.Ctx), api.CodeUnauthenticated)
	}
	if bystander.Ctx.Err() != nil {
		t.Error("another token's request was ended")
	}
}

// TestExpiry: an expired token isn't accepted, and open requests end when it expires.
func TestExpiry(t *testing.T) {
	b := start(t, t.TempDir())
	made := b.token("", api.TokenSpec{ExpiresIn: new(int64(1))})
	in, err := b.Admit(t.Context(), made.Secret, "")
	if err == nil {
		defer in.Done()
		select {
		case <-in.Ctx.Done():
			wantCode(t, context.Cause(in.Ctx), api.CodeUnauthenticated)
		case <-time.After(time.Minute):
			t.Error("the request goes on")
		}
	}
	_, err = b.Admit(t.Context(), made.Secret, "")
	wantCode(t, err, api.CodeUnauthenticated)
	if got, err := b.GetToken(t.Context(), b.root(""), made.ID); err != nil || !got.Expired {
		t.Errorf("GetToken() = %+v, %v", got, err)
	}
	for _, bad := range []int64{0, -1, 1 << 60} {
		_, err := b.CreateToken(t.Context(), b.root(""), api.TokenSpec{ExpiresIn: &bad})
		wantCode(t, err, api.CodeInvalid)
	}
}

// TestNobodyGivesMore: a token can't make one that may do what it may not, wherever.
func TestNobodyGivesMore(t *testing.T) {
	b := start(t, t.TempDir())
	b.project("a")
	b.project("b")
	admin := b.token("a", api.TokenSpec{Role: api.RoleAdmin})
	p := b.admit(admin.Secret, "").Principal
	for name, spec := range map[string]api.TokenSpec{
		"machine-wide":    {Scopes: []api.Scope{api.ScopeImageWrite}},
		"everywhere":      {Grants: []api.Grant{{Project: api.AnyProject, Role: api.RoleReader}}},
		"another-project": {Grants: []api.Grant{{Project: "b", Role: api.RoleReader}}},
		"unknown-project": {Grants: []api.Grant{{Project: "c", Role: api.RoleReader}}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := b.CreateToken(t.Context(), p, spec)
			wantCode(t, err, api.CodeForbidden)
		})
	}
	if _, err := b.CreateToken(t.Context(), p, api.TokenSpec{Role: api.RoleDeveloper}); err != nil {
		t.Errorf("what it has: %v", err)
	}
	dev := b.token("a", api.TokenSpec{})
	_, err := b.CreateToken(t.Context(), b.admit(dev.Secret, "").Principal, api.TokenSpec{})
	wantCode(t, err, api.CodeForbidden)
	_, err = b.Admit(t.Context(), admin.Secret, "b")
	wantCode(t, err, api.CodeForbidden)
	_, missing := b.Admit(t.Context(), admin.Secret, "nowhere")
	wantCode(t, missing, api.CodeForbidden) // a project that isn't there looks the same
	for name, spec := range map[string]api.TokenSpec{
		"role":    {Role: "boss"},
		"scope":   {Scopes: []api.Scope{"sandbox:fly"}},
		"nothing": {Grants: []api.Grant{{Project: "a"}}},
		"name":    {Grants: []api.Grant{{Project: "A!", Role: api.RoleReader}}},
		"label":   {Label: strings.Repeat("x", 101)},
		"secret":  {Label: admin.Secret},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := b.CreateToken(t.Context(), b.root("a"), spec)
			wantCode(t, err, api.CodeInvalid)
			e, _ := errors.AsType[*api.Error](err)
			fields := map[string]string{"role": "role", "scope": "scopes", "nothing": "grants[0]", "name": "grants[0].project"}
			if want := fields[name]; want != "" && (e == nil || e.Field != want) {
				t.Errorf("field of %v, want %s", err, want)
			}
		})
	}
}

// TestForeignTokens: tokens of another project aren't there.
func TestForeignTokens(t *testing.T) {
	b := start(t, t.TempDir())
	b.project("a")
	b.project("b")
	mine, theirs := b.token("a", api.TokenSpec{Role: api.RoleAdmin}), b.token("b", api.TokenSpec{})
	p := b.admit(mine.Secret, "").Principal
	_, foreign := b.GetToken(t.Context(), p, theirs.ID)
	_, unknown := b.GetToken(t.Context(), p, "zzzzzzzzzz")
	if !api.IsCode(foreign, api.CodeNotFound) || strings.ReplaceAll(foreign.Error(), theirs.ID, "zzzzzzzzzz") != unknown.Error() {
		t.Errorf("a foreign token: %v; an unknown one: %v", foreign, unknown)
	}
	_, err := b.RevokeToken(t.Context(), p, theirs.ID)
	wantCode(t, err, api.CodeNotFound)
	if got, err := b.GetToken(t.Context(), b.root(""), theirs.Secret); err != nil || got.ID != theirs.ID {
		t.Errorf("who may administer all: %+v, %v", got, err)
	}
	if list, err := b.ListTokens(t.Context(), p, iam.TokenQuery{Limit: 10}); err != nil || len(list.Items) != 1 {
		t.Errorf("ListTokens() = %+v, %v", list, err)
	}
	_, err = b.GetProject(t.Context(), p, "b")
	wantCode(t, err, api.CodeNotFound)
	if list, err := b.ListProjects(t.Context(), p, "", 10); err != nil || len(list.Items) != 1 || list.Items[0].Name != "a" {
		t.Errorf("ListProjects() = %+v, %v", list, err)
	}
}

// TestDeleteProject: not while sandboxes live; then its tokens go, and the grants on it that others have.
func TestDeleteProject(t *testing.T) {
	b := start(t, t.TempDir())
	b.project("a")
	b.project("b")
	inside := b.token("a", api.TokenSpec{})
	both := b.token("b", api.TokenSpec{Role: api.RoleReader, Grants: []api.Grant{{Project: "a", Role: api.RoleReader}}})
	b.admit(both.Secret, "a").Done()
	_, err := b.DeleteProject(t.Context(), b.root(""), "a", func(context.Context) (int, error) { return 3, nil })
	wantCode(t, err, api.CodeConflict)
	open := b.admit(inside.Secret, "")
	go func() { <-open.Ctx.Done(); open.Done() }()
	done, err := b.DeleteProject(t.Context(), b.root(""), "a", none)
	if err != nil || done.RevokedTokens != 1 {
		t.Fatalf("DeleteProject() = %+v, %v", done, err)
	}
	if open.Ctx.Err() == nil {
		t.Error("an open request goes on")
	}
	_, err = b.Admit(t.Context(), inside.Secret, "")
	wantCode(t, err, api.CodeUnauthenticated)
	_, err = b.Admit(t.Context(), both.Secret, "a")
	wantCode(t, err, api.CodeForbidden)
	b.admit(both.Secret, "").Done()
	_, err = b.CreateProject(t.Context(), b.root(""), api.ProjectSpec{Name: "a"})
	wantCode(t, err, api.CodeConflict) // the name rests
	for _, name := range []string{"a", "nowhere"} {
		_, err = b.DeleteProject(t.Context(), b.root(""), name, none)
		wantCode(t, err, api.CodeNotFound)
	}
	_, err = b.DeleteProject(t.Context(), b.root(""), api.DefaultProject, none)
	wantCode(t, err, api.CodeConflict)
}

// TestDeleteRace: what was let in before the deletion and makes a sandbox meanwhile makes the deletion fail, and the
// project lives on.
func TestDeleteRace(t *testing.T) {
	b := start(t, t.TempDir())
	b.project("a")
	made := b.token("a", api.TokenSpec{})
	open := b.admit(made.Secret, "")
	counted := 0
	living := func(context.Context) (int, error) {
		counted++
		if counted == 1 {
			go func() { <-open.Ctx.Done(); open.Done() }()
			return 0, nil
		}
		if open.Ctx.Err() == nil {
			t.Error("counted again while a request is open")
		}
		return 1, nil
	}
	_, err := b.DeleteProject(t.Context(), b.root(""), "a", living)
	wantCode(t, err, api.CodeConflict)
	if counted != 2 {
		t.Errorf("counted %d times", counted)
	}
	b.admit(made.Secret, "").Done()
}

// TestNames: case 66 for projects.
func TestNames(t *testing.T) {
	b := start(t, t.TempDir())
	for _, bad := range []string{"", "A", "1a", "-a", "a_b", "a.b", "a/b", "../a", "ä", "a b", strings.Repeat("a", 64), "a\x00", "*"} {
		_, err := b.CreateProject(t.Context(), b.root(""), api.ProjectSpec{Name: bad})
		if e, ok := errors.AsType[*api.Error](err); !ok || e.Code != api.CodeInvalid || e.Field != "name" || e.Hint == "" {
			t.Errorf("CreateProject(%q) = %v", bad, err)
		}
	}
	for _, good := range []string{"a", "a-1", strings.Repeat("a", 63)} {
		b.project(good)
		_, err := b.CreateProject(t.Context(), b.root(""), api.ProjectSpec{Name: good})
		wantCode(t, err, api.CodeExists)
	}
	_, err := b.CreateProject(t.Context(), b.root(""), api.ProjectSpec{Name: api.DefaultProject})
	wantCode(t, err, api.CodeExists)
}

// TestManyTokensAtOnce: each is accepted as soon as it was answered, and revoked ones are refused, however many there are.
func TestManyTokensAtOnce(t *testing.T) {
	b := start(t, t.TempDir())
	root := b.root("")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 10 {
				made, err := b.CreateToken(t.Context(), root, api.TokenSpec{})
				if err != nil {
					t.Errorf("CreateToken() = %v", err)
					return
				}
				in, err := b.Admit(t.Context(), made.Secret, "")
				if err != nil {
					t.Errorf("a new token: %v", err)
					return
				}
				in.Done()
				if i%2 == 0 {
					continue
				}
				if _, err := b.RevokeToken(t.Context(), root, made.ID); err != nil {
					t.Errorf("RevokeToken() = %v", err)
				}
				if _, err := b.Admit(t.Context(), made.Secret, ""); !api.IsCode(err, api.CodeUnauthenticated) {
					t.Errorf("a revoked token: %v", err)
				}
			}
		})
	}
	wg.Wait()
	list, err := b.ListTokens(t.Context(), root, iam.TokenQuery{Limit: 1000})
	if err != nil || len(list.Items) != 41 {
		t.Errorf("%d tokens are left, %v, want 40 and the server's own", len(list.Items), err)
	}
}
