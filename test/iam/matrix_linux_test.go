package iam_test

import (
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/api/openapi"
	"github.com/dsec-io/dsec/internal/apiserver/iamface"
	"github.com/dsec-io/dsec/internal/iam"
	"github.com/dsec-io/dsec/test/testbed"
)

// nobody is an id that a sandbox could have and none has.
const nobody = "saaaabcdefghijklmnopqr"

// routes are all routes of REST that need a scope, as "METHOD pattern".
func routes() []string {
	face := iamface.New(iamface.Config{})
	var all []string
	for pattern := range face.Routes() {
		all = append(all, pattern)
	}
	for _, op := range openapi.Operations() {
		if path := op.Path; !op.Public && !strings.Contains(path, "/ports/") && path != "/v1/aether" {
			all = append(all, op.Method+" "+path)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// filled is a route's path with something in its places that isn't there.
func filled(path string) string {
	path = strings.Replace(path, "/sandboxes/{id}", "/sandboxes/"+nobody, 1)
	return regexp.MustCompile(`\{[a-z.]+\}`).ReplaceAllString(path, "zzzz")
}

// TestRolesAndRoutes: for tokens of any grants, on any route, the node's answer is a refusal exactly where no grant says
// that it's allowed.
func TestRolesAndRoutes(t *testing.T) {
	n := testbed.Shared(t)
	name, admin := project(t, n)
	other, _ := project(t, n)
	all, face := routes(), iamface.New(iamface.Config{})
	if len(all) < 35 {
		t.Fatalf("%d routes: %v", len(all), all)
	}
	rapid.Check(t, func(rt *rapid.T) {
		grants := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) api.Grant {
			g := api.Grant{
				Project: rapid.SampledFrom([]string{name, name, other, api.AnyProject}).Draw(rt, "project"),
				Role:    rapid.SampledFrom([]api.Role{"", api.RoleAdmin, api.RoleDeveloper, api.RoleReader}).Draw(rt, "role"),
				Scopes:  rapid.SliceOfN(rapid.SampledFrom(api.Scopes()), 0, 3).Draw(rt, "scopes"),
			}
			if g.Role == "" && len(g.Scopes) == 0 {
				g.Scopes = []api.Scope{api.ScopeSandboxRead}
			}
			return g
		}), 1, 3).Draw(rt, "grants")
		made, err := admin.CreateToken(t.Context(), api.TokenSpec{Grants: grants})
		if err != nil {
			rt.Fatalf("create: %v", err)
		}
		defer admin.RevokeToken(t.Context(), made.ID) //nolint:errcheck // it's one of many
		may := iam.Decide(grants, name)
		for range 12 {
			route := rapid.SampledFrom(all).Draw(rt, "route")
			method, path, _ := strings.Cut(route, " ")
			need, known := face.Need(route)
			if !known {
				rt.Fatalf("route %s has no scope", route)
			}
			principal := iam.Principal{Token: made.ID, Project: name, Can: may}
			refused := need.Allow(principal) != nil || may == 0
			a := rest(t, n, asking{secret: made.Secret}, method+" "+filled(path))
			if got := a.status == http.StatusForbidden; got != refused && (refused || !inHandler(route)) {
				rt.Fatalf("grants %v: %s = %d %s, refused should be %v", grants, route, a.status, a.body, refused)
			}
		}
	})
}

// inHandler are routes that may refuse what the scope allows: a project is made by who may do so in every project, and a
// token can be given only what its maker has.
func inHandler(route string) bool {
	return route == "POST /v1/projects" || route == "POST /v1/tokens"
}

// TestRoles holds the roles to what the documentation says of them, by hand.
func TestRoles(t *testing.T) {
	n := testbed.Shared(t)
	_, admin := project(t, n)
	const sb = "/v1/sandboxes/" + nobody
	for role, tc := range map[api.Role]struct{ may, mayNot []string }{
		api.RoleReader: {
			[]string{"GET /v1/sandboxes", "GET " + sb, "GET " + sb + "/logs", "GET /v1/images", "GET /v1/tokens/self"},
			[]string{
				"POST /v1/sandboxes", "DELETE " + sb, "POST " + sb + "/exec", "POST " + sb + "/processes", "GET " + sb + "/files?path=/", "PUT " + sb + "/files?path=/x",
				"POST /v1/images/gc", "GET /v1/tokens", "POST /v1/tokens", "POST /v1/projects", "GET /v1/audit", "GET " + sb + "/ports/80/", "GET " + sb + "/processes/p/attach",
			},
		},
		api.RoleDeveloper: {
			[]string{"POST /v1/sandboxes", "DELETE " + sb, "POST " + sb + "/exec", "PUT " + sb + "/files?path=/x", "GET /v1/images", "GET /v1/audit", "GET " + sb + "/ports/80/"},
			[]string{"POST /v1/images/gc", "DELETE /v1/images/zzzz", "POST /v1/images?name=x", "GET /v1/tokens", "POST /v1/tokens", "DELETE /v1/tokens/zzzz", "POST /v1/projects", "DELETE /v1/projects/zzzz"},
		},
		api.RoleAdmin: {
			[]string{"POST " + sb + "/exec", "GET /v1/tokens", "GET /v1/audit"},
			[]string{"POST /v1/images/gc", "DELETE /v1/images/zzzz", "POST /v1/projects", "DELETE /v1/projects/zzzz", "GET /v1/audit?all=1", "GET /v1/tokens?all=1"},
		},
	} {
		t.Run(string(role), func(t *testing.T) {
			secret := token(t, admin, api.TokenSpec{Role: role}).Secret
			for want, list := range map[bool][]string{true: tc.may, false: tc.mayNot} {
				for _, route := range list {
					method, path, _ := strings.Cut(route, " ")
					if a := rest(t, n, asking{secret: secret}, method+" "+path); (a.code != api.CodeForbidden) != want || a.status == 401 {
						t.Errorf("%s = %d %s, allowed should be %v", route, a.status, a.body, want)
					}
				}
			}
		})
	}
}

// TestForeignIsUnknown: whatever is asked of a sandbox of another project, the answer is that of one that there isn't.
func TestForeignIsUnknown(t *testing.T) {
	n := testbed.Shared(t)
	_, theirs := project(t, n)
	_, mine := project(t, n)
	sb, err := theirs.Create(t.Context(), api.Spec{Image: "busybox"})
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Stop(t.Context()) //nolint:errcheck // the node ends anyway
	secret := token(t, mine, api.TokenSpec{Role: api.RoleAdmin}).Secret
	request := regexp.MustCompile(`"request_id":"[^"]*"`)
	for _, route := range routes() {
		method, path, _ := strings.Cut(route, " ")
		if !strings.Contains(path, "/sandboxes/{id}") {
			continue
		}
		unknown := rest(t, n, asking{secret: secret}, method+" "+filled(path))
		foreign := rest(t, n, asking{secret: secret}, method+" "+strings.Replace(filled(path), nobody, sb.ID(), 1))
		same := request.ReplaceAllString(strings.ReplaceAll(foreign.body, sb.ID(), nobody), "") == request.ReplaceAllString(unknown.body, "")
		if foreign.status != unknown.status || !same || foreign.status < 400 {
			t.Errorf("%s: foreign %d %s, unknown %d %s", route, foreign.status, foreign.body, unknown.status, unknown.body)
		}
	}
	if info, err := sb.Refresh(t.Context()); err != nil || info.State != api.StateRunning {
		t.Errorf("the sandbox is %s, %v", info.State, err)
	}
}

// TestProjectsEndToEnd: a project's sandbox works like any other, its audit names who did what, and the project can't be
// deleted while it lives.
func TestProjectsEndToEnd(t *testing.T) {
	n := testbed.Shared(t)
	name, admin := project(t, n)
	made := token(t, admin, api.TokenSpec{Label: "trainer"})
	c := client(t, n, made.Secret)
	sb, err := c.Create(t.Context(), api.Spec{Image: "busybox"})
	if err != nil {
		t.Fatal(err)
	}
	if got := testbed.Output(t, sb, "echo hi"); got != "hi" || sb.Info().Project != name {
		t.Errorf("%q in project %q", got, sb.Info().Project)
	}
	_, err = n.Client.DeleteProject(t.Context(), name)
	wantCode(t, "deletion of a project with a sandbox", err, api.CodeConflict)
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	var did []string
	for rec, err := range sb.Audit(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if rec.Token != made.ID || rec.Project != name || rec.Decision != api.Allow || rec.Result != "ok" {
			t.Errorf("record %+v", rec)
		}
		did = append(did, rec.Action)
	}
	if want := []string{"sandbox:write", "sandbox:exec", "sandbox:write"}; !slices.Equal(did, want) {
		t.Errorf("the audit of the sandbox: %v, want %v", did, want)
	}
	done, err := n.Client.DeleteProject(t.Context(), name)
	if err != nil || done.RevokedTokens != 1 {
		t.Errorf("Delete() = %+v, %v", done, err)
	}
	_, err = c.Get(t.Context(), sb.ID())
	wantCode(t, "a token of a deleted project", err, api.CodeUnauthenticated)
}
