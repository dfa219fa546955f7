package registry_test

import (
	"archive/tar"
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/image/registry"
)

// other is an architecture that this machine hasn't.
func other() string {
	if arch == "arm64" {
		return "amd64"
	}
	return "arm64"
}

// layout is the OCI layout of an image of the hub, as a tar.
func layout(t *testing.T, h *hub, m desc) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	add := func(name string, content []byte) {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(content); err != nil {
			t.Fatal(err)
		}
	}
	blobs := map[string]bool{}
	raw := h.do("GET", "/v2/team/app/manifests/"+m.Digest, "", nil).Body.Bytes()
	add("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`))
	add("index.json", doc(t, object{"schemaVersion": 2, "manifests": []desc{m}}))
	add("blobs/sha256/"+strings.TrimPrefix(m.Digest, "sha256:"), raw)
	for _, d := range digestsIn(raw) {
		if !blobs[d] {
			blobs[d] = true
			add("blobs/sha256/"+strings.TrimPrefix(d, "sha256:"), h.do("GET", "/v2/team/app/blobs/"+d, "", nil).Body.Bytes())
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// digestsIn lists the digests that a manifest names.
func digestsIn(raw []byte) []string {
	var all []string
	for part := range strings.SplitSeq(string(raw), `"`) {
		if strings.HasPrefix(part, "sha256:") {
			all = append(all, part)
		}
	}
	return all
}

// TestPull pulls the image for each platform of a list in a list. It is what an import of the same image gives, bit for
// bit, and says where it's from.
func TestPull(t *testing.T) {
	h, n := newHub(t), newNode(t, registry.Config{})
	own := h.image("", arch, gz, pack(t, entry{"bin/", ""}, entry{"bin/sh", noise(300_000)}), pack(t, entry{"bin/.wh.sh", ""}, entry{"bin/dash", "d"}))
	foreign := h.image("", other(), zst, pack(t, entry{"for-the-other", "o"}))
	own.Platform, foreign.Platform = &platform{"linux", arch, ""}, &platform{"linux", other(), ""}
	note := h.image("", arch, plain, pack(t, entry{"attestation", ""}))
	note.Platform = &platform{"unknown", "unknown", ""}
	inner := h.manifest("", ociIndex, object{"schemaVersion": 2, "manifests": []desc{note, foreign, own}})
	top := h.manifest("1.2", ociIndex, object{"schemaVersion": 2, "mediaType": ociIndex, "manifests": []desc{inner}})

	o := order(h, ":1.2")
	o.Name = ""
	ev, seen := n.mustPull(o)
	if ev.UpToDate || ev.Image.Name != "app-1.2" || len(seen.warnings) > 0 {
		t.Errorf("pulled %+v, told %v", ev, seen.warnings)
	}
	want := &api.ImageSource{Reference: o.Reference, Digest: top.Digest, Manifest: own.Digest, Platform: "linux/" + arch, Created: "2026-05-04T03:02:01Z"}
	if diff := cmp.Diff(want, ev.Image.Source); diff != "" {
		t.Errorf("source (-want +got):\n%s", diff)
	}
	same, err := n.importer.Import(t.Context(), api.ImageImport{Name: "imported"}, bytes.NewReader(layout(t, h, own)), nil)
	if err != nil {
		t.Fatal(err)
	}
	same.Name, same.Source, same.CreatedAt = ev.Image.Name, ev.Image.Source, ev.Image.CreatedAt
	if diff := cmp.Diff(same, *ev.Image); diff != "" {
		t.Errorf("what is pulled isn't what is imported (-imported +pulled):\n%s", diff)
	}

	o.Name, o.Platform = "other", "linux/"+other()
	ev, _ = n.mustPull(o)
	if ev.Image.Source.Manifest != foreign.Digest || ev.Image.Digest == same.Digest {
		t.Errorf("for another platform %+v was pulled", ev.Image)
	}
	o.Name, o.Platform = "none", "linux/s390x"
	_, _, err = n.pull(o)
	wantError(t, err, api.CodeUnsupportedConstraint, "linux/s390x", "linux/"+arch, "linux/"+other(), "--platform")
	if diff := cmp.Diff([]string{"app-1.2", "imported", "other"}, n.left()); diff != "" {
		t.Errorf("the store (-want +got):\n%s", diff)
	}
}

// TestUpToDate asks for what is there: a tag costs a HEAD, a digest nothing. A tag that has moved on is pulled again.
func TestUpToDate(t *testing.T) {
	t.Parallel()
	h, n := newHub(t), newNode(t, registry.Config{})
	first := h.image("latest", arch, gz, pack(t, entry{"a", "1"}))
	n.mustPull(order(h, ""))

	h.misbehave(nil)
	ev, _ := n.mustPull(order(h, ""))
	if got := h.asked("/team/app/"); !ev.UpToDate || !slices.Equal(got, []string{"HEAD /v2/team/app/manifests/latest"}) {
		t.Errorf("up to date: %v, by the requests %q", ev.UpToDate, got)
	}
	h.misbehave(func(_ http.ResponseWriter, r *http.Request) bool { return r.Method == http.MethodHead }) // says no digest
	if ev, _ := n.mustPull(order(h, "")); !ev.UpToDate || len(h.asked("/blobs/")) > 0 {
		t.Errorf("up to date: %v, by the requests %q", ev.UpToDate, h.asked(""))
	}
	h.misbehave(nil)
	byDigest := order(h, ":latest@"+first.Digest)
	byDigest.Name = "pinned"
	n.mustPull(byDigest)
	h.misbehave(nil)
	if ev, _ := n.mustPull(byDigest); !ev.UpToDate || len(h.asked("")) > 0 {
		t.Errorf("up to date: %v, by the requests %q", ev.UpToDate, h.asked(""))
	}

	second := h.image("latest", arch, gz, pack(t, entry{"a", "2"}))
	if ev, _ := n.mustPull(order(h, "")); ev.UpToDate || ev.Image.Source.Digest != second.Digest {
		t.Errorf("the tag has moved on, pulled was %+v", ev.Image.Source)
	}
	// The tag that stands beside a digest says nothing.
	if ev, _ := n.mustPull(byDigest); ev.Image.Source.Digest != first.Digest {
		t.Errorf("the digest has moved on: %+v", ev.Image.Source)
	}

	// What isn't of this reference is in the way, and nothing is fetched before that is told.
	h.image("v2", arch, gz, pack(t, entry{"a", "3"}))
	h.misbehave(nil)
	_, _, err := n.pull(order(h, ":v2"))
	wantError(t, err, api.CodeConflict, "--replace", "app")
	if len(h.asked("")) > 0 {
		t.Errorf("asked for %q", h.asked(""))
	}
	o := order(h, ":v2")
	o.Replace = true
	if ev, _ := n.mustPull(o); !strings.HasSuffix(ev.Image.Source.Reference, ":v2") {
		t.Errorf("replaced by %+v", ev.Image.Source)
	}
}

// TestOnePull asks many times at once for the same: it is fetched once, and goes on while anybody waits for it.
func TestOnePull(t *testing.T) {
	h, n := newHub(t), newNode(t, registry.Config{})
	h.image("latest", arch, gz, pack(t, entry{"a", noise(100_000)}))
	began, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	h.misbehave(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
			once.Do(func() { close(began) })
			<-goOn
		}
		return false
	})
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, err := n.remote.Pull(ctx, order(h, ""), nil)
		left <- err
	}()
	<-began
	var wg sync.WaitGroup
	images := make(chan string, 20)
	for range cap(images) {
		wg.Go(func() {
			ev, err := n.remote.Pull(t.Context(), order(h, ""), nil)
			if err != nil {
				t.Error(err)
				return
			}
			images <- ev.Image.Digest
		})
	}
	waitFor(t, "all to wait for one pull", func() bool { return registry.Waiting(n.remote) == 1+cap(images) })
	leave() // who was first has gone
	if err := <-left; err == nil {
		t.Error("who has left got an image")
	}
	close(goOn)
	wg.Wait()
	close(images)
	seen := map[string]int{}
	for d := range images {
		seen[d]++
	}
	if got := h.asked("GET /v2/team/app/blobs"); len(seen) != 1 || len(got) != 2 {
		t.Errorf("images %v by the requests %q, want one image, its configuration and its layer", seen, got)
	}
}

func waitFor(t testing.TB, what string, is func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !is() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
		pause := time.NewTimer(5 * time.Millisecond)
		<-pause.C
	}
}

// TestCancel ends a pull in the middle of a layer. Nothing is left of it, and the next has the place.
func TestCancel(t *testing.T) {
	h, n := newHub(t), newNode(t, registry.Config{})
	h.image("latest", arch, plain, pack(t, entry{"a", noise(3 << 20)}), pack(t, entry{"b", noise(1 << 20)}))
	for range 3 { // more often than there are places
		ctx, cancel := context.WithCancel(t.Context())
		h.misbehave(func(w http.ResponseWriter, r *http.Request) bool {
			if !isLayer(r, h) {
				return false
			}
			_, _ = w.Write(make([]byte, 1000))
			_ = http.NewResponseController(w).Flush()
			cancel()
			<-r.Context().Done()
			return true
		})
		if _, err := n.remote.Pull(ctx, order(h, ""), nil); err == nil {
			t.Fatal("a pull that was ended is done")
		}
		if got := n.left(); len(got) > 0 {
			t.Errorf("left in the store: %q", got)
		}
		if open := unnamed(t, n.dir); len(open) > 0 {
			t.Errorf("files are open: %q", open)
		}
	}
	h.misbehave(nil)
	n.mustPull(order(h, ""))
}

// unnamed lists the files without a name that this process has in a folder.
func unnamed(t testing.TB, dir string) []string {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range list {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.HasPrefix(to, dir) {
			all = append(all, to)
		}
	}
	return all
}

// isLayer tells whether a request is for a blob that is no JSON.
func isLayer(r *http.Request, h *hub) bool {
	_, d, ok := strings.Cut(r.URL.Path, "/blobs/sha256:")
	if !ok || r.Method != http.MethodGet {
		return false
	}
	w := httptest.NewRecorder()
	h.inner.ServeHTTP(w, httptest.NewRequestWithContext(r.Context(), http.MethodGet, "/v2/team/app/blobs/sha256:"+d, nil))
	return !bytes.HasPrefix(w.Body.Bytes(), []byte("{"))
}

// TestDuplicateLayers pulls an image that has a layer more than once: it is fetched once, and applied each time.
func TestDuplicateLayers(t *testing.T) {
	h, n := newHub(t), newNode(t, registry.Config{})
	base, gone := pack(t, entry{"a", noise(50_000)}, entry{"dir/", ""}), pack(t, entry{".wh.a", ""})
	m := h.image("latest", arch, gz, base, gone, base, gone, base)
	h.misbehave(nil)
	ev, _ := n.mustPull(order(h, ""))
	if got := h.asked("GET /v2/team/app/blobs"); len(got) != 3 {
		t.Errorf("requests %q, want one for each blob", got)
	}
	same, err := n.importer.Import(t.Context(), api.ImageImport{Name: "imported"}, bytes.NewReader(layout(t, h, m)), nil)
	if err != nil || same.Digest != ev.Image.Digest {
		t.Errorf("pulled %s, imported %s, %v", ev.Image.Digest, same.Digest, err)
	}
}
