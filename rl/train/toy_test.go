package train

import (
	"context"
	"errors"
	"testing"

	"github.com/dsec-io/dsec/rl/env"
	"github.com/dsec-io/dsec/rl/envs"
	"github.com/dsec-io/dsec/rl/vec"
)

func maker(t testing.TB, name string) vec.Maker {
	t.Helper()
	m, err := envs.Maker(name)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// toy is a batch of environments that are made up for one test: what a step of a row comes to is a function.
type toy struct {
	spec env.Spec
	b    *env.Buffers
	tick []int
	// step sees the row's actions in b, and writes reward, flags and mask; tick is which step of the episode it is.
	step func(b *env.Buffers, row, tick int)
	// show writes the row's observation: of the episode's step tick.
	show  func(obs []float32, row, tick int)
	stats env.Stats
	err   error
}

// toyMaker makes batches of toys; obs is the length of an observation.
func toyMaker(t testing.TB, obs int, act env.Space, step func(b *env.Buffers, row, tick int), show func(obs []float32, row, tick int)) vec.Maker {
	t.Helper()
	spec, err := env.NewSpec("toy", 1, env.Reals(-1e6, 1e6, obs), act)
	if err != nil {
		t.Fatal(err)
	}
	return func(n int) (env.Batch, error) {
		return &toy{spec: spec, tick: make([]int, n), step: step, show: show}, nil
	}
}

func (y *toy) Spec() env.Spec { return y.spec }

func (y *toy) Bind(b *env.Buffers) error {
	y.b = b
	return b.Check(y.spec)
}

func (y *toy) Reset(_ context.Context, seeds []uint64) error {
	for i := range seeds {
		y.tick[i] = 0
		y.show(y.b.ObsF32[i*y.spec.Obs.Len:(i+1)*y.spec.Obs.Len], i, 0)
		y.b.Masks[i] = 1
	}
	y.b.BeginStep()
	return nil
}

func (y *toy) Step(context.Context) error {
	y.b.BeginStep()
	for i := range y.tick {
		y.b.Masks[i] = 1
		y.step(y.b, i, y.tick[i])
		y.tick[i]++
		obs := y.b.ObsF32[i*y.spec.Obs.Len : (i+1)*y.spec.Obs.Len]
		y.show(obs, i, y.tick[i])
		y.stats.Return += float64(y.b.Rewards[i])
		if y.b.Done(i) {
			y.b.KeepFinal(i)
			y.stats.Episodes++
			y.stats.Length += float64(y.tick[i])
			y.tick[i] = 0
			y.show(obs, i, 0)
		}
	}
	return y.err
}

func (y *toy) TakeStats() env.Stats {
	s := y.stats
	y.stats = env.Stats{}
	return s
}

func (y *toy) Close() error { return nil }

var errToy = errors.New("the toy broke")
