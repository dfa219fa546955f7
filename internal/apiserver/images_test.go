package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
)

// importImage takes an upload: "refuse" at its beginning is refused at once, all else becomes an image of its size.
func (e *fakeEdge) importImage(ctx context.Context, s *aether.Stream, o *aether.Open) error {
	var want api.ImageImport
	if err := json.Unmarshal(o.Body, &want); err != nil {
		return err
	}
	size := int64(0)
	for end := false; !end; {
		f, err := s.Recv(ctx)
		if err != nil {
			return err
		}
		refuse := size == 0 && strings.HasPrefix(string(f.Data), "refuse")
		size += int64(len(f.Data))
		end = f.End
		f.Release()
		if refuse {
			return api.Errorf(api.CodeUnsupportedConstraint, "as asked")
		}
	}
	line := `{"type":"progress","phase":"reading","bytes":1}` + "\n"
	for _, part := range []string{line[:9], line[9:]} {
		if err := s.Write(ctx, aether.Stdout, []byte(part)); err != nil {
			return err
		}
	}
	body, err := json.Marshal(api.Image{Name: want.Name, SizeBytes: size})
	return errors.Join(err, s.Send(ctx, aether.MsgReply, body))
}

func TestImageImport(t *testing.T) {
	r := newRig(t)
	large := strings.Repeat("x", 3<<20)
	resp := r.do(request{method: "POST", path: "/v1/images?name=a&replace=1&squash&format=oci", body: large})
	var made api.Image
	if err := json.Unmarshal([]byte(resp.body), &made); err != nil || resp.status != http.StatusCreated {
		t.Fatalf("import = %d %s, %v", resp.status, resp.body, err)
	}
	if made.Name != "a" || made.SizeBytes != int64(len(large)) || resp.header.Get("Location") != "/v1/images/a" {
		t.Errorf("import = %+v %v", made, resp.header)
	}
	want := `{"name":"a","format":"oci","replace":true,"squash":true}`
	if got := string(r.edge.last(t, "image.import").Body); got != want {
		t.Errorf("the edge was asked %s, want %s", got, want)
	}
	resp = r.do(request{method: "POST", path: "/v1/images?name=a", body: large, header: http.Header{"Accept": {mediaNDJSON}}})
	var kinds []string
	for line := range strings.Lines(resp.body) {
		var ev api.ImageEvent
		if err := json.Unmarshal([]byte(line), &ev); err != nil {
			t.Fatal(err)
		}
		kinds = append(kinds, ev.Type)
	}
	if diff := cmp.Diff([]string{"progress", "done"}, kinds); diff != "" || resp.header.Get("Content-Type") != mediaNDJSON {
		t.Errorf("events (-want +got):\n%s%v", diff, resp.header)
	}
}

// TestImageRefusedEarly: what the edge says before the end of an upload is told at once, and the rest isn't waited for.
func TestImageRefusedEarly(t *testing.T) {
	r := newRig(t)
	for _, accept := range []string{"", mediaNDJSON} {
		body, w := io.Pipe()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.url+"/v1/images?name=a", body)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+r.token)
		req.Header.Set("Accept", accept)
		go func() { _, _ = w.Write([]byte("refuse" + strings.Repeat("x", 1<<20))) }()
		began := time.Now()
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		if err != nil && accept == "" {
			t.Errorf("read answer: %v", err)
		}
		resp.Body.Close()
		if !strings.Contains(string(b), string(api.CodeUnsupportedConstraint)) || time.Since(began) > 10*time.Second {
			t.Errorf("answer = %d %s after %s", resp.StatusCode, b, time.Since(began))
		}
		w.Close()
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestImageRequests(t *testing.T) {
	r := newRig(t)
	for _, tc := range []struct{ method, path, asked, body string }{
		{"GET", "/v1/images", "image.list", `{}`},
		{"GET", "/v1/images/a", "image.list", `{"name":"a"}`},
		{"GET", "/v1/images/gc", "image.list", `{"name":"gc"}`},
		{"DELETE", "/v1/images/a?force=1", "image.remove", `{"name":"a","force":true}`},
		{"POST", "/v1/images/gc?all=1", "image.gc", `{"all":true}`},
		{"GET", "/v1/images/a/export", "image.export", `{"name":"a"}`},
	} {
		resp := r.do(request{method: tc.method, path: tc.path})
		if resp.status != http.StatusOK {
			t.Errorf("%s %s = %d %s", tc.method, tc.path, resp.status, resp.body)
			continue
		}
		if got := string(r.edge.last(t, tc.asked).Body); got != tc.body {
			t.Errorf("%s %s: the edge was asked %s, want %s", tc.method, tc.path, got, tc.body)
		}
	}
	if resp := r.do(request{method: "GET", path: "/v1/images/a/export"}); resp.body != "tar" || resp.header.Get("Content-Type") != mediaTar {
		t.Errorf("export = %q %v", resp.body, resp.header)
	}
	if resp := r.do(request{method: "POST", path: "/v1/images"}); resp.problem.Code != api.CodeInvalid || resp.problem.Field != "name" {
		t.Errorf("import without a name = %d %s", resp.status, resp.body)
	}
}
