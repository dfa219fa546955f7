package budget_test

import (
	"sync"
	"testing"

	"github.com/dsec-io/dsec/internal/budget"
)

func TestNobodyGetsMoreThanTheirPart(t *testing.T) {
	b := budget.New(10, 6)
	a1, a2, c := b.Open("a"), b.Open("a"), b.Open("c")
	for i, step := range []struct {
		h    *budget.Hold
		n    int64
		want bool
	}{{a1, 4, true}, {a2, 3, false}, {a2, 2, true}, {c, 5, false}, {c, 4, true}, {c, 1, false}} {
		if got := step.h.Grow(step.n); got != step.want {
			t.Errorf("step %d: Grow(%d) = %v, want %v", i, step.n, got, step.want)
		}
	}
	a1.Close()
	a1.Close()
	if c.Grow(3) || !c.Grow(2) || !a1.Grow(2) {
		t.Error("what was given back isn't what was taken")
	}
}

func TestConcurrentHolds(t *testing.T) {
	b := budget.New(1000, 1000)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 1000 {
				h := b.Open("a")
				h.Grow(100)
				h.Grow(25)
				h.Close()
			}
		})
	}
	wg.Wait()
	if !b.Open("a").Grow(1000) {
		t.Error("something wasn't given back")
	}
}
