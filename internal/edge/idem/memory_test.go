package idem

import (
	"strings"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/edge/disk"
)

// TestWaitingResultsAreCounted: a result takes memory until all who follow have it, whether it was just made or read
// back, and one project's don't take all.
func TestWaitingResultsAreCounted(t *testing.T) {
	now := time.Now()
	k := open(t, t.TempDir(), disk.Files{}, &now, Limits{Memory: 4000})
	want := request("a", kindCommand, 1)
	free := func(project string) bool {
		h := k.memory.Open(project)
		defer h.Close()
		return h.Grow(600)
	}
	r, ours, err := k.claim(want)
	if err != nil || !ours {
		t.Fatal(ours, err)
	}
	slow := r.join()
	if err := r.put(t.Context(), result(strings.Repeat("x", 500))); err != nil {
		t.Fatal(err)
	}
	r.finish(result("end"))
	if free(want.project) || !free("another") {
		t.Error("a result that somebody still follows isn't counted, or is another's")
	}
	r.leave(slow)
	if !free(want.project) {
		t.Error("it is counted after all who followed have gone")
	}

	replay := func() (*Run, *reader, error) {
		r, _, err := k.claim(want)
		if err != nil {
			t.Fatal(err)
		}
		return r, r.join(), r.load()
	}
	one, follows, err := replay()
	if err != nil || len(one.frames) != 2 {
		t.Fatalf("a replay has %d frames, %v", len(one.frames), err)
	}
	other, follows2, err := replay()
	if !api.IsCode(err, api.CodeTooMany) {
		t.Errorf("a second one: %v", err)
	}
	other.leave(follows2)
	one.leave(follows)
	if _, _, err := replay(); err != nil {
		t.Errorf("after the first: %v", err)
	}
}
