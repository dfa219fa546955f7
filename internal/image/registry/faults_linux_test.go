package registry_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/image"
	"github.com/dsec-io/dsec/internal/image/importer"
	"github.com/dsec-io/dsec/internal/image/registry"
)

// stored is what the registry answers when nothing is in the way.
func stored(h *hub, r *http.Request) []byte {
	w := httptest.NewRecorder()
	h.inner.ServeHTTP(w, httptest.NewRequestWithContext(r.Context(), http.MethodGet, r.URL.Path, nil))
	return w.Body.Bytes()
}

// oneLayer makes an image of one layer that doesn't pack.
func oneLayer(h *hub, size int) {
	h.image("latest", arch, plain, pack(h.t, entry{"a", noise(size)}))
}

// TestBrokenBlob cuts the connection again and again in the middle of a layer: each time it goes on where it broke.
func TestBrokenBlob(t *testing.T) {
	t.Parallel()
	const size, piece = 8 << 20, 1500 << 10
	h, n := newHub(t), newNode(t, registry.Config{})
	oneLayer(h, size)
	h.misbehave(func(w http.ResponseWriter, r *http.Request) bool {
		if !isLayer(r, h) {
			return false
		}
		b := stored(h, r)
		at := 0
		if v := r.Header.Get("Range"); v != "" {
			at, _ = strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(v, "bytes="), "-"))
			w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", at, len(b)-1, len(b)))
		}
		w.Header().Set("Content-Length", strconv.Itoa(len(b)-at))
		if at > 0 {
			w.WriteHeader(http.StatusPartialContent)
		}
		if len(b)-at <= piece {
			_, _ = w.Write(b[at:])
			return true
		}
		_, _ = w.Write(b[at : at+piece])
		panic(http.ErrAbortHandler)
	})
	_, seen := n.mustPull(order(h, ""))
	got := h.asked("GET /v2/team/app/blobs")
	if len(got) < 6 || len(seen.warnings) != len(got)-2 || !strings.Contains(got[2], "bytes=") {
		t.Errorf("requests %q, told %q", got, seen.warnings)
	}
	if h.bytes() > size*11/10 {
		t.Errorf("%d bytes were sent for %d", h.bytes(), size)
	}
}

// TestBlobFaults is of blobs that don't come as they are named. What is mended is told, and what can't be leaves nothing.
func TestBlobFaults(t *testing.T) {
	t.Parallel()
	whole := func(w http.ResponseWriter, b []byte) { _, _ = w.Write(b) }
	for name, tc := range map[string]struct {
		bad  int // how often the answer is bad
		give func(w http.ResponseWriter, r *http.Request, b []byte)
		told string // in a warning
		code api.Code
		err  string
	}{
		"poisoned once": {1, func(w http.ResponseWriter, _ *http.Request, b []byte) {
			b[len(b)/2] ^= 1
			whole(w, b)
		}, "other bytes came", "", ""},
		"poisoned always": {100, func(w http.ResponseWriter, _ *http.Request, b []byte) {
			b[len(b)-1] ^= 1
			whole(w, b)
		}, "other bytes came", api.CodeUnavailable, "3 times with other bytes"},
		"another blob": {100, func(w http.ResponseWriter, _ *http.Request, b []byte) { whole(w, append(b, b...)) }, "more bytes", api.CodeUnavailable, "3 times"},
		"short once":   {1, func(w http.ResponseWriter, _ *http.Request, b []byte) { whole(w, b[:len(b)/2]) }, "ends after", "", ""},
		"short always": {100, func(w http.ResponseWriter, r *http.Request, b []byte) {
			if r.Header.Get("Range") != "" {
				w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
				return
			}
			whole(w, b[:len(b)/2])
		}, "ends after", api.CodeUnavailable, "broke off"},
		"late once": {1, func(w http.ResponseWriter, r *http.Request, b []byte) {
			w.Header().Set("Content-Length", strconv.Itoa(len(b)))
			whole(w, b[:len(b)/2])
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}, "nothing came for too long", "", ""},
		"a range from elsewhere": {2, func(w http.ResponseWriter, r *http.Request, b []byte) {
			if r.Header.Get("Range") == "" {
				whole(w, b[:len(b)/2])
				return
			}
			w.Header().Set("Content-Range", fmt.Sprintf("bytes 0-%d/%d", len(b)-1, len(b)))
			w.WriteHeader(http.StatusPartialContent)
			whole(w, b)
		}, "can't go on", "", ""},
		"gone":         {100, func(w http.ResponseWriter, _ *http.Request, _ []byte) { w.WriteHeader(404) }, "", api.CodeNoSuchImage, "blob sha256:"},
		"broken twice": {2, func(w http.ResponseWriter, _ *http.Request, _ []byte) { w.WriteHeader(502) }, "", "", ""},
		"broken":       {100, func(w http.ResponseWriter, _ *http.Request, _ []byte) { w.WriteHeader(502) }, "", api.CodeUnavailable, "502"},
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			c := registry.Config{}
			if name == "late once" {
				c.Stall = 2 * time.Second
			}
			h, n := newHub(t), newNode(t, c)
			oneLayer(h, 300_000)
			var asked atomic.Int32
			h.misbehave(func(w http.ResponseWriter, r *http.Request) bool {
				if !isLayer(r, h) || int(asked.Add(1)) > tc.bad {
					return false
				}
				tc.give(w, r, stored(h, r))
				return true
			})
			_, seen, err := n.pull(order(h, ""))
			if tc.code != "" {
				wantError(t, err, tc.code, tc.err)
			} else if err != nil {
				t.Error(err)
			}
			if !strings.Contains(strings.Join(seen.warnings, "\n"), tc.told) || tc.told == "" && len(seen.warnings) > 0 {
				t.Errorf("told %q, want %q", seen.warnings, tc.told)
			}
			want := []string{"app"}
			if tc.code != "" {
				want = []string{}
			}
			if diff := cmp.Diff(want, n.left()); diff != "" {
				t.Errorf("the store (-want +got):\n%s", diff)
			}
			if open := unnamed(t, n.dir); len(open) > 0 {
				t.Errorf("files are open: %q", open)
			}
		})
	}
}

// TestLayerMissing has a layer that can't be had once another is here, which is given up with it.
func TestLayerMissing(t *testing.T) {
	h, n := newHub(t), newNode(t, registry.Config{})
	gone, here := pack(t, entry{"gone", noise(1000)}), pack(t, entry{"here", noise(2000)})
	h.image("latest", arch, plain, gone, here)
	served := make(chan struct{})
	h.misbehave(func(w http.ResponseWriter, r *http.Request) bool {
		switch {
		case strings.HasSuffix(r.URL.Path, digest(here)):
			defer close(served)
			_, _ = w.Write(stored(h, r))
		case strings.HasSuffix(r.URL.Path, digest(gone)):
			<-served
			waitFor(t, "the other layer to be here", func() bool { return len(unnamed(t, n.dir)) == 3 }) // and what is read goes to a third
			w.WriteHeader(http.StatusNotFound)
		default:
			return false
		}
		return true
	})
	_, _, err := n.pull(order(h, ""))
	wantError(t, err, api.CodeNoSuchImage, "blob sha256:")
	if open := unnamed(t, n.dir); len(open) > 0 {
		t.Errorf("files are open: %q", open)
	}
	if got := n.left(); len(got) > 0 {
		t.Errorf("left in the store: %q", got)
	}
}

// TestPoisonedManifest is of manifests that aren't what their digest says, or what the registry says of them.
func TestPoisonedManifest(t *testing.T) {
	h, n := newHub(t), newNode(t, registry.Config{})
	m := h.image("latest", arch, plain, pack(t, entry{"a", "1"}))
	bad := 1
	h.misbehave(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/manifests/") || bad == 0 {
			return false
		}
		bad--
		w.Header().Set("Docker-Content-Digest", m.Digest)
		_, _ = w.Write(append(stored(h, r), ' '))
		return true
	})
	for _, ref := range []string{"", "@" + m.Digest} {
		bad = 1
		if _, seen := n.mustPull(withName(order(h, ref), "by"+strconv.Itoa(len(ref)))); len(seen.warnings) != 1 {
			t.Errorf("%q: told %q", ref, seen.warnings)
		}
		bad = 100
		_, _, err := n.pull(withName(order(h, ref), "never"))
		wantError(t, err, api.CodeUnavailable, "other bytes than its digest says")
	}
}

func withName(o api.ImagePull, name string) api.ImagePull {
	o.Name = name
	return o
}

// TestRetryAfter asks a registry that is busy no earlier than it says, and not at all when that is too long.
func TestRetryAfter(t *testing.T) {
	t.Parallel()
	h, n := newHub(t), newNode(t, registry.Config{})
	oneLayer(h, 100_000)
	var until time.Time
	var mu sync.Mutex
	early := 0
	h.misbehave(func(w http.ResponseWriter, r *http.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		if until.IsZero() && isLayer(r, h) {
			until = time.Now().Add(time.Second)
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
			return true
		}
		if time.Now().Before(until) {
			early++
		}
		return false
	})
	n.mustPull(order(h, ""))
	if early > 0 || until.IsZero() {
		t.Errorf("%d requests came early, busy until %v", early, until)
	}
	h.misbehave(func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("Retry-After", "3600")
		w.WriteHeader(http.StatusTooManyRequests)
		return true
	})
	began := time.Now()
	_, _, err := n.pull(withName(order(h, ""), "more"))
	wantError(t, err, api.CodeTooMany, "doesn't take more requests")
	if ms := api.AsError(err).RetryMS; ms != 3_600_000 || time.Since(began) > time.Minute {
		t.Errorf("told after %v to try again in %d ms", time.Since(began), ms)
	}
}

// TestCase93 pulls forty images, thirteen times each, from a registry that is busy for a while: few requests are made, nothing
// gives up, and when it's there again all is pulled.
func TestCase93(t *testing.T) {
	t.Parallel()
	h, n := newHub(t), newNode(t, registry.Config{})
	for i := range 40 {
		h.image("v"+strconv.Itoa(i), arch, gz, pack(t, entry{"a", strconv.Itoa(i)}))
	}
	var busy atomic.Bool
	busy.Store(true)
	h.misbehave(func(w http.ResponseWriter, _ *http.Request) bool {
		if busy.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		return busy.Load()
	})
	var wg sync.WaitGroup
	for i := range 520 {
		wg.Go(func() {
			o := order(h, ":v"+strconv.Itoa(i%40))
			o.Name = "app" + strconv.Itoa(i%40)
			if _, err := n.remote.Pull(t.Context(), o, nil); err != nil {
				t.Error(err)
			}
		})
	}
	waitFor(t, "all to ask", func() bool { return registry.Waiting(n.remote) == 520 && len(h.asked("")) >= 16 })
	pause := time.NewTimer(2 * time.Second) // a storm has time to be one
	<-pause.C
	during := len(h.asked(""))
	busy.Store(false)
	wg.Wait()
	// Sixteen ask at a time, each with pauses that double: 0.2 s, 0.4 s, 0.8 s.
	if during > 16*10 {
		t.Errorf("%d requests while the registry was busy", during)
	}
	if got := len(n.left()); got != 40 {
		t.Errorf("%d images", got)
	}
}

// TestKill ends a process by SIGKILL in the middle of a layer. The next that has the store finds nothing of it.
func TestKill(t *testing.T) {
	t.Parallel()
	if dir := os.Getenv("PULL_INTO"); dir != "" {
		pullForEver(t, dir)
		return
	}
	h, n := newHub(t), newNode(t, registry.Config{})
	h.image("latest", arch, plain, pack(t, entry{"first", noise(200_000)}), pack(t, entry{"second", noise(2 << 20)}))
	began := make(chan struct{})
	var layers atomic.Int32
	h.misbehave(func(w http.ResponseWriter, r *http.Request) bool {
		if !isLayer(r, h) || len(stored(h, r)) < 1<<20 {
			return false
		}
		_, _ = w.Write(make([]byte, 1<<20))
		_ = http.NewResponseController(w).Flush()
		if layers.Add(1) == 1 {
			close(began)
		}
		<-r.Context().Done()
		return true
	})
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestKill$", "-test.count=1")
	cmd.Env = append(os.Environ(), "PULL_INTO="+n.dir, "PULL_FROM="+h.host, "PULL_CA="+h.ca)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	<-began
	waitFor(t, "the pull to have a folder", func() bool { return len(n.left()) > 0 })
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	if _, err := importer.New(importer.Config{Dir: n.dir, Images: image.NewStore(slog.New(slog.DiscardHandler), n.dir)}); err != nil {
		t.Fatal(err)
	}
	if got := n.left(); len(got) > 0 {
		t.Errorf("left in the store: %q", got)
	}
}

func pullForEver(t *testing.T, dir string) {
	t.Helper()
	store := image.NewStore(slog.New(slog.DiscardHandler), dir)
	im, err := importer.New(importer.Config{Dir: dir, Images: store})
	if err != nil {
		t.Fatal(err)
	}
	m, err := registry.New(registry.Config{Importer: im, Stall: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	_, err = m.Pull(context.Background(), api.ImagePull{
		Reference: os.Getenv("PULL_FROM") + "/team/app", RegistryAccess: api.RegistryAccess{CA: os.Getenv("PULL_CA")},
	}, nil)
	t.Fatal("not killed: ", err)
}
