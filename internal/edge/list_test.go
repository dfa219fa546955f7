package edge

import (
	"fmt"
	"slices"
	"testing"

	"github.com/dsec-io/dsec/api"
)

// TestListOfOneMoment: sandboxes created at the same time have an order of their own, and pages neither repeat nor hide
// any. An edge makes no two, but a record may come from a clock that stood still.
func TestListOfOneMoment(t *testing.T) {
	n := startNode(t, nil)
	var want []string
	for range 9 {
		want = append(want, n.create(plain).ID)
	}
	n.stop()
	for _, id := range want {
		n.edit(id, func(r map[string]any) { r["created_at"] = "2024-01-02T03:04:05.678Z" })
	}
	n.up()
	slices.Sort(want)
	slices.Reverse(want)
	for limit := 1; limit <= 10; limit++ {
		var got []string
		for cursor := ""; ; {
			var page api.SandboxList
			n.must("sandbox.list", "", fmt.Sprintf(`{"limit":%d,"cursor":%q}`, limit, cursor), &page)
			for _, sb := range page.Items {
				got = append(got, sb.ID)
			}
			if cursor = page.Cursor; cursor == "" || len(got) > len(want) {
				break
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("pages of %d show %v, want %v", limit, got, want)
		}
	}
}

func TestNote(t *testing.T) {
	n := startNode(t, nil)
	sb := n.create(plain)
	n.edge.Note(sb.ID, "aether_lost", nil)
	n.edge.Note("s-nobody", "aether_lost", nil)
	n.edge.Note(sb.ID, "aether_back", nil)
	if got, want := n.eventTypes(sb.ID), []string{"created", "running", "aether_lost", "aether_back"}; !slices.Equal(got, want) {
		t.Errorf("events %v, want %v", got, want)
	}
	n.must("sandbox.stop", sb.ID, nil, nil)
	n.edge.Note(sb.ID, "aether_lost", nil)
	if got := n.eventTypes(sb.ID); got[len(got)-1] != "stopped" {
		t.Errorf("after the end: %v", got)
	}
}
