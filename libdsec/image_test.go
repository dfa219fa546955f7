package libdsec_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
)

// imageClient makes a client of a server that makes an image of what it gets, of as many bytes; a program uses
// libdsec.New().
func imageClient() (client *libdsec.Client, done func()) {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/images", func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		fmt.Fprintf(w, `{"type":"progress","phase":"reading","bytes":%d}`+"\n", n)
		switch r.FormValue("name") {
		case "refused":
			fmt.Fprintln(w, `{"type":"error","error":{"code":"unsupported_constraint","detail":"a device"}}`)
		case "cut":
		default:
			if err == nil {
				fmt.Fprintf(w, `{"type":"done","image":{"name":%q,"size_bytes":%d}}`+"\n", r.FormValue("name"), n)
			}
		}
	})
	mux.HandleFunc("GET /v1/images/{name}/export", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "tar of "+r.PathValue("name"))
		if r.PathValue("name") == "cut" {
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
	})
	srv := httptest.NewServer(mux)
	c, err := libdsec.New(libdsec.WithEndpoint(srv.URL, testToken))
	if err != nil {
		panic(err)
	}
	return c, func() {
		if err := c.Close(); err != nil {
			panic(err)
		}
		srv.Close()
	}
}

func ExampleImages_Import() {
	client, done := imageClient() // libdsec.New()
	defer done()
	archive := strings.NewReader("what docker save has written") // or an *os.File
	im, err := client.Images().Import(context.Background(), "mine", archive, libdsec.ImportOptions{
		Replace:  true,
		Progress: func(ev api.ImageEvent) { fmt.Println(ev.Phase, ev.Bytes) },
	})
	fmt.Println(im.Name, im.SizeBytes, err)
	// Output:
	// reading 28
	// mine 28 <nil>
}

func TestImageFaults(t *testing.T) {
	client, done := imageClient()
	defer done()
	images := client.Images()
	if _, err := images.Import(t.Context(), "refused", strings.NewReader("x"), libdsec.ImportOptions{}); !libdsec.IsCode(err, api.CodeUnsupportedConstraint) {
		t.Errorf("a refused import = %v", err)
	}
	if _, err := images.Import(t.Context(), "cut", strings.NewReader("x"), libdsec.ImportOptions{}); !libdsec.IsCode(err, api.CodeUnavailable) {
		t.Errorf("an import without an end = %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("not wanted any more")
	cancel(why)
	if _, err := images.Import(ctx, "x", strings.NewReader("x"), libdsec.ImportOptions{}); !errors.Is(err, why) {
		t.Errorf("a cancelled import = %v", err)
	}
	for name, whole := range map[string]bool{"mine": true, "cut": false} {
		r, err := images.Export(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r)
		if string(b) != "tar of "+name || (err == nil) != whole {
			t.Errorf("export of %s = %q, %v", name, b, err)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, name := range []string{"", ".", "..", "a/b"} {
		if _, err := images.Inspect(t.Context(), name); !libdsec.IsCode(err, api.CodeNoSuchImage) {
			t.Errorf("Inspect(%q) = %v", name, err)
		}
	}
}
