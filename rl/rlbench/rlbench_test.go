package rlbench

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/dsec-io/dsec/rl/env"
	"github.com/dsec-io/dsec/rl/envs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestRun(t *testing.T) {
	used := time.Duration(0)
	clock := func() time.Duration { used += time.Millisecond; return used }
	results, err := Run(t.Context(), Config{Rows: 32, Samples: 2, Sample: 2 * time.Millisecond, Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	if want := len(envs.Names()) + 5; len(results) != want {
		t.Errorf("%d results, want %d", len(results), want)
	}
	for _, r := range results {
		if r.Value <= 0 || r.Best < r.Value || r.Wall <= 0 || r.N <= 0 || r.Unit != "steps/s" || r.Samples != 2 {
			t.Errorf("%+v", r)
		}
	}
}

func TestRunMatch(t *testing.T) {
	results, err := Run(t.Context(), Config{Rows: 8, Samples: 1, Sample: time.Millisecond, Match: "step/pong"})
	if err != nil || len(results) != 1 {
		t.Errorf("%v, %v", results, err)
	}
	if _, err := Run(t.Context(), Config{Rows: -1}); err == nil {
		t.Error("fewer than no rows: no error")
	}
}

// lazy is a batch that stops doing anything after some steps: what a benchmark must not count.
type lazy struct {
	env.Batch
	left int
}

func (l *lazy) Step(ctx context.Context) error {
	if l.left--; l.left < 0 {
		return nil
	}
	return l.Batch.Step(ctx)
}

func TestLazyIsFound(t *testing.T) {
	made := 0
	s := stand{name: "lazy", envs: 8, open: openSerial, maker: func(n int) (env.Batch, error) {
		b, err := envs.NewCartpole(n, envs.CartpoleConfig{})
		made++
		if made == 2 { // the one that's measured
			return &lazy{b, 100}, err
		}
		return b, err
	}}
	_, err := s.measure(t.Context(), Config{Samples: 1, Sample: time.Millisecond})
	if err == nil || !strings.Contains(err.Error(), "state") {
		t.Errorf("error %v", err)
	}
}

func TestMedian(t *testing.T) {
	for want, v := range map[float64][]float64{2: {3, 1, 2}, 2.5: {4, 1, 3, 2}, 7: {7}} {
		if got := median(v); got != want {
			t.Errorf("median(%v) = %v, want %v", v, got, want)
		}
	}
}

func BenchmarkHandoff(b *testing.B) {
	all, err := stands(Config{Rows: 1024, Workers: 2})
	if err != nil {
		b.Fatal(err)
	}
	for _, s := range all {
		if !s.wall {
			continue
		}
		b.Run(strings.TrimPrefix(s.name, "handoff/"), func(b *testing.B) {
			r, err := s.open(&s)
			if err != nil {
				b.Fatal(err)
			}
			defer func() {
				if err := r.close(); err != nil {
					b.Error(err)
				}
			}()
			const steps = 100
			for b.Loop() {
				if _, err := r.run(b.Context(), 1, steps); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N)*steps*float64(s.envs)/b.Elapsed().Seconds()/1e6, "Msteps/s")
		})
	}
}

func ExampleRun() {
	results, err := Run(context.Background(), Config{Rows: 64, Samples: 1, Sample: time.Millisecond, Match: "step/squared-alone"})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(results[0].Name, results[0].Unit, results[0].Value > 0)
	// Output: step/squared-alone steps/s true
}
