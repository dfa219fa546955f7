package sweep

import (
	"context"
	"errors"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/dsec-io/dsec/rl/train"
)

func TestSpaces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.SampledFrom([]Space{
			{"a", Uniform, -1, 3}, {"b", Int, -2, 5}, {"c", Pow2, 3, 100}, {"d", Log, 1e-5, 1}, {"e", Logit, 0.5, 0.9999},
		}).Draw(t, "space")
		if err := s.Validate(); err != nil {
			t.Fatal(err)
		}
		u := rapid.Float64Range(0, 1).Draw(t, "u")
		x := s.At(u)
		if x < s.Low || x > s.High || s.At(0) > x || s.At(1) < x {
			t.Fatalf("%+v at %v: %v", s, u, x)
		}
		if s.Kind == Int && x != math.Trunc(x) || s.Kind == Pow2 && math.Log2(x) != math.Trunc(math.Log2(x)) {
			t.Fatalf("%+v at %v: %v", s, u, x)
		}
	})
	if got := (Space{"x", Log, 0.01, 1}).At(0.5); math.Abs(got-0.1) > 1e-9 {
		t.Errorf("the middle of 0.01 to 1 is %v", got)
	}
	for _, s := range []Space{{"", Uniform, 2, 1}, {"", Log, 0, 1}, {"", Logit, 0.5, 1}, {"", "cauchy", 0, 1}, {"", Pow2, 5, 7}, {"", Int, 0.2, 0.8}} {
		if s.Validate() == nil {
			t.Errorf("no error for %+v", s)
		}
	}
}

// bowl is best, 0, at x = 0.3, y = 100; a larger budget is nearer to it, and costs more.
func bowl(_ context.Context, p map[string]float64, budget int64, _ uint64) (score, cost float64, err error) {
	if p["x"] > 0.9 {
		return 0, 0, errors.New("it broke")
	}
	off := math.Hypot(p["x"]-0.3, math.Log10(p["y"])-2)
	return -off*off - 1/float64(budget), float64(budget) * (1 + p["x"]), nil
}

func config(trials int) Config {
	return Config{Spaces: []Space{{"x", Uniform, 0, 1}, {"y", Log, 1, 10000}}, Seed: 1, Trials: trials, Budget: 81}
}

func TestSearches(t *testing.T) {
	for name, tc := range map[string]struct {
		search func(context.Context, Config, Objective) ([]Trial, error)
		trials int
		want   float64
	}{"random": {Random, 80, -0.2}, "halving": {Halving, 80, -0.2}, "pareto": {Pareto, 80, -0.05}} {
		t.Run(name, func(t *testing.T) {
			told := 0
			cfg := config(tc.trials)
			cfg.Done = func(Trial) { told++ }
			trials, err := tc.search(t.Context(), cfg, bowl)
			if err != nil {
				t.Fatal(err)
			}
			best, ok := Best(trials)
			if !ok || best.Score < tc.want || told != len(trials) {
				t.Errorf("best of %d (told of %d): %+v, want %v", len(trials), told, best, tc.want)
			}
			again, err := tc.search(t.Context(), config(tc.trials), bowl)
			if err != nil || again[len(again)-1].Score != trials[len(trials)-1].Score {
				t.Error("the same seed searches elsewhere")
			}
		})
	}
}

// TestHalving: every round has a third of the one before, with three times the budget, up to the whole.
func TestHalving(t *testing.T) {
	trials, err := Halving(t.Context(), config(27), bowl)
	if err != nil {
		t.Fatal(err)
	}
	count := map[int64]int{}
	for _, tr := range trials {
		count[tr.Budget]++
	}
	if count[3] != 27 || count[9] != 9 || count[27] != 3 || count[81] != 1 {
		t.Errorf("trials of each budget: %v", count)
	}
}

func TestFront(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 12).Draw(t, "n")
		all := make([]Trial, n)
		for i := range all {
			all[i] = Trial{Score: float64(rapid.IntRange(0, 5).Draw(t, "score")), Cost: float64(rapid.IntRange(0, 5).Draw(t, "cost"))}
			if rapid.IntRange(0, 5).Draw(t, "err") == 0 {
				all[i].Err = "it broke"
			}
		}
		front := Front(all)
		for _, a := range all {
			on := slices.ContainsFunc(front, func(f Trial) bool { return f.Score == a.Score && f.Cost == a.Cost })
			beaten := slices.ContainsFunc(all, func(b Trial) bool {
				return b.Err == "" && b.Score >= a.Score && b.Cost <= a.Cost && (b.Score > a.Score || b.Cost < a.Cost)
			})
			if a.Err == "" && on == beaten {
				t.Fatalf("%+v: on the front %v, beaten %v", a, on, beaten)
			}
		}
	})
}

func TestCancelled(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	trials, err := Random(ctx, config(10), func(context.Context, map[string]float64, int64, uint64) (float64, float64, error) {
		cancel(why)
		return 1, 1, nil
	})
	if !errors.Is(err, why) || len(trials) != 1 {
		t.Errorf("%d trials, %v", len(trials), err)
	}
	if _, err := Random(t.Context(), Config{}, bowl); err == nil {
		t.Error("no error for an empty search")
	}
}

func TestApply(t *testing.T) {
	cfg := train.Config{Seed: 1<<63 + 1, Steps: 10, Workers: 2, Net: train.Net{Hidden: []int{128, 64}}}
	got, err := Apply(cfg, map[string]float64{"learn.rate": 0.25, "horizon": 32, "net.hidden.1": 16, "learn.optimizer.beta1": 0.5})
	if err != nil {
		t.Fatal(err)
	}
	if got.Learn.Rate != 0.25 || got.Horizon != 32 || got.Net.Hidden[1] != 16 || got.Net.Hidden[0] != 128 || got.Learn.Optimizer.Beta1 != 0.5 || got.Workers != 2 || got.Seed != 1<<63+1 {
		t.Errorf("Apply() = %+v", got)
	}
	if cfg.Net.Hidden[1] != 64 {
		t.Error("the original has changed")
	}
	for _, bad := range []string{"learn.speed", "horizon.x", "net.hidden.2", "net.hidden.a", "learn"} {
		if _, err := Apply(cfg, map[string]float64{bad: 1}); err == nil {
			t.Errorf("%s: no error", bad)
		}
	}
	if _, err := Apply(cfg, map[string]float64{"horizon": 1.5}); err == nil {
		t.Error("a horizon of 1.5: no error")
	}
}
