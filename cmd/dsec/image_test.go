package main

import (
	"archive/tar"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dsec-io/dsec/api"
)

// imageServer answers about images: it has "mine", "used" is in use, and nothing else is there.
func imageServer(t *testing.T, got *string) []string {
	t.Helper()
	im := api.Image{
		Name: "mine", Digest: "sha256:" + strings.Repeat("ab", 32), SizeBytes: 1_234_567, CreatedAt: time.Now().Add(-90 * time.Second),
		Env: []string{"A=b"}, Entrypoint: []string{"/e"}, Cmd: []string{"x"}, User: "app", Workdir: "/srv",
	}
	answer := func(w http.ResponseWriter, status int, v any) {
		if status > 0 { // else it is another line of an answer
			w.WriteHeader(status)
		}
		if err := json.NewEncoder(w).Encode(v); err != nil {
			t.Error(err)
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/images", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, 200, api.ImageList{Items: []api.Image{im, {Name: "odd\x1b[31m", Broken: "no superblock", Shared: true}}})
	})
	mux.HandleFunc("GET /v1/images/{name}", func(w http.ResponseWriter, _ *http.Request) { answer(w, 200, im) })
	mux.HandleFunc("DELETE /v1/images/{name}", func(w http.ResponseWriter, r *http.Request) {
		if r.PathValue("name") == "used" && r.FormValue("force") == "" {
			e := api.FieldError(api.CodeConflict, "name", "say force", "in use")
			answer(w, 409, e.Complete())
			return
		}
		answer(w, 200, api.ImageRemoved{Removed: []string{r.PathValue("name")}})
	})
	mux.HandleFunc("POST /v1/images/gc", func(w http.ResponseWriter, r *http.Request) {
		removed := []string{}
		if r.FormValue("all") != "" {
			removed = []string{"mine"}
		}
		answer(w, 200, api.ImageRemoved{Removed: removed, FreedBytes: 2_000_000_000})
	})
	mux.HandleFunc("GET /v1/images/{name}/export", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "tar of "+r.PathValue("name"))
		if r.PathValue("name") == "broken" {
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
	})
	mux.HandleFunc("POST /v1/images", func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		*got = r.URL.RawQuery + " " + string(b)
		_, _ = io.WriteString(w, `{"type":"progress","phase":"reading","bytes":5}`+"\n")
		if r.FormValue("name") == "bad" {
			answer(w, 0, api.ImageEvent{Type: "error", Error: api.Errorf(api.CodeInvalid, "a bad archive").Complete()})
			return
		}
		answer(w, 0, api.ImageEvent{Type: "done", Image: &im})
	})
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	return []string{"DSEC_ENDPOINT=" + srv.URL, "DSEC_TOKEN=t", "HOME=" + t.TempDir(), "TERM=dumb"}
}

func TestImageCommands(t *testing.T) {
	var got string
	env := imageServer(t, &got)
	dir := t.TempDir()
	file := filepath.Join(dir, "in.tar")
	if err := os.WriteFile(file, []byte("a tar"), 0o600); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]struct {
		code      int
		out, errs string // parts
		sent      string
	}{
		"import mine " + file:                {0, "mine\n", "", "name=mine a tar"},
		"import --replace --squash mine -":   {0, "mine\n", "", "name=mine&replace=1&squash=1 from stdin"},
		"import --format oci -o json mine -": {0, `"size_bytes": 1234567`, "", "format=oci&name=mine from stdin"},
		"import bad -":                       {125, "", "a bad archive", ""},
		"import mine " + dir + "/none":       {125, "", "no such file", ""},
		"import mine":                        {125, "", "PATH is missing", ""},
		"ls":                                 {0, "mine          1.2 MB   1m    0           instance   sha256:abababababab\n", "", ""},
		"ls -o name":                         {0, "mine\nodd\\x1b[31m\n", "", ""},
		"ls -o yaml":                         {0, "name: mine\n", "", ""},
		"inspect mine":                       {0, "Entrypoint:   /e\n", "", ""},
		"inspect -o name mine":               {0, "mine\n", "", ""},
		"rm mine other":                      {0, "mine\nother\n", "", ""},
		"rm used":                            {125, "", "in use", ""},
		"rm used mine":                       {125, "mine\n", "remove used", ""},
		"rm -f used":                         {0, "used\n", "", ""},
		"rm":                                 {125, "", "IMAGE is missing", ""},
		"gc":                                 {0, "", "2.00 GB given back", ""},
		"gc --all -o name":                   {0, "mine\n", "", ""},
		"export mine":                        {0, "tar of mine", "", ""},
		"export broken":                      {125, "", "", ""},
		"export -f " + dir + "/out.tar mine": {0, "", "", ""},
		"export -f " + dir + "/broken.tar broken": {125, "", "", ""},
	} {
		t.Run(strings.ReplaceAll(line, dir, ""), func(t *testing.T) {
			var out, errs strings.Builder
			code := run(t.Context(), append([]string{"image"}, strings.Fields(line)...), env, strings.NewReader("from stdin"), &out, &errs)
			if code != want.code || !strings.Contains(out.String(), want.out) || !strings.Contains(errs.String(), want.errs) {
				t.Errorf("exit code %d, stdout %q, stderr %q; want %d, %q, %q", code, out.String(), errs.String(), want.code, want.out, want.errs)
			}
			if want.sent != "" && got != want.sent {
				t.Errorf("the server got %q, want %q", got, want.sent)
			}
		})
	}
	var left []string
	for _, name := range []string{"out.tar", "out.tar.part", "broken.tar", "broken.tar.part"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			left = append(left, name)
		}
	}
	if diff := cmp.Diff([]string{"out.tar"}, left); diff != "" {
		t.Errorf("exported files (-want +got):\n%s", diff)
	}
}

func TestImageImportOfAFolder(t *testing.T) {
	var got string
	env := imageServer(t, &got)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, errs strings.Builder
	if code := run(t.Context(), []string{"image", "import", "mine", dir}, env, strings.NewReader(""), &out, &errs); code != 0 {
		t.Fatalf("exit code %d, %s", code, errs.String())
	}
	_, sent, _ := strings.Cut(got, " ")
	tr := tar.NewReader(strings.NewReader(sent))
	for _, want := range []string{"./", "file"} {
		if h, err := tr.Next(); err != nil || h.Name != want {
			t.Fatalf("the tar has %+v, %v, want %s", h, err, want)
		}
	}
}

func TestImageCompletion(t *testing.T) {
	var got string
	env := imageServer(t, &got)
	for _, line := range []string{"image inspect", "image rm", "image export", "run", "sandbox create"} {
		var out, errs strings.Builder
		run(t.Context(), append(append([]string{"__complete"}, strings.Fields(line)...), ""), env, strings.NewReader(""), &out, &errs)
		if !strings.HasPrefix(out.String(), "mine\t1.2 MB\n") {
			t.Errorf("%s completes %q", line, out.String())
		}
	}
}
