package libdsec_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
)

// iamServer answers as a server does that has the project team-a with a token in it. Real ones are in test/iam.
func iamServer() *httptest.Server {
	mux := http.NewServeMux()
	tell := func(pattern string, status int, v func(r *http.Request) any) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(status)
			_ = json.NewEncoder(w).Encode(v(r)) // a client that has gone
		})
	}
	made := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	tok := api.Token{ID: "543rzm5ytm", Prefix: "dsec_543rzm5ytm", Label: "ci", Grants: []api.Grant{{Project: "team-a", Role: api.RoleReader}}, CreatedAt: made}
	tell("POST /v1/projects", 201, func(r *http.Request) any {
		var spec api.ProjectSpec
		_ = json.NewDecoder(r.Body).Decode(&spec) // it comes from an example
		return api.Project{Name: spec.Name, CreatedAt: made}
	})
	tell("GET /v1/projects", 200, func(r *http.Request) any {
		if r.URL.Query().Get("cursor") == "" {
			return api.ProjectList{Items: []api.Project{{Name: "default"}}, Cursor: "default"}
		}
		return api.ProjectList{Items: []api.Project{{Name: "team-a", CreatedAt: made}}}
	})
	tell("POST /v1/tokens", 201, func(r *http.Request) any {
		tok.Project = r.Header.Get(api.HeaderProject)
		return api.NewToken{Token: tok, Secret: tok.Prefix + "xvlmhgfcdo3aaa6br4wqj4e3pj"}
	})
	tell("DELETE /v1/tokens/543rzm5ytm", 200, func(*http.Request) any { return tok })
	tell("GET /v1/audit", 200, func(r *http.Request) any {
		return api.AuditList{Items: []api.AuditRecord{{
			Seq: 7, Time: made, Token: tok.ID, Project: "team-a", Action: "image:write", Operation: "POST /v1/images/gc",
			Decision: api.Decision(r.URL.Query().Get("decision")), Result: "forbidden",
		}}}
	})
	return httptest.NewServer(mux)
}

func iamClient() (client *libdsec.Client, done func()) {
	s := iamServer()
	c, err := libdsec.New(libdsec.WithEndpoint(s.URL, testToken))
	if err != nil {
		panic(err)
	}
	return c, func() {
		if err := c.Close(); err != nil {
			panic(err)
		}
		s.Close()
	}
}

func ExampleClient_CreateProject() {
	client, done := iamClient() // libdsec.New()
	defer done()
	ctx := context.Background()
	if _, err := client.CreateProject(ctx, api.ProjectSpec{Name: "team-a"}); err != nil && !libdsec.IsCode(err, api.CodeExists) {
		fmt.Println(err)
		return
	}
	for p, err := range client.Projects(ctx) {
		fmt.Println(p.Name, err)
	}
	// Output:
	// default <nil>
	// team-a <nil>
}

func ExampleClient_CreateToken() {
	client, done := iamClient() // libdsec.New()
	defer done()
	ctx := context.Background()
	team := client.InProject("team-a")
	defer team.Close()
	made, err := team.CreateToken(ctx, api.TokenSpec{Label: "ci", Role: api.RoleReader, ExpiresIn: new(int64(3600))})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(made.ID, "of", made.Project, "has a secret of", len(made.Secret), "characters")
	_, err = team.RevokeToken(ctx, made.Secret) // the id alone is sent
	fmt.Println(err)
	// Output:
	// 543rzm5ytm of team-a has a secret of 41 characters
	// <nil>
}

func ExampleClient_Audit() {
	client, done := iamClient() // libdsec.New()
	defer done()
	for rec, err := range client.Audit(context.Background(), api.AuditQuery{Decision: api.Deny, All: true}) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(rec.Token, rec.Action, rec.Decision, rec.Result)
	}
	// Output:
	// 543rzm5ytm image:write deny forbidden
}

// TestNamesStayInPlace: what isn't a name or an id becomes no other path.
func TestNamesStayInPlace(t *testing.T) {
	c, done := iamClient()
	defer done()
	_, get := c.Project(t.Context(), "../tokens")
	_, remove := c.DeleteProject(t.Context(), "")
	_, self := c.Token(t.Context(), "self")
	_, up := c.RevokeToken(t.Context(), "..")
	for what, err := range map[string]error{"project": get, "delete": remove, "self": self, "up": up} {
		if e, ok := errors.AsType[*api.Error](err); !ok || e.Code != api.CodeInvalid {
			t.Errorf("%s: %v", what, err)
		}
	}
}
