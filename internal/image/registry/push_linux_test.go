package registry_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/image/registry"
)

// TestPush sends an image and pulls it again: it is the same, with its settings. A second push sends nothing.
func TestPush(t *testing.T) {
	h, n := newHub(t), newNode(t, registry.Config{})
	h.image("latest", arch, gz, pack(t, entry{"bin/", ""}, entry{"bin/sh", noise(400_000)}), pack(t, entry{"bin/.wh.none", ""}, entry{"b", "2"}))
	first, _ := n.mustPull(order(h, ""))
	to := api.ImagePush{Reference: h.host + "/team/made:v1", RegistryAccess: api.RegistryAccess{CA: h.ca}}

	phases := map[string]bool{}
	done, err := n.remote.Push(t.Context(), "app", to, func(ev api.ImageEvent) { phases[ev.Phase] = true })
	if err != nil {
		t.Fatal(err)
	}
	if done.Reference != to.Reference || done.SizeBytes < 400_000 || !phases["packing"] || !phases["uploading"] {
		t.Errorf("pushed %+v, told of %v", done, phases)
	}
	back, _ := n.mustPull(api.ImagePull{Reference: to.Reference, Name: "back", RegistryAccess: to.RegistryAccess})
	want := *first.Image
	want.Name, want.CreatedAt = "back", back.Image.CreatedAt
	want.Source = &api.ImageSource{Reference: to.Reference, Digest: done.Digest, Manifest: done.Digest, Platform: "linux/" + arch, Created: first.Image.Source.Created}
	if diff := cmp.Diff(want, *back.Image); diff != "" {
		t.Errorf("pulled again (-want +got):\n%s", diff)
	}

	h.misbehave(nil)
	again, err := n.remote.Push(t.Context(), "app", to, nil)
	if err != nil || again != done {
		t.Errorf("pushed again %+v, want %+v, %v", again, done, err)
	}
	for _, method := range []string{"POST ", "PATCH "} {
		if got := h.asked(method); len(got) > 0 {
			t.Errorf("sent again by %q", got)
		}
	}
	if got := n.left(); !cmp.Equal(got, []string{"app", "back"}) {
		t.Errorf("in the store: %q", got)
	}
}

// TestPushMounts has the registry take the layer from another repository.
func TestPushMounts(t *testing.T) {
	h, n := newHub(t), newNode(t, registry.Config{})
	h.image("latest", arch, gz, pack(t, entry{"a", noise(100_000)}))
	n.mustPull(order(h, ""))
	access := api.RegistryAccess{CA: h.ca}
	if _, err := n.remote.Push(t.Context(), "app", api.ImagePush{Reference: h.host + "/team/one", RegistryAccess: access}, nil); err != nil {
		t.Fatal(err)
	}
	mounted := []string{}
	h.misbehave(func(w http.ResponseWriter, r *http.Request) bool {
		switch {
		case r.Method == http.MethodHead && strings.Contains(r.URL.Path, "/two/blobs/"):
			w.WriteHeader(http.StatusNotFound) // each repository has its own
		case r.URL.Query().Get("mount") != "":
			mounted = append(mounted, r.URL.Query().Get("from"))
			w.WriteHeader(http.StatusCreated)
		default:
			return false
		}
		return true
	})
	if _, err := n.remote.Push(t.Context(), "app", api.ImagePush{Reference: h.host + "/team/two", MountFrom: "team/one", RegistryAccess: access}, nil); err != nil {
		t.Fatal(err)
	}
	if !cmp.Equal(mounted, []string{"team/one"}) || len(h.asked("PATCH ")) > 1 { // the configuration is sent
		t.Errorf("mounted from %q, sent by %q", mounted, h.asked("PATCH "))
	}
}

// TestPushRefusals is of pushes that can't be.
func TestPushRefusals(t *testing.T) {
	h, n := newHub(t), newNode(t, registry.Config{})
	h.image("latest", arch, gz, pack(t, entry{"a", "1"}))
	n.mustPull(order(h, ""))
	ok := h.host + "/team/made"
	h.misbehave(func(w http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/closed/") {
			w.WriteHeader(http.StatusForbidden)
			return true
		}
		return false
	})
	for name, tc := range map[string]struct {
		image string
		push  api.ImagePush
		code  api.Code
		part  string
	}{
		"no-image":  {"none", api.ImagePush{Reference: ok}, api.CodeNoSuchImage, "none"},
		"no-host":   {"app", api.ImagePush{Reference: "made"}, api.CodeInvalid, "registry's host"},
		"digest":    {"app", api.ImagePush{Reference: ok + "@sha256:" + strings.Repeat("ab", 32)}, api.CodeInvalid, "under a tag"},
		"from":      {"app", api.ImagePush{Reference: ok, MountFrom: "a:b"}, api.CodeInvalid, "without host and tag"},
		"forbidden": {"app", api.ImagePush{Reference: h.host + "/closed/made"}, api.CodeForbidden, "docker login"},
	} {
		tc.push.CA = h.ca
		_, err := n.remote.Push(t.Context(), tc.image, tc.push, nil)
		t.Run(name, func(t *testing.T) { wantError(t, err, tc.code, tc.part) })
	}
	if open := unnamed(t, n.dir); len(open) > 0 {
		t.Errorf("files are open: %q", open)
	}
}
