package train

import (
	"bytes"
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsec-io/dsec/rl/env"
	"github.com/dsec-io/dsec/rl/optim"
)

// run trains, and returns what the episodes of the last update came to, too.
func run(t *testing.T, cfg Config, name string) (Result, env.Stats) {
	t.Helper()
	r, err := Run(t.Context(), cfg, maker(t, name), Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	return r, r.Last.Episodes
}

// TestLearns: a seeded run of a few seconds gets to a stated score.
func TestLearns(t *testing.T) {
	t.Run("squared", func(t *testing.T) {
		_, got := run(t, Config{Seed: 1, Steps: 1 << 20, Learn: Learn{Rate: 0.03, Minibatch: 2048, Entropy: 0.01}}, "squared")
		if got.Score < 0.6 {
			t.Errorf("%.2f of the targets were reached, want 0.6 (0.12 by chance)", got.Score)
		}
	})
	t.Run("cartpole", func(t *testing.T) {
		r, _ := run(t, Config{
			Seed: 1, Steps: 200_000, Envs: 64, Horizon: 32, Net: Net{Hidden: []int{64, 64}, Activation: "tanh"},
			Learn: Learn{Rate: 0.003, Minibatch: 512, Epochs: 4, Gamma: 0.98, Lambda: 0.8, TargetKL: 0.03},
		}, "cartpole")
		got, err := Eval(t.Context(), r.Policy, maker(t, "cartpole"), EvalConfig{Episodes: 64, Greedy: true})
		if err != nil {
			t.Fatal(err)
		}
		if got.Length < 400 {
			t.Errorf("the pole stands for %.0f steps, want 400 (20 by chance, 500 are the limit)", got.Length)
		}
	})
	t.Run("breakout", func(t *testing.T) {
		r, _ := run(t, Config{
			Seed: 1, Steps: 400_000, Envs: 128, Horizon: 64, CheckpointEvery: 100,
			Learn: Learn{Rate: 0.05, Minibatch: 1024, Gamma: 0.98, Entropy: 0.001, Optimizer: optim.Config{Name: "muon"}},
		}, "breakout")
		got, err := Eval(t.Context(), r.Policy, maker(t, "breakout"), EvalConfig{Episodes: 64})
		if err != nil {
			t.Fatal(err)
		}
		if got.Score < 0.15 {
			t.Errorf("%.3f of the points are won, want 0.15 (0.002 by chance)", got.Score)
		}
	})
}

// odd is a config in which nothing divides anything.
func odd(lstm int) Config {
	return Config{
		Seed: 7, Steps: 37 * 7 * 6, Envs: 37, Horizon: 7, CheckpointEvery: 2, Net: Net{Hidden: []int{9}, LSTM: lstm},
		Learn: Learn{Epochs: 2, Minibatch: 50, Segment: 3},
	}
}

func variants() map[string]Config {
	priorities := odd(5)
	priorities.Learn.Advantage, priorities.Learn.PriorityAlpha, priorities.Learn.PriorityBeta = "vtrace3", 0.8, 0.2
	priorities.Learn.Optimizer = optim.Config{Name: "muon"}
	return map[string]Config{"mlp": odd(0), "lstm": odd(6), "vtrace-muon": priorities}
}

func saved(t *testing.T, cfg Config, env string, hooks Hooks) []byte {
	t.Helper()
	if _, err := Run(t.Context(), cfg, maker(t, env), hooks); err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile(filepath.Join(cfg.Folder, CheckpointName))
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// TestSameBits: a seed gives the same bits, however many workers step the environments; another seed gives others.
func TestSameBits(t *testing.T) {
	for name, cfg := range variants() {
		t.Run(name, func(t *testing.T) {
			var first []byte
			for _, workers := range []int{0, 1, 3} {
				cfg.Workers, cfg.Folder = workers, t.TempDir()
				file := saved(t, cfg, "squared", Hooks{})
				if first == nil {
					first = file
				}
				if !bytes.Equal(file, first) {
					t.Errorf("%d workers come to something else", workers)
				}
			}
			cfg.Seed, cfg.Folder = 8, t.TempDir()
			if bytes.Equal(saved(t, cfg, "squared", Hooks{}), first) {
				t.Error("another seed comes to the same")
			}
		})
	}
}

// TestResume: a run that was stopped after any update ends like one that wasn't.
func TestResume(t *testing.T) {
	for name, cfg := range variants() {
		t.Run(name, func(t *testing.T) {
			cfg.Folder = t.TempDir()
			want := saved(t, cfg, "cartpole", Hooks{})
			for stop := 1; stop < 6; stop++ {
				cfg.Folder = t.TempDir()
				_, err := Run(t.Context(), cfg, maker(t, "cartpole"), Hooks{Update: func(p Progress) error {
					if p.Update == stop {
						return ErrStopped
					}
					return nil
				}})
				if err != nil {
					t.Fatal(err)
				}
				resumed := 0
				got := saved(t, cfg, "cartpole", Hooks{Resumed: func(update int) error {
					resumed = update
					return nil
				}})
				if !bytes.Equal(got, want) {
					t.Errorf("stopped after update %d, it comes to something else", stop)
				}
				// A hook that stops at update 2 comes before its checkpoint.
				if want := (stop - 1) / 2 * 2; resumed != want {
					t.Errorf("stopped after update %d, resumed from %d, want %d", stop, resumed, want)
				}
			}
		})
	}
}

// TestTruncation: the value of a state in an endless task with a time limit is that of the endless task. PufferLib
// takes a truncation for the end.
func TestTruncation(t *testing.T) {
	for name, tc := range map[string]struct {
		flag func(*env.Buffers) []uint8
		want float64
	}{
		"truncated":  {func(b *env.Buffers) []uint8 { return b.Truncations }, 10},
		"terminated": {func(b *env.Buffers) []uint8 { return b.Terminals }, 2.63},
	} {
		for _, lstm := range []int{0, 8} {
			t.Run(name, func(t *testing.T) {
				step := func(b *env.Buffers, row, tick int) {
					b.Rewards[row] = 1
					if tick == 4 {
						tc.flag(b)[row] = 1
					}
				}
				m := toyMaker(t, 1, env.Discrete{N: 2}, step, func(obs []float32, _, _ int) { obs[0] = 1 })
				r, err := Run(t.Context(), Config{
					Seed: 1, Envs: 16, Horizon: 16, Steps: 16 * 16 * 80, Net: Net{Hidden: []int{16}, LSTM: lstm},
					Learn: Learn{Rate: 0.02, Gamma: 0.9, Minibatch: 64, Epochs: 2, Anneal: "linear"},
				}, m, Hooks{})
				if err != nil {
					t.Fatal(err)
				}
				stats := value(t, r, 1)
				if lstm > 0 && name == "terminated" {
					tc.want = (1 - math.Pow(0.9, 5)) / 0.1 // it knows that it's the first step
				}
				if math.Abs(stats-tc.want) > 0.15*tc.want {
					t.Errorf("value %.2f, want %.2f", stats, tc.want)
				}
			})
		}
	}
}

// value is what a policy makes of an observation at the beginning of an episode.
func value(t *testing.T, r Result, obs float32) float64 {
	t.Helper()
	spec, err := env.NewSpec("x", 1, env.Reals(-1, 1, 1), env.Discrete{N: 2})
	if err != nil {
		t.Fatal(err)
	}
	b := env.NewBuffers(spec, 1)
	b.ObsF32[0] = obs
	p := newPlayer(r.Policy, spec, b, EvalConfig{})
	p.act()
	return float64(p.acts.Values[0])
}

// TestFirstRatioIsOne: what is learnt from is what was done. Were states not kept, or not zeroed at an episode's end,
// or masks forgotten, the policy would give other probabilities to the same actions.
func TestFirstRatioIsOne(t *testing.T) {
	for _, name := range []string{"memory", "squared", "2048", "snake", "forage"} {
		for _, segment := range []int{0, 3} {
			t.Run(name, func(t *testing.T) {
				cfg := Config{Seed: 3, Envs: 20, Horizon: 17, Net: Net{Hidden: []int{16}, LSTM: 12}, Learn: Learn{Rate: 0.05, Minibatch: 1 << 20, Segment: segment, GradClip: -1}}
				m := maker(t, name)
				cfg.Steps = 1 << 40
				_, err := Run(t.Context(), cfg, m, Hooks{Update: func(p Progress) error {
					if math.Abs(p.Loss.KL) > 1e-9 || math.Abs(p.Loss.Ratio-1) > 1e-4 {
						t.Errorf("update %d: KL %g, mean ratio %g", p.Update, p.Loss.KL, p.Loss.Ratio)
					}
					if p.Update == 5 {
						return ErrStopped
					}
					return nil
				}})
				if err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}

// TestActionMasks: a choice that isn't open is never taken, and learning knows that it wasn't.
func TestActionMasks(t *testing.T) {
	step := func(b *env.Buffers, row, tick int) {
		mask := b.ActionMasks[row*3 : row*3+3]
		if mask[b.Choices[row]] == 0 {
			panic("a choice that wasn't open")
		}
		mask[0], mask[1], mask[2] = uint8(tick%2), uint8(row%2), 1
		b.Rewards[row] = float32(b.Choices[row])
	}
	inner := toyMaker(t, 1, env.Discrete{N: 3}, step, func(obs []float32, row, tick int) { obs[0] = float32(row % 2) })
	m := func(n int) (env.Batch, error) {
		b, err := inner(n)
		if err == nil {
			b.(*toy).spec.Masked = true
		}
		return b, err
	}
	cfg := Config{Envs: 10, Horizon: 8, Steps: 10 * 8 * 5, Net: Net{Hidden: []int{8}}, Learn: Learn{Rate: 0.05}}
	_, err := Run(t.Context(), cfg, m, Hooks{Update: func(p Progress) error {
		if math.Abs(p.Loss.KL) > 1e-9 || math.Abs(p.Loss.Ratio-1) > 1e-4 {
			t.Errorf("update %d: KL %g, mean ratio %g", p.Update, p.Loss.KL, p.Loss.Ratio)
		}
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
}

// TestEveryRowOnce: an epoch learns from every step of the rollout, the last one, too.
func TestEveryRowOnce(t *testing.T) {
	cfg := odd(4)
	cfg.Learn.Epochs = 3
	r, _ := run(t, cfg, "squared")
	if want := 3 * 37 * 7; r.Last.Loss.Rows != want {
		t.Errorf("an update learnt from %d rows, want %d", r.Last.Loss.Rows, want)
	}
}

// TestMasks: rows with mask 0 aren't learnt from.
func TestMasks(t *testing.T) {
	step := func(b *env.Buffers, row, tick int) {
		if row%2 == 1 {
			b.Masks[row], b.Rewards[row] = 0, float32(math.Inf(1))
		}
	}
	m := toyMaker(t, 1, env.Discrete{N: 2}, step, func(obs []float32, row, _ int) { obs[0] = float32(row) })
	r, err := Run(t.Context(), Config{Envs: 6, Horizon: 5, Steps: 30}, m, Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	if r.Last.Loss.Rows != 15 {
		t.Errorf("learnt from %d rows, want 15", r.Last.Loss.Rows)
	}
}

// TestContinuous: the policy finds the number that it's asked for, which depends on the observation.
func TestContinuous(t *testing.T) {
	side := func(row, tick int) float32 { return float32((row+tick)%2)*1.2 - 0.6 }
	step := func(b *env.Buffers, row, tick int) {
		off := b.Numbers[row] - side(row, tick)
		b.Rewards[row] = -off * off
		b.Terminals[row] = 1
		if b.Numbers[row] < -1 || b.Numbers[row] > 1 {
			panic("a number out of its box")
		}
	}
	m := toyMaker(t, 1, env.Reals(-1, 1, 1), step, func(obs []float32, row, tick int) { obs[0] = side(row, tick) })
	r, err := Run(t.Context(), Config{
		Seed: 1, Envs: 32, Horizon: 16, Steps: 32 * 16 * 60, Net: Net{Hidden: []int{16}}, Learn: Learn{Rate: 0.02, Minibatch: 128, Epochs: 3},
	}, m, Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	if got := r.Last.Episodes.Return; got < -0.1 {
		t.Errorf("the mean square of the error is %.3f, want 0.1 (1 at first)", -got)
	}
}

func TestKLStop(t *testing.T) {
	cfg := odd(0)
	cfg.Learn.Epochs, cfg.Learn.Rate, cfg.Learn.TargetKL = 20, 0.1, 0.001
	r, _ := run(t, cfg, "squared")
	if all := 20 * 6; r.Last.Batches >= all || r.Last.Batches < 1 {
		t.Errorf("%d of %d minibatches in an update that KL should have ended", r.Last.Batches, all)
	}
}

func TestRunEnds(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	_, err := Run(ctx, odd(0), maker(t, "squared"), Hooks{Update: func(p Progress) error {
		if p.Update == 2 {
			cancel(why)
		}
		return nil
	}})
	if !errors.Is(err, why) {
		t.Errorf("a cancelled run: %v, want the cause", err)
	}
	show := func(obs []float32, _, _ int) { obs[0] = 1 }
	broken := toyMaker(t, 1, env.Discrete{N: 2}, func(*env.Buffers, int, int) {}, show)
	_, err = Run(t.Context(), odd(0), func(n int) (env.Batch, error) {
		b, err := broken(n)
		if err != nil {
			return nil, err
		}
		b.(*toy).err = errToy
		return b, nil
	}, Hooks{})
	if !errors.Is(err, errToy) {
		t.Errorf("an environment that breaks: %v", err)
	}
	nan := toyMaker(t, 1, env.Discrete{N: 2}, func(b *env.Buffers, row, _ int) { b.Rewards[row] = float32(math.NaN()) }, show)
	if _, err = Run(t.Context(), odd(0), nan, Hooks{}); err == nil || !strings.Contains(err.Error(), "isn't finite") {
		t.Errorf("rewards that are NaN: %v", err)
	}
}

func TestResumeRefuses(t *testing.T) {
	cfg := odd(0)
	cfg.Folder = t.TempDir()
	saved(t, cfg, "squared", Hooks{})
	other := cfg
	other.Learn.Gamma = 0.5
	if _, err := Run(t.Context(), other, maker(t, "squared"), Hooks{}); err == nil || !strings.Contains(err.Error(), "another run") {
		t.Errorf("a checkpoint of another config: %v", err)
	}
	if _, err := Run(t.Context(), cfg, maker(t, "maze"), Hooks{}); err == nil {
		t.Error("a checkpoint of another environment: no error")
	}
	name := filepath.Join(cfg.Folder, CheckpointName)
	if err := os.WriteFile(name, []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Run(t.Context(), cfg, maker(t, "squared"), Hooks{}); err == nil {
		t.Error("a spoilt checkpoint: no error")
	}
}

func TestEval(t *testing.T) {
	cfg := Config{
		Seed: 1, Steps: 150_000, Envs: 64, Horizon: 32, Folder: t.TempDir(), Net: Net{Hidden: []int{32}, LSTM: 16},
		Learn: Learn{Rate: 0.01, Minibatch: 512, Epochs: 2},
	}
	saved(t, cfg, "memory", Hooks{})
	policy, meta, err := Load(filepath.Join(cfg.Folder, CheckpointName))
	if err != nil {
		t.Fatal(err)
	}
	if meta.Env != "memory" || meta.Steps < 150_000 {
		t.Errorf("Load() tells %+v", meta)
	}
	for _, greedy := range []bool{true, false} {
		steps := 0
		stats, err := Eval(t.Context(), policy, maker(t, "memory"), EvalConfig{Seed: 9, Greedy: greedy, Step: func(*env.Buffers) error {
			steps++
			return nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		if stats.Episodes < 256 || stats.Return < 0.95 || steps == 0 {
			t.Errorf("greedy %v: %+v after %d steps", greedy, stats, steps)
		}
	}
	if _, err := Eval(t.Context(), policy, maker(t, "squared"), EvalConfig{}); err == nil {
		t.Error("a policy for another environment: no error")
	}
}

func TestAnnealed(t *testing.T) {
	for _, tc := range []struct {
		how      string
		progress float64
		want     float32
	}{{"none", 0.7, 8}, {"linear", 0, 8}, {"linear", 0.5, 5}, {"linear", 1, 2}, {"cosine", 0, 8}, {"cosine", 0.5, 5}, {"cosine", 1, 2}} {
		if got := annealed(tc.how, 8, 2, tc.progress); math.Abs(float64(got-tc.want)) > 1e-5 {
			t.Errorf("%s at %v: %v, want %v", tc.how, tc.progress, got, tc.want)
		}
	}
}

func TestValidate(t *testing.T) {
	for i, spoil := range []func(*Config){
		func(c *Config) { c.Steps = 0 },
		func(c *Config) { c.Envs = -1 },
		func(c *Config) { c.Learn.Anneal = "later" },
		func(c *Config) { c.Learn.Gamma = 2 },
		func(c *Config) { c.Learn.Advantage = "td" },
		func(c *Config) { c.Learn.Optimizer.Name = "sgd" },
		func(c *Config) { c.Learn.Minibatch = -5 },
		func(c *Config) { c.Net.Hidden = []int{-1} },
	} {
		cfg := odd(0)
		spoil(&cfg)
		if _, err := Run(t.Context(), cfg, maker(t, "squared"), Hooks{}); err == nil {
			t.Errorf("%d: no error", i)
		}
	}
}
