package meter

import (
	"math"
	"testing"
)

// TestGrowth: what grows with the number and what grows with its square are told apart.
func TestGrowth(t *testing.T) {
	var all []Sample
	for n := 16.0; n <= 1600; n += 16 {
		all = append(all, Sample{n, 480*n + 0.07*n*n})
	}
	linear, square, ok := Growth(all)
	if !ok || math.Abs(linear-480) > 1e-6 || math.Abs(square-0.07) > 1e-9 {
		t.Errorf("%v and %v, %v", linear, square, ok)
	}
	if _, _, ok := Growth(all[:7]); ok {
		t.Error("seven samples are enough")
	}
}
