package container

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"
)

// Rest is what the filler does now and then.
func (b *Backend) Rest(ctx context.Context, now time.Time) { b.rest(ctx, now) }

// Held is what a backend counts and keeps: equal before and after something that left nothing.
func (b *Backend) Held() map[string]int {
	b.mu.Lock()
	n := map[string]int{"shards": len(b.shards), "boxes": len(b.boxes), "claims": len(b.claims), "images": len(b.images)}
	b.mu.Unlock()
	for _, sh := range b.allShards() {
		sh.mu.Lock()
		n["places"] += sh.used
		n["known to shards"] += len(sh.boxes)
		n["slots"] += len(sh.free)
		n["made ahead"] += len(sh.ready)
		for _, s := range sh.free {
			if s.root != nil {
				n["roots"]++
			}
		}
		sh.mu.Unlock()
	}
	return n
}

// Hint wakes the filler.
func (b *Backend) Hint() { b.hint() }

// KnownToShards asks all shards for their sandboxes.
func (b *Backend) KnownToShards(t testing.TB) []string {
	t.Helper()
	var names []string
	for _, sh := range b.allShards() {
		conn, err := sh.connection(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		known, err := knownBoxes(t.Context(), conn)
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, slices.Collect(maps.Keys(known))...)
	}
	slices.Sort(names)
	return names
}
