// Package sweep searches for good settings: at random, by successive halving, or around the settings that nothing else
// beats in both score and cost.
//
// A search asks an [Objective] for the score of settings, one after the other, and tells of each [Trial]. It's a
// function of its seed and of what the objective returns. A trial that fails counts as tried, and is never built on.
//
// A search belongs to one goroutine.
package sweep

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/dsec-io/dsec/rl/env"
)

// Kind is how a setting is spread over its range.
type Kind string

// The kinds.
const (
	Uniform Kind = "uniform"
	Int     Kind = "int"   // whole numbers
	Pow2    Kind = "pow2"  // powers of two
	Log     Kind = "log"   // as many from 0.01 to 0.1 as from 0.1 to 1
	Logit   Kind = "logit" // for numbers near 1 (or 0): as many from 0.9 to 0.99 as from 0.99 to 0.999
)

// Space is the range of one setting.
type Space struct {
	Name      string // as for Apply
	Kind      Kind
	Low, High float64
}

// Validate says what is wrong with the range.
func (s Space) Validate() error {
	ok := s.Low <= s.High && !math.IsInf(s.High-s.Low, 0)
	switch s.Kind {
	case Uniform:
	case Int:
		ok = ok && math.Ceil(s.Low) <= math.Floor(s.High)
	case Log:
		ok = ok && s.Low > 0
	case Pow2:
		ok = ok && s.Low > 0 && math.Ceil(math.Log2(s.Low)) <= math.Floor(math.Log2(s.High))
	case Logit:
		ok = ok && s.Low > 0 && s.High < 1
	default:
		ok = false
	}
	if !ok {
		return fmt.Errorf("sweep: %s: %q from %v to %v", s.Name, s.Kind, s.Low, s.High)
	}
	return nil
}

// At returns the setting at a place u from 0 to 1 of its range.
func (s Space) At(u float64) float64 {
	between := func(f func(float64) float64) float64 { return f(s.Low) + u*(f(s.High)-f(s.Low)) }
	var x float64
	switch s.Kind {
	case Int:
		low, high := math.Ceil(s.Low), math.Floor(s.High)
		return min(high, low+math.Floor(u*(high-low+1)))
	case Pow2:
		low, high := math.Ceil(math.Log2(s.Low)), math.Floor(math.Log2(s.High))
		return math.Exp2(min(high, low+math.Floor(u*(high-low+1))))
	case Log:
		x = math.Exp(between(math.Log))
	case Logit:
		x = 1 / (1 + math.Exp(-between(func(p float64) float64 { return math.Log(p / (1 - p)) })))
	default:
		x = between(func(p float64) float64 { return p })
	}
	return max(s.Low, min(s.High, x))
}

// Trial is settings that were tried.
type Trial struct {
	Params map[string]float64 `json:"params"`
	Seed   uint64             `json:"seed"`
	Budget int64              `json:"budget"` // steps that it had
	Score  float64            `json:"score"`
	Cost   float64            `json:"cost"` // what the objective says: seconds, usually
	Err    string             `json:"err,omitempty"`

	place []float64 // of each setting in its range
}

// Objective tries settings for a budget, and says how good they are (more is better) and what they cost.
type Objective func(ctx context.Context, params map[string]float64, budget int64, seed uint64) (score, cost float64, err error)

// Config is a search.
type Config struct {
	Spaces []Space
	Seed   uint64
	Trials int   // of Random and Pareto; of Halving's first round
	Budget int64 // of each; with Halving of the last round
	// Factor is Halving's: one in so many goes on, to so many times the budget; 0 is 3.
	Factor int
	Done   func(Trial) // called after each trial; may be nil
}

// Validate reports every fault.
func (c Config) Validate() error {
	var errs []error
	for _, s := range c.Spaces {
		errs = append(errs, s.Validate())
	}
	if len(c.Spaces) == 0 || c.Trials < 1 || c.Budget < 1 || c.Factor < 0 || c.Factor == 1 {
		errs = append(errs, fmt.Errorf("sweep: %d settings, %d trials of %d, factor %d", len(c.Spaces), c.Trials, c.Budget, c.Factor))
	}
	return errors.Join(errs...)
}

// search is a search that goes on.
type search struct {
	cfg       Config
	objective Objective
	rnd       env.Rand
	trials    []Trial
}

func newSearch(cfg Config, objective Objective) (*search, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &search{cfg: cfg, objective: objective, rnd: env.NewRand(env.SeedOf(cfg.Seed, 5))}, nil
}

func (s *search) anywhere() []float64 {
	place := make([]float64, len(s.cfg.Spaces))
	for i := range place {
		place[i] = float64(s.rnd.Uint64()>>11) / (1 << 53)
	}
	return place
}

// try tries the settings at a place. Only the end of ctx is an error.
func (s *search) try(ctx context.Context, place []float64, budget int64) (Trial, error) {
	if err := context.Cause(ctx); err != nil {
		return Trial{}, err
	}
	t := Trial{Params: make(map[string]float64), Seed: s.cfg.Seed, Budget: budget, place: place}
	for i, space := range s.cfg.Spaces {
		t.Params[space.Name] = space.At(place[i])
	}
	var err error
	t.Score, t.Cost, err = s.objective(ctx, t.Params, budget, t.Seed)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return t, cause
	}
	if err == nil && (math.IsNaN(t.Score) || math.IsNaN(t.Cost)) {
		err = errors.New("the score isn't a number")
	}
	if err != nil {
		t.Err = err.Error()
	}
	s.trials = append(s.trials, t)
	if s.cfg.Done != nil {
		s.cfg.Done(t)
	}
	return t, nil
}

// Random tries settings drawn from all of their ranges.
func Random(ctx context.Context, cfg Config, objective Objective) ([]Trial, error) {
	s, err := newSearch(cfg, objective)
	if err != nil {
		return nil, err
	}
	for range cfg.Trials {
		if _, err := s.try(ctx, s.anywhere(), cfg.Budget); err != nil {
			return s.trials, err
		}
	}
	return s.trials, nil
}

// Halving tries many settings for a small budget, the best of them for a larger one, and so on.
func Halving(ctx context.Context, cfg Config, objective Objective) ([]Trial, error) {
	s, err := newSearch(cfg, objective)
	if err != nil {
		return nil, err
	}
	factor := cfg.Factor
	if factor == 0 {
		factor = 3
	}
	budget, places := cfg.Budget, make([][]float64, cfg.Trials)
	for n := cfg.Trials; n > 1; n = (n + factor - 1) / factor {
		budget = max(1, budget/int64(factor))
	}
	for i := range places {
		places[i] = s.anywhere()
	}
	for {
		var round []Trial
		for _, place := range places {
			t, err := s.try(ctx, place, budget)
			if err != nil {
				return s.trials, err
			}
			if t.Err == "" {
				round = append(round, t)
			}
		}
		if len(places) == 1 || len(round) == 0 {
			return s.trials, nil
		}
		slices.SortStableFunc(round, func(a, b Trial) int { return cmp.Compare(b.Score, a.Score) })
		keep := min(len(round), (len(places)+factor-1)/factor)
		places = places[:0]
		for _, t := range round[:keep] {
			places = append(places, t.place)
		}
		budget = min(cfg.Budget, budget*int64(factor))
	}
}

// Pareto draws a quarter of its trials from all of the ranges, and the others from around those that are best at what
// they cost, sometimes for a part of the budget: cheap settings are worth knowing, too.
func Pareto(ctx context.Context, cfg Config, objective Objective) ([]Trial, error) {
	s, err := newSearch(cfg, objective)
	if err != nil {
		return nil, err
	}
	for i := range cfg.Trials {
		place, front := s.anywhere(), Front(s.trials)
		if 4*i >= cfg.Trials && len(front) > 0 {
			near := front[s.rnd.IntN(len(front))].place
			for j := range place { // a step of a tenth of the range or so, seldom a long one
				far := 2*place[j] - 1
				place[j] = max(0, min(1, near[j]+0.8*far*far*far))
			}
		}
		budget := cfg.Budget
		if s.rnd.IntN(3) == 0 {
			budget = max(1, budget/2)
		}
		if _, err := s.try(ctx, place, budget); err != nil {
			return s.trials, err
		}
	}
	return s.trials, nil
}

// Front returns the trials that no other one beats in score at the same cost or less, cheapest first.
func Front(trials []Trial) []Trial {
	var good []Trial
	for _, t := range trials {
		if t.Err == "" {
			good = append(good, t)
		}
	}
	slices.SortStableFunc(good, func(a, b Trial) int {
		return cmp.Or(cmp.Compare(a.Cost, b.Cost), cmp.Compare(b.Score, a.Score))
	})
	var front []Trial
	for _, t := range good {
		if len(front) == 0 || t.Score > front[len(front)-1].Score {
			front = append(front, t)
		}
	}
	return front
}

// Best returns the trial of the highest score; false where none went well.
func Best(trials []Trial) (Trial, bool) {
	front := Front(trials)
	if len(front) == 0 {
		return Trial{}, false
	}
	return front[len(front)-1], true
}
