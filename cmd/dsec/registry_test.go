package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dsec-io/dsec/api"
)

// registryServer answers pulls and pushes, and remembers what it was asked for.
func registryServer(t *testing.T, pull *api.ImagePull, push *api.ImagePush) []string {
	t.Helper()
	mux := http.NewServeMux()
	send := func(w http.ResponseWriter, ev api.ImageEvent) {
		if err := json.NewEncoder(w).Encode(ev); err != nil {
			t.Error(err)
		}
	}
	mux.HandleFunc("POST /v1/images/pull", func(w http.ResponseWriter, r *http.Request) {
		*pull = api.ImagePull{}
		if err := json.NewDecoder(r.Body).Decode(pull); err != nil {
			t.Error(err)
		}
		send(w, api.ImageEvent{Type: "progress", Phase: "downloading", Bytes: 1, Total: 2, Warning: "blob sha256:ab: it broke"})
		if strings.Contains(pull.Reference, "/closed") {
			e := api.FieldError(api.CodeForbidden, "reference", "`docker login`", "doesn't let us")
			send(w, api.ImageEvent{Type: "error", Error: e})
			return
		}
		send(w, api.ImageEvent{Type: "done", UpToDate: strings.Contains(pull.Reference, "/same"), Image: &api.Image{
			Name: "app", Source: &api.ImageSource{Reference: pull.Reference, Platform: "linux/amd64"},
		}})
	})
	mux.HandleFunc("POST /v1/images/{name}/push", func(w http.ResponseWriter, r *http.Request) {
		*push = api.ImagePush{}
		if err := json.NewDecoder(r.Body).Decode(push); err != nil {
			t.Error(err)
		}
		send(w, api.ImageEvent{Type: "done", Pushed: &api.ImagePushed{Reference: push.Reference, Digest: "sha256:cd", SizeBytes: 5}})
	})
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	return []string{"DSEC_ENDPOINT=" + srv.URL, "DSEC_TOKEN=t", "HOME=" + t.TempDir(), "TERM=dumb"}
}

func TestRegistryCommands(t *testing.T) {
	var pull api.ImagePull
	var push api.ImagePush
	env := registryServer(t, &pull, &push)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, []byte("certificates"), 0o600); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]struct {
		code      int
		out, errs string // parts
		sent      any
	}{
		"pull registry.example.com/team/app": {
			0, "app\n", "registry.example.com/team/app:latest: blob sha256:ab: it broke\n",
			api.ImagePull{Reference: "registry.example.com/team/app:latest"},
		},
		"pull -n mine --platform linux/arm64 --replace --squash --insecure --ca-file " + ca + " localhost:5000/app:1": {
			0, "app\n", "",
			api.ImagePull{
				Reference: "localhost:5000/app:1", Name: "mine", Platform: "linux/arm64", Replace: true, Squash: true,
				RegistryAccess: api.RegistryAccess{Insecure: true, CA: "certificates"},
			},
		},
		"pull localhost:5000/same":          {0, "app\n", "app is up to date\n", nil},
		"pull -o json localhost:5000/same":  {0, `"platform": "linux/amd64"`, "", nil},
		"pull localhost:5000/closed":        {125, "", "hint: `docker login`", nil},
		"pull app:1.2":                      {125, "", "registry.example.com/app:1.2", nil},
		"pull":                              {125, "", "REFERENCE is missing", nil},
		"pull --ca-file /none localhost/a":  {125, "", "no such file", nil},
		"push app localhost:5000/team/app":  {0, "localhost:5000/team/app@sha256:cd\n", "", api.ImagePush{Reference: "localhost:5000/team/app:latest"}},
		"push -o json app localhost/team/a": {0, `"size_bytes": 5`, "", nil},
		"push --mount-from team/base app localhost/team/a:2": {
			0, "localhost/team/a@sha256:cd\n", "", api.ImagePush{Reference: "localhost/team/a:2", MountFrom: "team/base"},
		},
		"push app":   {125, "", "REFERENCE is missing", nil},
		"push app a": {125, "", "doesn't say which registry", nil},
	} {
		t.Run(strings.ReplaceAll(strings.ReplaceAll(line, ca, "ca.pem"), "/", ":"), func(t *testing.T) {
			var out, errs strings.Builder
			code := run(t.Context(), append([]string{"image"}, strings.Fields(line)...), env, strings.NewReader(""), &out, &errs)
			if code != want.code || !strings.Contains(out.String(), want.out) || !strings.Contains(errs.String(), want.errs) {
				t.Errorf("exit code %d, stdout %q, stderr %q; want %d, %q, %q", code, out.String(), errs.String(), want.code, want.out, want.errs)
			}
			var sent any = pull
			if _, pushed := want.sent.(api.ImagePush); pushed {
				sent = push
			}
			if want.sent != nil && !cmp.Equal(want.sent, sent) {
				t.Errorf("the server got (-want +got):\n%s", cmp.Diff(want.sent, sent))
			}
		})
	}
}

// TestCredentials takes who we are from where docker and podman have it, for the registry that is talked to and no other.
func TestCredentials(t *testing.T) {
	var pull api.ImagePull
	var push api.ImagePush
	env := registryServer(t, &pull, &push)
	bin, configs := t.TempDir(), t.TempDir()
	const helper = "#!/bin/sh\nread host\n[ \"$host\" = helped.example.com ] || { echo 'credentials not found in native keychain'; exit 1; }\n" +
		"echo '{\"ServerURL\":\"x\",\"Username\":\"robot\",\"Secret\":\"from-the-helper\"}'\n"
	if err := os.WriteFile(filepath.Join(bin, "docker-credential-test"), []byte(helper), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	basic := base64.StdEncoding.EncodeToString([]byte("me:pass:word"))
	write := func(path, text string) string {
		path = filepath.Join(configs, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("docker/config.json", fmt.Sprintf(`{
		"auths": {"basic.example.com": {"auth": %q}, "identity.example.com": {"identitytoken": "a-token"}, "basic.example.com/own/repo": {"username": "owner", "password": "p"}},
		"credHelpers": {"helped.example.com": "test", "broken.example.com": "is-not-there"}
	}`, basic))
	podman := write("auth.json", fmt.Sprintf(`{"auths": {"basic.example.com": {"auth": %q}}}`, basic))
	damaged := write("damaged/config.json", "{")
	docker := "DOCKER_CONFIG=" + filepath.Join(configs, "docker")
	for name, tc := range map[string]struct {
		env, ref string
		want     *api.RegistryAuth
		errs     string
	}{
		"nothing":      {"", "basic.example.com/a", nil, ""},
		"basic":        {docker, "basic.example.com/a", &api.RegistryAuth{Username: "me", Password: "pass:word"}, ""},
		"repository":   {docker, "basic.example.com/own/repo", &api.RegistryAuth{Username: "owner", Password: "p"}, ""},
		"identity":     {docker, "identity.example.com/a", &api.RegistryAuth{IdentityToken: "a-token"}, ""},
		"helper":       {docker, "helped.example.com/a", &api.RegistryAuth{Username: "robot", Password: "from-the-helper"}, ""},
		"another":      {docker, "other.example.com/a", nil, ""},
		"another-port": {docker, "basic.example.com:5000/a", nil, ""},
		"no-helper":    {docker, "broken.example.com/a", nil, "docker login broken.example.com"},
		"podman":       {"REGISTRY_AUTH_FILE=" + podman, "basic.example.com/a", &api.RegistryAuth{Username: "me", Password: "pass:word"}, ""},
		"damaged":      {"DOCKER_CONFIG=" + filepath.Dir(damaged), "basic.example.com/a", nil, "docker's configuration"},
	} {
		t.Run(name, func(t *testing.T) {
			pull = api.ImagePull{}
			var out, errs strings.Builder
			code := run(t.Context(), []string{"image", "pull", tc.ref}, append(env, tc.env), strings.NewReader(""), &out, &errs)
			if (code == 0) != (tc.errs == "") || !strings.Contains(errs.String(), tc.errs) {
				t.Errorf("exit code %d, stderr %q, want %q", code, errs.String(), tc.errs)
			}
			if !cmp.Equal(tc.want, pull.Auth) {
				t.Error("other credentials were sent")
			}
		})
	}
}
