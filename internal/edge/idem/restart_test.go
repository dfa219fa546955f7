package idem

import (
	"context"
	"testing"
	"time"

	"github.com/dsec-io/dsec/internal/edge/disk"
)

// TestProcessThatMayHaveStarted: when the edge died while it was starting a process, a repeat isn't kept waiting for
// what nobody is doing any more: it has no answer, so the aether is asked.
func TestProcessThatMayHaveStarted(t *testing.T) {
	now, dir := time.Now(), t.TempDir()
	want := request("a", kindProcess, 1)
	if _, ours, err := open(t, dir, disk.Files{}, &now, Limits{}).claim(want); err != nil || !ours {
		t.Fatal(ours, err)
	}
	k := open(t, dir, disk.Files{}, &now, Limits{}) // after a kill -9
	if err := k.Settle(func(string) bool { return false }); err != nil {
		t.Fatal(err)
	}
	r, ours, err := k.claim(want)
	if err != nil || ours || r.ref != want.ref {
		t.Fatalf("the repeat: %+v, %v, %v", r, ours, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	me := r.join()
	defer r.leave(me)
	if err := r.follow(ctx, me, func(f Frame) error { t.Errorf("it was given %+v", f); return nil }); err != nil {
		t.Errorf("it waited: %v", err)
	}
}
