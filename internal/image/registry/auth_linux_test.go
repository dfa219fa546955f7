package registry_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/image/registry"
)

const (
	user   = "robot"
	secret = "s3cret-of-the-robot"
)

func as(o api.ImagePull, a api.RegistryAuth) api.ImagePull {
	o.Auth = &a
	return o
}

// TestBasicAuth pulls from a registry that wants a name and a password.
func TestBasicAuth(t *testing.T) {
	h, n := newHub(t), newNode(t, registry.Config{})
	oneLayer(h, 1000)
	h.misbehave(func(w http.ResponseWriter, r *http.Request) bool {
		if u, p, ok := r.BasicAuth(); ok && u == user && p == secret {
			return false
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="here"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
	for name, a := range map[string]api.RegistryAuth{"none": {}, "wrong": {Username: user, Password: "guessed"}} {
		_, _, err := n.pull(as(order(h, ""), a))
		wantError(t, err, api.CodeForbidden, "docker login "+h.host)
		if strings.Contains(fmt.Sprint(err), "guessed") {
			t.Errorf("%s: the password is in %v", name, err)
		}
	}
	n.mustPull(as(order(h, ""), api.RegistryAuth{Username: user, Password: secret}))
}

// guard is the token server of a registry, whose tokens are good for a few requests.
type guard struct {
	h    *hub
	mu   sync.Mutex // guards the rest
	made int
	uses map[string]int // of each token
	asks []string       // what tokens were asked for, with which credentials
}

func (g *guard) ServeHTTP(w http.ResponseWriter, r *http.Request) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if r.URL.Path == "/token" {
		_ = r.ParseForm() // a GET has no body
		u, p, _ := r.BasicAuth()
		g.asks = append(g.asks, fmt.Sprint(r.Method, " ", strings.Join(r.Form["scope"], " "), " ", u, r.PostForm.Get("refresh_token")))
		if (u != user || p != secret) && r.PostForm.Get("refresh_token") != secret {
			w.WriteHeader(http.StatusUnauthorized)
			return true
		}
		g.made++
		fmt.Fprintf(w, `{"token": "token-%d", "expires_in": 60}`, g.made)
		return true
	}
	token := r.Header.Get("Authorization")
	if g.uses[token]++; strings.HasPrefix(token, "Bearer token-") && g.uses[token] <= 4 {
		return false
	}
	scope := `,scope="repository:team/app:pull"`
	if r.URL.Path == "/v2/" {
		scope = ""
	}
	w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="https://%s/token",service="hub"%s`, g.h.host, scope))
	w.WriteHeader(http.StatusUnauthorized)
	return true
}

// TestBearerAuth pulls from a registry with a token server: the token is for this repository alone, and one that has run
// out in the middle of the pull is got anew.
func TestBearerAuth(t *testing.T) {
	for name, a := range map[string]api.RegistryAuth{
		"password": {Username: user, Password: secret}, "identity": {IdentityToken: secret},
	} {
		t.Run(name, func(t *testing.T) {
			h, n := newHub(t), newNode(t, registry.Config{})
			h.image("latest", arch, plain, pack(t, entry{"a", "1"}), pack(t, entry{"b", "2"}), pack(t, entry{"c", "3"}))
			g := &guard{h: h, uses: map[string]int{}}
			h.misbehave(g.ServeHTTP)
			n.mustPull(as(order(h, ""), a))
			if g.made < 2 {
				t.Errorf("%d tokens were made, want the first to run out", g.made)
			}
			for _, ask := range g.asks {
				if !strings.Contains(ask, " repository:team/app:pull ") || strings.Contains(ask, "push") {
					t.Errorf("asked for a token by %q", ask)
				}
			}
			_, _, err := n.pull(as(withName(order(h, ""), "no"), api.RegistryAuth{Username: user, Password: "guessed"}))
			wantError(t, err, api.CodeForbidden, "docker login")
		})
	}
}

// TestRedirect sends for layers to another host, which doesn't learn who we are.
func TestRedirect(t *testing.T) {
	t.Parallel()
	h, n := newHub(t), newNode(t, registry.Config{})
	oneLayer(h, 2<<20)
	var mu sync.Mutex
	var heard []string
	broken := false
	cdn := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		for k, v := range r.Header {
			heard = append(heard, k+": "+strings.Join(v, ","))
		}
		b := stored(h, httptest.NewRequestWithContext(r.Context(), http.MethodGet, "/v2/team/app/blobs"+r.URL.Path, nil))
		if !broken {
			broken = true
			w.Header().Set("Content-Length", fmt.Sprint(len(b)))
			_, _ = w.Write(b[:1<<20])
			panic(http.ErrAbortHandler)
		}
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", 1<<20, len(b)-1, len(b)))
		w.WriteHeader(http.StatusPartialContent)
		_, _ = w.Write(b[1<<20:])
	}))
	defer cdn.Close()
	h.misbehave(func(w http.ResponseWriter, r *http.Request) bool {
		if _, _, ok := r.BasicAuth(); !ok {
			w.Header().Set("WWW-Authenticate", `Basic realm="here"`)
			w.WriteHeader(http.StatusUnauthorized)
			return true
		}
		if isLayer(r, h) {
			http.Redirect(w, r, cdn.URL+strings.TrimPrefix(r.URL.Path, "/v2/team/app/blobs")+"?signature=abc", http.StatusTemporaryRedirect)
			return true
		}
		return false
	})
	n.mustPull(as(order(h, ""), api.RegistryAuth{Username: user, Password: secret}))
	all := strings.Join(heard, "\n")
	if strings.Contains(all, "Authorization") || !strings.Contains(all, "Range: bytes=1048576-") {
		t.Errorf("the other host has heard\n%s", all)
	}
	// What is wrong there is told without the address, whose parameters let anybody in who reads them.
	cdn.Close()
	_, _, err := n.pull(as(withName(order(h, ""), "no"), api.RegistryAuth{Username: user, Password: secret}))
	wantError(t, err, api.CodeUnavailable)
	if strings.Contains(fmt.Sprint(err), "signature") || strings.Contains(fmt.Sprint(err), secret) {
		t.Errorf("told: %v", err)
	}
}

// TestTransport is of how registries are talked to: TLS by who is vouched for, and without it only when that's said, or
// on this machine.
func TestTransport(t *testing.T) {
	t.Parallel()
	h, n := newHub(t), newNode(t, registry.Config{})
	oneLayer(h, 1000)
	o := order(h, "")
	o.CA = ""
	_, _, err := n.pull(o)
	wantError(t, err, api.CodeUnavailable, "--ca-file", "vouches")
	o.CA = "no certificate"
	_, _, err = n.pull(o)
	wantError(t, err, api.CodeInvalid, "PEM")

	clear := httptest.NewServer(h.inner)
	defer clear.Close()
	o = api.ImagePull{Reference: strings.TrimPrefix(clear.URL, "http://") + "/team/app", Name: "clear"}
	n.mustPull(o) // loopback

	for _, ref := range []string{"127.0.0.1:1/team/app", "localhost:1/team/app"} {
		_, _, err = n.pull(api.ImagePull{Reference: ref, Name: "none", RegistryAccess: api.RegistryAccess{Insecure: true}})
		wantError(t, err, api.CodeUnavailable, strings.TrimSuffix(ref, "/team/app"))
	}
	_, _, err = n.pull(api.ImagePull{Reference: "169.254.169.254/team/app", Name: "none", RegistryAccess: api.RegistryAccess{Insecure: true}})
	wantError(t, err, api.CodeForbidden, "isn't to be reached")

	only := newNode(t, registry.Config{Allow: []string{"registry.example.com"}})
	_, _, err = only.pull(order(h, ""))
	wantError(t, err, api.CodeForbidden, h.host, "--registry")
}
