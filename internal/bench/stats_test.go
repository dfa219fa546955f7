package bench

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestQuantile(t *testing.T) {
	var s series
	for i := 100; i >= 1; i-- {
		s.times = append(s.times, time.Duration(i))
	}
	for q, want := range map[float64]time.Duration{0: 1, .1: 10, .5: 50, .9: 90, .99: 99, 1: 100} {
		if got := s.quantile(q); got != want {
			t.Errorf("quantile(%v) of 1 to 100 = %v, want %v", q, got, want)
		}
	}
	one := series{times: []time.Duration{7}}
	if got := []time.Duration{one.quantile(0), one.quantile(.5), one.quantile(1), (&series{}).quantile(.5)}; !cmp.Equal(got, []time.Duration{7, 7, 7, 0}) {
		t.Errorf("of one and of none: %v", got)
	}
	if got := quantileOf([]float64{3, 1, 2}, .5); got != 2 {
		t.Errorf("quantileOf(3 1 2, .5) = %v", got)
	}
}

// TestRunCountsWhatHappens: all operations are done, failures are told apart, and the peak is what was really reached.
func TestRunCountsWhatHappens(t *testing.T) {
	var calls, told atomic.Int64
	together := make(chan struct{}, 4) // one token a worker that has met the others
	wait := func(ctx context.Context) error {
		select {
		case together <- struct{}{}:
		default:
		}
		for len(together) < cap(together) {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(time.Millisecond):
			}
		}
		return nil
	}
	p := &plan{
		n: 40, rounds: 2, concurrency: 4,
		contenders: []*contender{
			{name: "ours", do: func(ctx context.Context, l *laps) error {
				if err := wait(ctx); err != nil {
					return err
				}
				l.lap("step")
				if calls.Add(1)%10 == 0 {
					return errors.New("every tenth")
				}
				return nil
			}},
			{name: "slow", share: 4, do: func(_ context.Context, l *laps) error { l.lap("step"); return nil }},
		},
		failed: func(string, error) { told.Add(1) },
	}
	out := p.run(t.Context())
	ours, slow := out["ours"], out["slow"]
	type count struct{ Done, Failed, Peak, Times, Blocks int }
	if diff := cmp.Diff(count{36, 4, 4, 36, 2}, count{ours.done, ours.failed, ours.peak, len(ours.find("step").times), len(ours.rates)}); diff != "" {
		t.Errorf("ours (-want +got):\n%s", diff)
	}
	if slow.done != 10 || slow.failed != 0 {
		t.Errorf("slow: %+v", slow)
	}
	if told.Load() != 4 || ours.rate() <= 0 {
		t.Errorf("told of %d failures, rate %v", told.Load(), ours.rate())
	}
}
