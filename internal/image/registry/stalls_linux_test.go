package registry_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/image/registry"
)

// TestAnswerWithoutEnd pulls from a registry whose answers begin and don't end, whichever of them it is: all that the node
// can do at a time is soon used up by pulls that wait for ever.
func TestAnswerWithoutEnd(t *testing.T) {
	t.Parallel()
	hang := func(status int, drip time.Duration) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(status)
			for r.Context().Err() == nil {
				_, _ = w.Write([]byte(" "))
				_ = http.NewResponseController(w).Flush()
				select {
				case <-r.Context().Done():
				case <-time.After(drip):
				}
			}
		}
	}
	for name, tc := range map[string]struct {
		path   string
		answer func(http.ResponseWriter, *http.Request)
		told   string
	}{
		"manifest-that-stalls":     {"/manifests/", hang(http.StatusOK, time.Hour), "nothing came for too long"},
		"manifest-that-drips":      {"/manifests/", hang(http.StatusOK, 50*time.Millisecond), "an answer didn't end"},
		"refusal-that-stalls":      {"/manifests/", hang(http.StatusForbidden, time.Hour), "nothing came for too long"},
		"busy-registry-that-drips": {"/manifests/", hang(http.StatusBadGateway, 50*time.Millisecond), "didn't end"},
		"greeting-that-stalls":     {"/v2/", hang(http.StatusOK, time.Hour), ""},
		"greeting-that-drips":      {"/v2/", hang(http.StatusOK, 50*time.Millisecond), ""},
		"refused-blob-that-drips":  {"/blobs/", hang(http.StatusForbidden, 50*time.Millisecond), "didn't end"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, n := newHub(t), newNode(t, registry.Config{Stall: 300 * time.Millisecond})
			h.image("latest", arch, plain, pack(t, entry{"a", "b"}))
			h.misbehave(func(w http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path != tc.path && !(tc.path != "/v2/" && strings.Contains(r.URL.Path, tc.path)) {
					return false
				}
				tc.answer(w, r)
				return true
			})
			done := make(chan error, 1)
			go func() {
				_, _, err := n.pull(order(h, ""))
				done <- err
			}()
			select {
			case err := <-done:
				if tc.told == "" && err != nil {
					t.Errorf("a greeting whose end nobody needs fails the pull: %v", err)
				}
				if tc.told != "" {
					wantError(t, err, api.CodeUnavailable, tc.told)
				}
			case <-time.After(time.Minute):
				t.Error("the pull still waits")
			}
		})
	}
}

// TestListOfManyPlatforms reads a list of as many other platforms as fit, which takes no long thinking.
func TestListOfManyPlatforms(t *testing.T) {
	t.Parallel()
	h, n := newHub(t), newNode(t, registry.Config{})
	var b strings.Builder
	b.WriteString(`{"schemaVersion":2,"manifests":[{"platform":{"os":"plan9"}}`)
	for i := 0; b.Len() < 4_000_000; i++ {
		fmt.Fprintf(&b, `,{"platform":{"os":"%06x"}}`, i)
	}
	b.WriteString("]}")
	h.misbehave(func(w http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/manifests/") {
			_, _ = w.Write([]byte(b.String()))
			return true
		}
		return false
	})
	done := make(chan error, 1)
	go func() {
		_, _, err := n.pull(order(h, ""))
		done <- err
	}()
	select {
	case err := <-done:
		wantError(t, err, api.CodeUnsupportedConstraint, "plan9")
	case <-time.After(time.Minute):
		t.Error("the list is still being read")
	}
}
