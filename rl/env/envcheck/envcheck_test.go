package envcheck_test

import (
	"context"
	"errors"
	"math"
	"testing"

	"github.com/dsec-io/dsec/rl/env"
	"github.com/dsec-io/dsec/rl/env/envcheck"
)

// walk is a small environment that's right, but for what flaw makes wrong: one number goes up by the choice, and the
// episode ends at 10, or is cut off after 8 steps.
type walk struct {
	flaw  string
	at    int
	ticks int
	over  bool
	rand  env.Rand
}

func (w *walk) Spec() env.Spec {
	agents := 1
	var space env.Space = env.Reals(0, 20, 2)
	if w.flaw == "no space" {
		space = env.Reals(2, 1, 2)
	}
	s, err := env.NewSpec("walk", agents, space, env.Discrete{N: 3})
	if err != nil {
		return env.Spec{Name: "walk", Agents: 1}
	}
	s.Masked = true
	return s
}

func (w *walk) Close() error { return nil }

func (w *walk) Reset(_ context.Context, seed uint64, b *env.Buffers) error {
	if w.flaw != "own randomness" || w.rand.State == 0 {
		w.rand = env.NewRand(seed)
	}
	if w.flaw != "state left over" {
		w.ticks = 0
	}
	w.at, w.over = w.rand.IntN(3), false
	w.show(b)
	return nil
}

func (w *walk) show(b *env.Buffers) {
	b.ObsF32[0] = float32(w.at)
	if w.flaw != "half an observation" {
		b.ObsF32[1] = float32(w.ticks)
	}
	if w.flaw == "out of space" && w.at > 8 {
		b.ObsF32[0] = 21
	}
	if w.flaw == "not a number" && w.at > 8 {
		b.ObsF32[0] = float32(math.NaN())
	}
	for i := range b.ActionMasks {
		b.ActionMasks[i] = 1
		if w.flaw == "nothing open" && w.at > 8 {
			b.ActionMasks[i] = 0
		}
	}
}

func (w *walk) Step(_ context.Context, b *env.Buffers) error {
	if w.over && w.flaw != "goes on after the end" {
		return env.ErrEpisodeOver
	}
	if w.flaw == "fails" {
		return errors.New("broken")
	}
	w.ticks++
	w.at += int(min(max(b.Choices[0], 0), 2))
	if w.at >= 10 {
		b.Terminals[0] = 1
		b.Rewards[0] = 1
	}
	if w.ticks == 8 && (w.at < 10 || w.flaw == "both at once") {
		b.Truncations[0] = 1
	}
	switch w.flaw {
	case "flag of 2":
		b.Terminals[0] *= 2
	case "no reward":
		b.Rewards[0] = float32(math.Inf(1))
	case "rubbish in masks":
		b.ActionMasks[1] = 3
	case "done and masked":
		if b.Terminals[0] == 1 {
			b.Masks[0] = 0
		}
	case "panics":
		if w.at == 9 {
			panic("walked into something")
		}
	}
	w.over = b.Over()
	w.show(b)
	if w.flaw == "rubbish in masks" {
		b.ActionMasks[1] = 3
	}
	return nil
}

func TestEnv(t *testing.T) {
	open := func(flaw string) func() (env.Env, error) {
		return func() (env.Env, error) { return &walk{flaw: flaw, over: true}, nil }
	}
	if err := envcheck.Env(t.Context(), open(""), envcheck.Config{}); err != nil {
		t.Errorf("nothing is wrong: %v", err)
	}
	for _, flaw := range []string{
		"no space", "own randomness", "state left over", "half an observation", "out of space", "not a number",
		"nothing open", "goes on after the end", "fails", "both at once", "flag of 2", "no reward", "rubbish in masks",
		"done and masked",
	} {
		if err := envcheck.Env(t.Context(), open(flaw), envcheck.Config{}); err == nil {
			t.Errorf("%s: not found", flaw)
		} else {
			t.Logf("%s: %v", flaw, err)
		}
	}
}

// strayer is a batch that writes where it shouldn't, or not where it should.
type strayer struct {
	flaw string
	b    *env.Buffers
	n    int
	tick int
}

func (s *strayer) Spec() env.Spec {
	spec, err := env.NewSpec("strayer", 1, env.Bytes(9, 4), env.Discrete{N: 2})
	if err != nil {
		panic(err)
	}
	return spec
}

func (s *strayer) Bind(b *env.Buffers) error {
	if s.flaw != "any size" && b.Rows != s.n {
		return errors.New("other size")
	}
	s.b = b
	return nil
}

func (s *strayer) Reset(context.Context, []uint64) error {
	s.tick = 0
	if s.flaw != "reset leaves flags" {
		s.b.BeginStep()
	}
	clear(s.b.ObsU8)
	return nil
}

func (s *strayer) Step(context.Context) error {
	s.tick++
	s.b.BeginStep()
	if s.tick%5 == 0 {
		for i := range s.b.Terminals {
			s.b.Terminals[i] = 1
			if s.flaw != "half a final" {
				s.b.FinalU8[i*4+3] = 0
			}
			copy(s.b.FinalU8[i*4:], s.b.ObsU8[i*4:i*4+3])
		}
	}
	if s.flaw == "counts its rows" {
		s.b.Rewards[0] = float32(s.b.Rows)
	}
	return nil
}

func (s *strayer) Close() error { return nil }

func TestBatch(t *testing.T) {
	open := func(flaw string) func(int) (env.Batch, error) {
		return func(n int) (env.Batch, error) { return &strayer{flaw: flaw, n: n}, nil }
	}
	if err := envcheck.Batch(t.Context(), open(""), envcheck.Config{}); err != nil {
		t.Errorf("nothing is wrong: %v", err)
	}
	for _, flaw := range []string{"any size", "reset leaves flags", "half a final", "counts its rows"} {
		if err := envcheck.Batch(t.Context(), open(flaw), envcheck.Config{}); err == nil {
			t.Errorf("%s: not found", flaw)
		} else {
			t.Logf("%s: %v", flaw, err)
		}
	}
}
