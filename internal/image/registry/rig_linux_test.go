package registry_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	faux "github.com/google/go-containerregistry/pkg/registry"
	"github.com/klauspost/compress/zstd"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/image"
	"github.com/dsec-io/dsec/internal/image/importer"
	"github.com/dsec-io/dsec/internal/image/registry"
	"github.com/dsec-io/dsec/internal/need"
)

// hub is a registry on loopback, over TLS, that a test can make misbehave.
type hub struct {
	t     testing.TB
	inner http.Handler
	srv   *httptest.Server
	host  string
	ca    string // its certificate

	mu    sync.Mutex                                        // guards the rest
	fault func(w http.ResponseWriter, r *http.Request) bool // says that it has answered
	seen  []string
	sent  int64 // bytes of answers
}

func newHub(t testing.TB) *hub {
	t.Helper()
	h := &hub{t: t, inner: faux.New(faux.Logger(slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)))}
	h.srv = httptest.NewUnstartedServer(h)
	h.srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)
	h.srv.StartTLS()
	t.Cleanup(h.srv.Close)
	h.host = h.srv.Listener.Addr().String()
	h.ca = certificate(h.srv)
	return h
}

func certificate(s *httptest.Server) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
}

// counted counts what is sent.
type counted struct {
	http.ResponseWriter
	h *hub
}

func (c counted) Write(p []byte) (int, error) {
	c.h.mu.Lock()
	c.h.sent += int64(len(p))
	c.h.mu.Unlock()
	return c.ResponseWriter.Write(p)
}

func (c counted) Unwrap() http.ResponseWriter { return c.ResponseWriter }

func (h *hub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	line := r.Method + " " + r.URL.Path
	if v := r.Header.Get("Range"); v != "" {
		line += " " + v
	}
	h.seen = append(h.seen, line)
	fault := h.fault
	h.mu.Unlock()
	w = counted{w, h}
	if fault == nil || !fault(w, r) {
		h.inner.ServeHTTP(w, r)
	}
}

// misbehave answers requests by f, as far as it does, and forgets what was seen.
func (h *hub) misbehave(f func(w http.ResponseWriter, r *http.Request) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fault, h.seen, h.sent = f, nil, 0
}

// asked lists the requests whose line has a part in it.
func (h *hub) asked(part string) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(h.seen), func(l string) bool { return !strings.Contains(l, part) })
}

func (h *hub) bytes() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.sent
}

// do asks the registry itself, past all faults.
func (h *hub) do(method, path, media string, body []byte) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(h.t.Context(), method, path, bytes.NewReader(body))
	if media != "" {
		r.Header.Set("Content-Type", media)
	}
	w := httptest.NewRecorder()
	h.inner.ServeHTTP(w, r)
	return w
}

// desc names something that a registry has.
type desc struct {
	MediaType   string            `json:"mediaType,omitempty"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Platform    *platform         `json:"platform,omitempty"`
	URLs        []string          `json:"urls,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type platform struct {
	OS           string `json:"os"`
	Architecture string `json:"architecture"`
	Variant      string `json:"variant,omitempty"`
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// blob puts a blob into the registry.
func (h *hub) blob(media string, b []byte) desc {
	h.t.Helper()
	d := digest(b)
	if w := h.do("POST", "/v2/team/app/blobs/uploads/?digest="+d, "", b); w.Code != http.StatusCreated {
		h.t.Fatalf("put a blob: %d %s", w.Code, w.Body)
	}
	return desc{MediaType: media, Digest: d, Size: len(b)}
}

// manifest puts a manifest into the registry, under a tag or, without one, under its digest.
func (h *hub) manifest(tag, media string, v any) desc {
	h.t.Helper()
	raw, ok := v.([]byte)
	if !ok {
		raw = doc(h.t, v)
	}
	if tag == "" {
		tag = digest(raw)
	}
	if w := h.do("PUT", "/v2/team/app/manifests/"+tag, media, raw); w.Code != http.StatusCreated {
		h.t.Fatalf("put a manifest: %d %s", w.Code, w.Body)
	}
	return desc{MediaType: media, Digest: digest(raw), Size: len(raw)}
}

func doc(t testing.TB, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The media types of OCI and Docker.
const (
	ociIndex     = "application/vnd.oci.image.index.v1+json"
	ociManifest  = "application/vnd.oci.image.manifest.v1+json"
	ociConfig    = "application/vnd.oci.image.config.v1+json"
	ociLayer     = "application/vnd.oci.image.layer.v1.tar"
	dockerList   = "application/vnd.docker.distribution.manifest.list.v2+json"
	dockerSchema = "application/vnd.docker.distribution.manifest.v2+json"
	dockerConfig = "application/vnd.docker.container.image.v1+json"
	dockerLayer  = "application/vnd.docker.image.rootfs.diff.tar.gzip"
)

type object map[string]any

// config is the configuration of an image for an architecture, of these plain tars.
func config(t testing.TB, arch string, layers ...[]byte) []byte {
	ids := []string{}
	for _, l := range layers {
		ids = append(ids, digest(l))
	}
	return doc(t, object{
		"os": "linux", "architecture": arch, "created": "2026-05-04T03:02:01Z", "rootfs": object{"type": "layers", "diff_ids": ids},
		"config": object{"User": "app", "Env": []string{"PATH=/bin", "A=b"}, "WorkingDir": "/srv", "Entrypoint": []string{"/e"}, "Cmd": []string{"x"}},
	})
}

// image puts an image of plain tars into the registry, each packed in its own way.
func (h *hub) image(tag, arch string, packing func(testing.TB, []byte) []byte, layers ...[]byte) desc {
	h.t.Helper()
	m := object{"schemaVersion": 2, "mediaType": ociManifest, "config": h.blob(ociConfig, config(h.t, arch, layers...))}
	list := []desc{}
	for _, l := range layers {
		list = append(list, h.blob(ociLayer, packing(h.t, l)))
	}
	m["layers"] = list
	return h.manifest(tag, ociManifest, m)
}

// entry is an entry of a tar; a name that ends in a slash is a directory.
type entry struct {
	name, content string
}

func pack(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		head := &tar.Header{Name: e.name, Mode: 0o755, Size: int64(len(e.content)), ModTime: time.Unix(1_700_000_000, 0)}
		if err := w.WriteHeader(head); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, e.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func plain(_ testing.TB, b []byte) []byte { return b }

func gz(t testing.TB, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func zst(t testing.TB, b []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return w.EncodeAll(b, nil)
}

// noise is content that doesn't pack well.
func noise(n int) string {
	b := make([]byte, n)
	x := uint64(88172645463325252)
	for i := range b {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = byte(x)
	}
	return string(b)
}

// node is where images are pulled to.
type node struct {
	t        testing.TB
	dir      string
	importer *importer.Importer
	remote   *registry.Remote
}

func newNode(t testing.TB, c registry.Config) *node {
	t.Helper()
	need.Root(t)
	n := &node{t: t, dir: filepath.Join(t.TempDir(), "images")}
	store := image.NewStore(slog.New(slog.DiscardHandler), n.dir)
	var err error
	if n.importer, err = importer.New(importer.Config{Dir: n.dir, Images: store}); err != nil {
		t.Fatal(err)
	}
	c.Importer = n.importer
	if n.remote, err = registry.New(c); err != nil {
		t.Fatal(err)
	}
	return n
}

// order is a pull from a hub under a name.
func order(h *hub, ref string) api.ImagePull {
	return api.ImagePull{Reference: h.host + "/team/app" + ref, Name: "app", RegistryAccess: api.RegistryAccess{CA: h.ca}}
}

// told collects what a pull tells.
type told struct {
	warnings []string
	phases   []string
	last     api.ImageEvent
}

func (n *node) pull(o api.ImagePull) (api.ImageEvent, told, error) {
	n.t.Helper()
	var seen told
	ev, err := n.remote.Pull(n.t.Context(), o, func(ev api.ImageEvent) {
		if ev.Warning != "" {
			seen.warnings = append(seen.warnings, ev.Warning)
		}
		if !slices.Contains(seen.phases, ev.Phase) {
			seen.phases = append(seen.phases, ev.Phase)
		}
		seen.last = ev
	})
	return ev, seen, err
}

// mustPull pulls, and fails the test if that fails.
func (n *node) mustPull(o api.ImagePull) (api.ImageEvent, told) {
	n.t.Helper()
	ev, seen, err := n.pull(o)
	if err != nil {
		n.t.Fatalf("pull %s: %v", o.Reference, err)
	}
	return ev, seen
}

// left lists what is in the store.
func (n *node) left() []string {
	n.t.Helper()
	list, err := os.ReadDir(n.dir)
	if err != nil {
		n.t.Fatal(err)
	}
	names := []string{}
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

// wantError fails the test unless err has the code and its text, with the hint, all the parts.
func wantError(t testing.TB, err error, code api.Code, parts ...string) {
	t.Helper()
	if !api.IsCode(err, code) {
		t.Errorf("error %v, want the code %s", err, code)
		return
	}
	e := api.AsError(err)
	for _, p := range parts {
		if !strings.Contains(e.Error()+" "+e.Hint, p) {
			t.Errorf("error %q with hint %q, want %q in it", e.Error(), e.Hint, p)
		}
	}
}

const arch = runtime.GOARCH
