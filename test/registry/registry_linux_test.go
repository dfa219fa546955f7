package registry_test

import (
	"archive/tar"
	"context"
	"encoding/pem"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	faux "github.com/google/go-containerregistry/pkg/registry"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

func TestMain(m *testing.M) { testbed.Main(m) }

const secret = "s3cret-of-the-robot"

// hub is a registry on loopback that wants to know who asks.
type hub struct {
	host   string
	access api.RegistryAccess
	hold   atomic.Bool // layers stop halfway
	held   chan struct{}
	once   sync.Once
}

func newHub(t *testing.T) *hub {
	t.Helper()
	h := &hub{held: make(chan struct{})}
	inner := faux.New(faux.Logger(slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)))
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if u, p, _ := r.BasicAuth(); u != "robot" || p != secret {
			w.Header().Set("WWW-Authenticate", `Basic realm="here"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if h.hold.Load() && r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
			answer := httptest.NewRecorder()
			inner.ServeHTTP(answer, r)
			if b := answer.Body.Bytes(); len(b) > 100_000 {
				_, _ = w.Write(b[:50_000])
				_ = http.NewResponseController(w).Flush()
				h.once.Do(func() { close(h.held) })
				<-r.Context().Done()
				return
			}
		}
		inner.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	h.host = srv.Listener.Addr().String()
	h.access = api.RegistryAccess{
		CA:   string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})),
		Auth: &api.RegistryAuth{Username: "robot", Password: secret},
	}
	return h
}

func (h *hub) pull(tag, name string) api.ImagePull {
	return api.ImagePull{Reference: h.host + "/team/tools:" + tag, Name: name, RegistryAccess: h.access}
}

// TestNode pushes and pulls on a real node, and starts a sandbox of what was pulled. When the tag moves on and is pulled
// again, the sandbox goes on with what it has, and a collection of garbage leaves its image alone.
func TestNode(t *testing.T) {
	h, n := newHub(t), testbed.Start(t, testbed.Options{Pool: -1})
	images := n.Client.Images()
	to := api.ImagePush{Reference: h.host + "/team/tools:1", RegistryAccess: h.access}
	first, err := images.Push(t.Context(), "busybox", to, nil)
	if err != nil {
		t.Fatal(err)
	}
	phases := map[string]bool{}
	done, err := images.Pull(t.Context(), h.pull("1", "tools"), func(ev api.ImageEvent) { phases[ev.Phase] = true })
	if err != nil {
		t.Fatal(err)
	}
	if done.UpToDate || done.Image.Source.Digest != first.Digest {
		t.Errorf("pulled %+v of %+v", done, first)
	}
	again, err := images.Pull(t.Context(), h.pull("1", "tools"), nil)
	if err != nil || !again.UpToDate || again.Image.Digest != done.Image.Digest {
		t.Errorf("pulled again %+v, %v", again, err)
	}
	sb := n.Create(t, api.Spec{Image: "tools"})
	list := testbed.Output(t, sb, "ls -l /bin | wc -l")

	// Another image under the tag.
	if _, err := images.Import(t.Context(), "other", strings.NewReader(tarOf(t)), libdsec.ImportOptions{}); err != nil {
		t.Fatal(err)
	}
	second, err := images.Push(t.Context(), "other", to, nil)
	if err != nil {
		t.Fatal(err)
	}
	moved, err := images.Pull(t.Context(), h.pull("1", "tools"), nil)
	if err != nil || moved.UpToDate || moved.Image.Source.Digest != second.Digest {
		t.Errorf("pulled %+v after %+v was pushed, %v", moved, second, err)
	}
	if got := testbed.Output(t, sb, "ls -l /bin | wc -l; cat /bin/busybox | wc -c >/dev/null"); got != list {
		t.Errorf("the sandbox has %s files and not %s", got, list)
	}
	gone, err := images.GC(t.Context(), libdsec.GCOptions{All: true})
	if diff := cmp.Diff([]string{"other"}, gone.Removed); err != nil || diff != "" {
		t.Errorf("collected (-want +got):\n%s%v", diff, err)
	}
	noSecrets(t, n)
}

// tarOf is a root file system of one file.
func tarOf(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(&tar.Header{Name: "file", Mode: 0o644, Size: 1}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// noSecrets looks for the password in all that the node has written.
func noSecrets(t *testing.T, n *testbed.Node) {
	t.Helper()
	files := 0
	err := filepath.WalkDir(n.Dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil //nolint:nilerr // gone by now
		}
		raw, err := os.ReadFile(path)
		if err == nil && strings.Contains(string(raw), secret) {
			t.Errorf("the password is in %s", path)
		}
		files++
		return nil
	})
	if err != nil || files == 0 {
		t.Errorf("looked at %d files: %v", files, err)
	}
}

// TestMayPull lets only those pull and push who may change images: they make the node talk to other hosts.
func TestMayPull(t *testing.T) {
	h, n := newHub(t), testbed.Shared(t)
	for _, role := range []api.Role{api.RoleDeveloper, api.RoleReader} {
		made, err := n.Client.CreateToken(t.Context(), api.TokenSpec{Label: string(role), Role: role})
		if err != nil {
			t.Fatal(err)
		}
		c, err := libdsec.New(libdsec.WithEndpoint(n.Endpoint, made.Secret))
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Images().Pull(t.Context(), h.pull("1", "tools"), nil)
		if !libdsec.IsCode(err, api.CodeForbidden) {
			t.Errorf("a %s pulls: %v", role, err)
		}
		_, err = c.Images().Push(t.Context(), "busybox", api.ImagePush{Reference: h.host + "/team/tools", RegistryAccess: h.access}, nil)
		if !libdsec.IsCode(err, api.CodeForbidden) {
			t.Errorf("a %s pushes: %v", role, err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestBrokenOff leaves a pull halfway, and kills the node in the middle of one: nothing is left of either, and the next
// pull has the image.
func TestBrokenOff(t *testing.T) {
	h, n := newHub(t), testbed.Start(t, testbed.Options{Pool: -1})
	if _, err := n.Client.Images().Push(t.Context(), "busybox", api.ImagePush{Reference: h.host + "/team/tools:1", RegistryAccess: h.access}, nil); err != nil {
		t.Fatal(err)
	}
	own := func() (names []string) {
		list, err := os.ReadDir(filepath.Join(n.Dir, "images"))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list {
			names = append(names, e.Name())
		}
		return names
	}
	h.hold.Store(true)
	ctx, cancel := context.WithCancel(t.Context())
	broken := make(chan error, 1)
	go func() {
		_, err := n.Client.Images().Pull(ctx, h.pull("1", "tools"), nil)
		broken <- err
	}()
	<-h.held
	cancel()
	if err := <-broken; err == nil {
		t.Error("a pull that was left is done")
	}
	testbed.Until(t, time.Minute, "nothing to be left of the pull", func() bool { return len(own()) == 0 })

	go func() {
		_, err := n.Client.Images().Pull(context.Background(), h.pull("1", "tools"), nil)
		broken <- err
	}()
	testbed.Until(t, time.Minute, "the pull to begin", func() bool { return len(own()) == 1 })
	n.Kill(t)
	if err := <-broken; err == nil {
		t.Error("a pull whose node has died is done")
	}
	n.Restart(t)
	if got := own(); len(got) > 0 {
		t.Errorf("left in the store: %q", got)
	}
	h.hold.Store(false)
	if _, err := n.Client.Images().Pull(t.Context(), h.pull("1", "tools"), nil); err != nil {
		t.Error(err)
	}
}
