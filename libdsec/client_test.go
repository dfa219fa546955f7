package libdsec_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/libdsec"
)

func TestSandboxLife(t *testing.T) {
	s := newServer(t)
	state := api.StateRunning
	answer := func(spec api.Spec) api.Sandbox { return api.Sandbox{ID: "s1", State: state, Spec: spec} }
	s.mux.HandleFunc("POST /v1/sandboxes", func(w http.ResponseWriter, r *http.Request) {
		var spec api.Spec
		if err := json.NewDecoder(r.Body).Decode(&spec); err != nil {
			t.Error(err)
		}
		s.write(w, answer(spec))
	})
	s.mux.HandleFunc("PATCH /v1/sandboxes/s1", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || string(body) != `{"labels":{"a":"b"}}` {
			t.Errorf("PATCH %s, %v", body, err)
		}
		s.write(w, answer(api.Spec{Labels: map[string]string{"a": "b"}}))
	})
	s.mux.HandleFunc("DELETE /v1/sandboxes/s1", func(w http.ResponseWriter, _ *http.Request) {
		state = api.StateStopped
		s.write(w, answer(api.Spec{}))
	})
	s.mux.HandleFunc("GET /v1/sandboxes/{id}", func(w http.ResponseWriter, r *http.Request) {
		if r.PathValue("id") != "s1" {
			s.problem(w, api.Errorf(api.CodeNotFound, "no sandbox"))
			return
		}
		s.write(w, answer(api.Spec{}))
	})
	c, ctx := s.client(), testContext(t)
	sb, err := c.Create(ctx, api.Spec{Image: "busybox"})
	if err != nil || sb.ID() != "s1" || sb.Info().Spec.Image != "busybox" {
		t.Fatalf("Create() = %+v, %v", sb, err)
	}
	if info, err := sb.Patch(ctx, api.Patch{Labels: &map[string]string{"a": "b"}}); err != nil || info.Spec.Labels["a"] != "b" {
		t.Errorf("Patch() = %+v, %v", info, err)
	}
	if info, err := sb.Stop(ctx); err != nil || info.State != api.StateStopped || sb.Info().State != api.StateStopped {
		t.Errorf("Stop() = %+v, %v", info, err)
	}
	if _, err := c.Get(ctx, "../s1"); !libdsec.IsCode(err, api.CodeNotFound) {
		t.Errorf("Get(../s1) = %v, want not_found", err)
	}
}

// TestWrongScheme: a server that speaks TLS or not, other than the address says, is told as that; nothing was sent.
func TestWrongScheme(t *testing.T) {
	plain, secure := httptest.NewServer(http.NotFoundHandler()), httptest.NewTLSServer(http.NotFoundHandler())
	secure.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	defer plain.Close()
	defer secure.Close()
	for endpoint, want := range map[string]string{
		"https" + strings.TrimPrefix(plain.URL, "http"): "doesn't speak TLS",
		secure.URL: "isn't trusted: ",
		"http" + strings.TrimPrefix(secure.URL, "https"): "without a problem document",
	} {
		c, err := libdsec.New(libdsec.WithEndpoint(endpoint, "t"))
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Get(testContext(t), "s1")
		if e, ok := errors.AsType[*api.Error](err); !ok || !strings.Contains(e.Detail, want) || strings.Contains(e.Hint, "isn't known whether") {
			t.Errorf("at %s: %v, want %q", endpoint, err, want)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestAnswerCutOff: what a broken connection leaves of an answer proves nothing, and is asked for again under a key.
func TestAnswerCutOff(t *testing.T) {
	s := newServer(t)
	asked := 0
	s.mux.HandleFunc("POST /v1/sandboxes", func(w http.ResponseWriter, _ *http.Request) {
		if asked++; asked > 1 {
			w.WriteHeader(http.StatusCreated)
			s.write(w, api.Sandbox{ID: "s1"})
			return
		}
		w.Header().Set("Content-Length", "1000")
		w.WriteHeader(http.StatusInsufficientStorage)
		_, _ = w.Write([]byte(`{"code":"disk_fu`))
		panic(http.ErrAbortHandler)
	})
	sb, err := s.client().Create(testContext(t), api.Spec{Image: "busybox"})
	if err != nil || sb.ID() != "s1" || asked != 2 {
		t.Errorf("Create() = %v, %v after %d requests", sb, err, asked)
	}
}

func TestListPages(t *testing.T) {
	s := newServer(t)
	s.mux.HandleFunc("GET /v1/sandboxes", func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		if q.Get("label") != "k=v" || q.Get("limit") != "2" {
			t.Errorf("query %v", q)
		}
		n, _ := strconv.Atoi(q.Get("cursor"))
		page := api.SandboxList{Items: []api.Sandbox{{ID: strconv.Itoa(n)}, {ID: strconv.Itoa(n + 1)}}}
		if n < 4 {
			page.Cursor = strconv.Itoa(n + 2)
		}
		s.write(w, page)
	})
	var got []string
	for sb, err := range s.client().List(testContext(t), libdsec.ListOptions{Labels: map[string]string{"k": "v"}, Page: 2}) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, sb.ID())
	}
	if diff := cmp.Diff([]string{"0", "1", "2", "3", "4", "5"}, got); diff != "" {
		t.Errorf("List() (-want +got):\n%s", diff)
	}
}

// TestCase30CreateIsRetriedOnlyWhenNothingWasStarted counts what the server was asked to make. Where that isn't known, the
// repeat has the key of the first try, under which the server makes nothing twice.
func TestCase30CreateIsRetriedOnlyWhenNothingWasStarted(t *testing.T) {
	for name, tc := range map[string]struct {
		fail  func(s *server, w http.ResponseWriter)
		tries int64
		ok    bool
	}{
		"not-started": {func(s *server, w http.ResponseWriter) { s.problem(w, api.Errorf(api.CodeNotStarted, "bind delay")) }, 2, true},
		"too-many": {func(s *server, w http.ResponseWriter) {
			e := api.Errorf(api.CodeTooMany, "rate")
			e.RetryMS = 1
			s.problem(w, e)
		}, 2, true},
		"internal":     {func(s *server, w http.ResponseWriter) { s.problem(w, api.Errorf(api.CodeInternal, "bug")) }, 1, false},
		"broken":       {func(*server, http.ResponseWriter) { panic(http.ErrAbortHandler) }, 2, true},
		"proxy-503":    {func(_ *server, w http.ResponseWriter) { w.WriteHeader(503) }, 2, true},
		"half":         {func(_ *server, w http.ResponseWriter) { _, _ = w.Write([]byte(`{"id":"s`)) }, 2, true},
		"redirect-307": {func(_ *server, w http.ResponseWriter) { w.Header().Set("Location", "/elsewhere"); w.WriteHeader(307) }, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t)
			var tries atomic.Int64
			keys := make(chan string, 2) // one a try
			s.mux.HandleFunc("POST /v1/sandboxes", func(w http.ResponseWriter, r *http.Request) {
				keys <- r.Header.Get("Idempotency-Key")
				if tries.Add(1) == 1 {
					tc.fail(s, w)
					return
				}
				s.write(w, api.Sandbox{ID: "s1"})
			})
			_, err := s.client().Create(testContext(t), api.Spec{Image: "busybox"})
			if tries.Load() != tc.tries || (err == nil) != tc.ok {
				t.Errorf("Create() = %v after %d tries, want %d", err, tries.Load(), tc.tries)
			}
			if _, typed := errors.AsType[*api.Error](err); err != nil && !typed {
				t.Errorf("Create() = %v, want a typed error", err)
			}
			key := <-keys
			if key == "" || tc.tries > 1 && key != <-keys {
				t.Errorf("the key %q isn't that of the next try", key)
			}
		})
	}
}

func TestEventsResume(t *testing.T) {
	s := newServer(t)
	var streams atomic.Int64
	s.other = func(ctx context.Context, st *aether.Stream) error {
		var q struct {
			Follow bool  `json:"follow"`
			Since  int64 `json:"since"`
		}
		if err := json.Unmarshal(st.Open().Body, &q); err != nil {
			return err
		}
		for seq := q.Since + 1; seq <= 6; seq++ {
			line, err := json.Marshal(api.Event{Seq: seq, Type: "updated"})
			if err != nil {
				return err
			}
			line = append(line, '\n')
			// In two pieces, as a stream may cut it anywhere.
			if err := errors.Join(st.Write(ctx, aether.Stdout, line[:5]), st.Write(ctx, aether.Stdout, line[5:])); err != nil {
				return err
			}
			if seq == 3 && streams.Add(1) == 1 {
				return api.Errorf(api.CodeUnavailable, "the edge restarts")
			}
		}
		return nil
	}
	var got []int64
	for e, err := range s.client().Sandbox("s1").Events(testContext(t), libdsec.WatchOptions{Follow: true}) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, e.Seq)
	}
	if diff := cmp.Diff([]int64{1, 2, 3, 4, 5, 6}, got); diff != "" {
		t.Errorf("Events() (-want +got):\n%s", diff)
	}
}

func TestResolve(t *testing.T) {
	dir := t.TempDir()
	store := libdsec.Contexts{Dir: filepath.Join(dir, "dsec")}
	file := filepath.Join(dir, "context.json")
	if err := os.WriteFile(file, []byte(`{"endpoint":"http://file","token":"tf"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(store.Save("named", libdsec.Settings{Endpoint: "http://named", Token: "tn"}), store.Use("named")); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		env  map[string]string
		want libdsec.Settings
	}{
		"current":           {nil, libdsec.Settings{Endpoint: "http://named", Token: "tn"}},
		"file":              {map[string]string{"DSEC_CONTEXT": file}, libdsec.Settings{Endpoint: "http://file", Token: "tf", File: file}},
		"environment":       {map[string]string{"DSEC_CONTEXT": file, "DSEC_ENDPOINT": "http://env", "DSEC_TOKEN": "te"}, libdsec.Settings{Endpoint: "http://env", Token: "te"}},
		"token-only":        {map[string]string{"DSEC_TOKEN": "te"}, libdsec.Settings{Endpoint: "http://named", Token: "te"}},
		"same-endpoint":     {map[string]string{"DSEC_ENDPOINT": "http://named/"}, libdsec.Settings{Endpoint: "http://named/", Token: "tn"}},
		"foreign-endpoint":  {map[string]string{"DSEC_ENDPOINT": "http://evil"}, libdsec.Settings{Endpoint: "http://evil"}},
		"foreign-and-token": {map[string]string{"DSEC_ENDPOINT": "http://evil", "DSEC_TOKEN": "te"}, libdsec.Settings{Endpoint: "http://evil", Token: "te"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := libdsec.Resolve(func(k string) string { return tc.env[k] }, store)
			got.Source = ""
			if diff := cmp.Diff(tc.want, got); err != nil || diff != "" {
				t.Errorf("Resolve() error %v (-want +got):\n%s", err, diff)
			}
		})
	}
	if _, err := libdsec.Resolve(func(string) string { return "" }, libdsec.Contexts{}); !libdsec.IsCode(err, api.CodeInvalid) {
		t.Errorf("Resolve() of nothing = %v, want a typed error", err)
	}
}

// A file that the environment names may be anything. A device without end would be read until the memory is full.
func TestSettingsAreReadFromSmallRegularFiles(t *testing.T) {
	dir := t.TempDir()
	large := filepath.Join(dir, "large.json")
	if err := os.WriteFile(large, []byte(`{"endpoint":"http://file","token":"tf"}`+strings.Repeat(" ", 1<<20)), 0o600); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{os.DevNull: "regular", dir: "regular", large: "larger"} {
		if s, err := libdsec.ReadContextFile(file); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ReadContextFile(%s) = %+v, %v", file, s, err)
		}
		store := libdsec.Contexts{Dir: t.TempDir()}
		if err := os.Symlink(file, filepath.Join(store.Dir, "current")); err != nil {
			t.Fatal(err)
		}
		if name, err := store.Current(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Current() of %s = %.20q, %v", file, name, err)
		}
	}
}

func TestContextsFollowFiles(t *testing.T) {
	dir := t.TempDir()
	store := libdsec.Contexts{Dir: filepath.Join(dir, "dsec")}
	file := filepath.Join(dir, "context.json")
	write := func(endpoint string) {
		if err := os.WriteFile(file, []byte(`{"endpoint":"`+endpoint+`","token":"t"}`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("http://old")
	if err := store.SaveFile("dev", file); err != nil {
		t.Fatal(err)
	}
	write("http://new")
	if s, err := store.Read("dev"); err != nil || s.Endpoint != "http://new" {
		t.Errorf("Read() = %+v, %v, want the restarted server's address", s, err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := store.Prune(); err != nil {
		t.Fatal(err)
	}
	if names, err := store.Names(); err != nil || len(names) != 0 {
		t.Errorf("Names() after Prune() = %v, %v", names, err)
	}
	for _, name := range []string{"", "../x", ".x", "a/b"} {
		if err := store.Save(name, libdsec.Settings{}); err == nil {
			t.Errorf("Save(%q) worked", name)
		}
	}
}
