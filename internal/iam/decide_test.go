package iam_test

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/iam"
)

// TestDecide: what is allowed is exactly what some grant says, by a naive model.
func TestDecide(t *testing.T) {
	projects := []string{"a", "b", api.DefaultProject}
	wide := []api.Scope{api.ScopeImageWrite, api.ScopeProjectAdmin, api.ScopeNodeAdmin}
	grant := rapid.Custom(func(t *rapid.T) api.Grant {
		return api.Grant{
			Project: rapid.SampledFrom(append(projects, api.AnyProject)).Draw(t, "project"),
			Role:    rapid.SampledFrom([]api.Role{"", "", api.RoleAdmin, api.RoleDeveloper, api.RoleReader, "boss"}).Draw(t, "role"),
			Scopes:  rapid.SliceOfN(rapid.SampledFrom(append(api.Scopes(), "x", "*")), 0, 3).Draw(t, "scopes"),
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		grants := rapid.SliceOfN(grant, 0, 4).Draw(t, "grants")
		project := rapid.SampledFrom(append(projects, "c")).Draw(t, "in")
		may := iam.Decide(grants, project)
		for _, scope := range append(api.Scopes(), "x", "*", "") {
			want := false
			for _, g := range grants {
				if g.Project != api.AnyProject && g.Project != project {
					continue
				}
				for _, s := range g.Scopes {
					want = want || s == scope
				}
				for _, s := range g.Role.Scopes() {
					machine := false
					for _, w := range wide {
						machine = machine || w == s
					}
					want = want || s == scope && (!machine || g.Project == api.AnyProject)
				}
			}
			want = want && scope != "" && scope != "x" && scope != "*"
			if got := may.Holds(iam.SetOf(scope)); got != want {
				t.Fatalf("%v in %s: %q = %v, want %v", grants, project, scope, got, want)
			}
		}
	})
}

// BenchmarkAdmit is what a request costs before anything is done for it.
func BenchmarkAdmit(b *testing.B) {
	bed := start(b, b.TempDir())
	secret := bed.token("", api.TokenSpec{ExpiresIn: new(int64(3600))}).Secret
	for range 2000 {
		bed.token("", api.TokenSpec{})
	}
	for name, s := range map[string]string{"bootstrap": bed.secret, "token": secret} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				in, err := bed.Admit(b.Context(), s, "")
				if err != nil || !in.Can.Holds(iam.SetOf(api.ScopeSandboxExec)) {
					b.Fatal(fmt.Errorf("admit: %w", err))
				}
				in.Done()
			}
		})
	}
}
