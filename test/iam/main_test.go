package iam_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

func TestMain(m *testing.M) { testbed.Main(m) }

var names atomic.Int64 // projects of the shared node

// project makes a project of its own for a test, and an administrator's client that acts in it.
func project(t testing.TB, n *testbed.Node) (string, *libdsec.Client) {
	t.Helper()
	name := fmt.Sprintf("t-%d", names.Add(1))
	if _, err := n.Client.CreateProject(t.Context(), api.ProjectSpec{Name: name}); err != nil {
		t.Fatal(err)
	}
	return name, closing(t, n.Client.InProject(name))
}

func client(t testing.TB, n *testbed.Node, token string) *libdsec.Client {
	t.Helper()
	c, err := libdsec.New(libdsec.WithEndpoint(n.Endpoint, token))
	if err != nil {
		t.Fatal(err)
	}
	return closing(t, c)
}

func closing(t testing.TB, c *libdsec.Client) *libdsec.Client {
	t.Helper()
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func token(t testing.TB, admin *libdsec.Client, spec api.TokenSpec) api.NewToken {
	t.Helper()
	made, err := admin.CreateToken(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// answer is what a route said.
type answer struct {
	status int
	body   string
	code   api.Code
}

// asking is who asks: a token, in a project ("": the token's own).
type asking struct{ secret, project string }

// rest makes a request, "METHOD path".
func rest(t testing.TB, n *testbed.Node, who asking, route string) answer {
	t.Helper()
	method, path, _ := strings.Cut(route, " ")
	var body io.Reader
	if method == http.MethodPost || method == http.MethodPatch {
		body = strings.NewReader("{}")
	}
	req, err := http.NewRequestWithContext(t.Context(), method, n.Endpoint+path, body)
	if err != nil {
		t.Fatal(err)
	}
	if who.secret != "" {
		req.Header.Set("Authorization", "Bearer "+who.secret)
	}
	if who.project != "" {
		req.Header.Set(api.HeaderProject, who.project)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	var e api.Error
	_ = json.Unmarshal(raw, &e) // most answers aren't problems
	return answer{status: resp.StatusCode, body: string(raw), code: e.Code}
}

func wantCode(t testing.TB, what string, err error, code api.Code) {
	t.Helper()
	if !api.IsCode(err, code) {
		t.Errorf("%s: %v, want %s", what, err, code)
	}
}
