package bench

import (
	"slices"
	"time"
)

// series is what was measured of one step of one contender at one concurrency.
type series struct {
	contender string
	step      string
	times     []time.Duration
	sorted    bool
}

// quantile is the smallest measured time that at least a share q of all is not above.
func (s *series) quantile(q float64) time.Duration {
	if len(s.times) == 0 {
		return 0
	}
	if !s.sorted {
		slices.Sort(s.times)
		s.sorted = true
	}
	i := int(q*float64(len(s.times))+0.999999) - 1
	return s.times[min(max(i, 0), len(s.times)-1)]
}

// tally is what became of the operations of one contender at one concurrency.
type tally struct {
	done, failed int
	peak         int           // the most operations that were under way at once
	wall         time.Duration // of its blocks
	rates        []float64     // per block, a second
	steps        []*series     // in the order of their first appearance
}

func (t *tally) step(contender, name string) *series {
	for _, s := range t.steps {
		if s.step == name {
			return s
		}
	}
	s := &series{contender: contender, step: name}
	t.steps = append(t.steps, s)
	return s
}

func (t *tally) find(name string) *series {
	for _, s := range t.steps {
		if s.step == name {
			return s
		}
	}
	return &series{step: name}
}

func (t *tally) rate() float64 {
	if t.wall <= 0 {
		return 0
	}
	return float64(t.done) / t.wall.Seconds()
}

// quantileOf is quantile for plain numbers.
func quantileOf(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	v := slices.Sorted(slices.Values(values))
	i := int(q*float64(len(v))+0.999999) - 1
	return v[min(max(i, 0), len(v)-1)]
}
