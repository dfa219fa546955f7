package nearest_test

import (
	"testing"

	"github.com/dsec-io/dsec/internal/nearest"
)

func TestDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"", "abc", 3}, {"abc", "", 3}, {"memory", "memory", 0}, {"memroy", "memory", 2}, {"imge", "image", 1}, {"kitten", "sitting", 3}} {
		if got := nearest.Distance(c.a, c.b); got != c.want {
			t.Errorf("Distance(%q, %q) = %d, want %d", c.a, c.b, got, c.want)
		}
	}
}
