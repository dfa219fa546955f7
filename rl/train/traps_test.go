package train

import (
	"math"
	"testing"

	"github.com/dsec-io/dsec/rl/env"
)

// Each of these is something that trainers elsewhere get wrong. More of them are in train_test.go, under what they are
// about: truncation, masks, action masks, every row once, the same bits for any number of workers.

func trapTrainer(t *testing.T, cfg Config, step func(b *env.Buffers, row, tick int)) *trainer {
	t.Helper()
	show := func(obs []float32, row, tick int) { obs[0], obs[1] = float32(row+1), float32(tick+1) }
	r, err := newTrainer(cfg, toyMaker(t, 2, env.Discrete{N: 2}, step, show))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.v.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := r.prepare(t.Context(), Hooks{}); err != nil {
		t.Fatal(err)
	}
	return r
}

// TestRewardsAreKept: rewards are learnt from as they are, and clamped only where that's asked for. (PufferLib clamps
// each to ±1, unasked.)
func TestRewardsAreKept(t *testing.T) {
	for limit, want := range map[float32][2]float32{0: {40, -7}, 2: {2, -2}} {
		cfg := Config{Steps: 1000, Envs: 2, Horizon: 4, Learn: Learn{RewardClip: limit, RawAdv: true, Gamma: 1e-9, Lambda: 1e-9}}
		r := trapTrainer(t, cfg, func(b *env.Buffers, row, _ int) { b.Rewards[row] = [2]float32{40, -7}[row] })
		if err := r.collect(t.Context()); err != nil {
			t.Fatal(err)
		}
		segments, err := r.ring.Segments(1)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.advantages(); err != nil {
			t.Fatal(err)
		}
		r.draw(segments, 0, len(segments))
		for i, obs := 0, r.batch.ObsF32; i < len(segments); i++ {
			if got := r.batch.Returns[i]; math.Abs(float64(got-want[int(obs[2*i])-1])) > 1e-4 {
				t.Errorf("limit %v: environment %v is told %v, want %v", limit, obs[2*i], got, want[int(obs[2*i])-1])
			}
		}
	}
}

// TestBetaReachesOne: by the end the draw by priorities is made up for in full, whatever the priorities' power is. (In
// PufferLib that power is a factor of the annealing: with 0.8 it ends at 0.84.)
func TestBetaReachesOne(t *testing.T) {
	for _, alpha := range []float32{0.1, 0.8} {
		cfg := Config{Steps: 4 * 2 * 4, Envs: 2, Horizon: 4, Learn: Learn{PriorityAlpha: alpha, PriorityBeta: 0.2}}
		r := trapTrainer(t, cfg, func(*env.Buffers, int, int) {})
		for update, want := range []float64{0.2, 0.4, 0.6, 0.8, 1} {
			if r.update = update; math.Abs(r.beta()-want) > 1e-6 {
				t.Errorf("alpha %v, after %d of 4 updates: %v, want %v", alpha, update, r.beta(), want)
			}
		}
	}
}

// TestStateEndsWithItsEpisode: an LSTM's state is zero before the first step of each episode, in the midst of a rollout
// and for that environment alone; over the end of a rollout it goes on. (PufferLib 3.0 zeroes all of them at each
// rollout's beginning, and none at an episode's.)
func TestStateEndsWithItsEpisode(t *testing.T) {
	cfg := Config{Steps: 1000, Envs: 2, Horizon: 5, Net: Net{Hidden: []int{4}, LSTM: 3}}
	r := trapTrainer(t, cfg, func(b *env.Buffers, row, tick int) {
		if row == 0 && tick == 2 {
			b.Terminals[0] = 1
		}
	})
	zero := func(row int) bool {
		for _, x := range append(r.ring.H[row*3:row*3+3:row*3+3], r.ring.C[row*3:row*3+3]...) {
			if x != 0 {
				return false
			}
		}
		return true
	}
	for step := range 12 {
		if step%5 == 0 {
			r.ring.Clear()
		}
		if zero(0) != (step%3 == 0) || zero(1) != (step == 0) {
			t.Errorf("before step %d the states are zero: %v, %v", step, zero(0), zero(1))
		}
		if err := r.step(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}
