package train

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/dsec-io/dsec/rl/env"
	"github.com/dsec-io/dsec/rl/f32"
	"github.com/dsec-io/dsec/rl/nn"
	"github.com/dsec-io/dsec/rl/vec"
)

// EvalConfig says how a policy is tried.
type EvalConfig struct {
	Seed     uint64
	Envs     int   // 0 is 64
	Workers  int   // as for Config
	Episodes int64 // at least so many; 0 is 256
	MaxSteps int64 // of each environment; 0 is 100,000
	Greedy   bool  // always the likeliest action, instead of drawing
	// Step is called after each step, with what the environments show; an error ends the trial. ErrStopped isn't one.
	Step func(*env.Buffers) error
}

// Eval tries a policy and returns the mean of what its episodes came to. Episodes that end sooner are more among them:
// a long trial has less of that.
func Eval(ctx context.Context, policy *nn.Policy, maker vec.Maker, cfg EvalConfig) (stats env.Stats, err error) {
	or(&cfg.Envs, 64)
	or(&cfg.Episodes, 256)
	or(&cfg.MaxSteps, 100_000)
	v, err := open(maker, cfg.Envs, cfg.Workers)
	if err != nil {
		return env.Stats{}, err
	}
	defer func() { err = errors.Join(err, v.Close()) }()
	taker, ok := v.(env.StatsTaker)
	if !ok {
		return env.Stats{}, errors.New("evaluation: the environments don't count their episodes")
	}
	spec, shape := v.Spec(), policy.Config()
	if spec.Obs.Len != shape.Obs || !slices.Equal(spec.Act.Choices, shape.Choices) || spec.Act.Numbers != shape.Numbers {
		return env.Stats{}, fmt.Errorf("evaluation: the policy is for other observations or actions than those of %s", spec.Name)
	}
	if err := v.Reset(ctx, env.SeedOf(cfg.Seed, 3)); err != nil {
		return env.Stats{}, fmt.Errorf("evaluation: %w", err)
	}
	p := newPlayer(policy, spec, v.Buffers(), cfg)
	for step := int64(0); step < cfg.MaxSteps && stats.Episodes < cfg.Episodes; step++ {
		p.act()
		if err := v.Step(ctx); err != nil {
			return env.Stats{}, fmt.Errorf("evaluation: %w", err)
		}
		p.forget()
		stats.Add(taker.TakeStats())
		if cfg.Step == nil {
			continue
		}
		if err := cfg.Step(v.Buffers()); errors.Is(err, ErrStopped) {
			break
		} else if err != nil {
			return env.Stats{}, err
		}
	}
	return stats.Mean(), nil
}

// player acts by a policy.
type player struct {
	policy *nn.Policy
	pass   *nn.Pass
	spec   env.Spec
	b      *env.Buffers
	greedy bool
	rnd    env.Rand
	acts   nn.Actions
	seq    nn.Sequence
}

func newPlayer(policy *nn.Policy, spec env.Spec, b *env.Buffers, cfg EvalConfig) *player {
	h, c := f32.NewMatrix(b.Rows, policy.Config().LSTM), f32.NewMatrix(b.Rows, policy.Config().LSTM)
	return &player{
		policy: policy, pass: policy.NewPass(), spec: spec, b: b, greedy: cfg.Greedy, rnd: env.NewRand(env.SeedOf(cfg.Seed, 4)),
		acts: nn.Actions{
			Masks: b.ActionMasks, Choices: make([]int32, len(b.Choices)), Numbers: make([]float32, len(b.Numbers)),
			LogProbs: make([]float32, b.Rows), Values: make([]float32, b.Rows),
		},
		seq: nn.Sequence{Steps: 1, Seqs: b.Rows, H: h, C: c, NextH: h, NextC: c},
	}
}

func (p *player) act() {
	out := p.pass.Forward(nn.Input{Rows: p.b.Rows, U8: p.b.ObsU8, F32: p.b.ObsF32}, &p.seq)
	if p.greedy {
		p.policy.Best(out, &p.acts)
	} else {
		p.policy.Sample(out, &p.acts, &p.rnd)
	}
	tell(p.spec, p.b, p.acts.Choices, p.acts.Numbers)
}

// forget zeroes the states of episodes that are over.
func (p *player) forget() {
	if p.seq.H.Cols == 0 {
		return
	}
	for row := range p.b.Rows {
		if p.b.Done(row) {
			clear(p.seq.H.Row(row))
			clear(p.seq.C.Row(row))
		}
	}
}
