package train

import (
	"context"
	"fmt"
	"time"

	"github.com/dsec-io/dsec/rl/adv"
	"github.com/dsec-io/dsec/rl/buffer"
	"github.com/dsec-io/dsec/rl/env"
	"github.com/dsec-io/dsec/rl/f32"
	"github.com/dsec-io/dsec/rl/nn"
	"github.com/dsec-io/dsec/rl/optim"
	"github.com/dsec-io/dsec/rl/vec"
)

// Phases are where the time of an update went.
type Phases struct {
	Env     time.Duration `json:"env"`     // stepping environments
	Policy  time.Duration `json:"policy"`  // forward and drawing actions, while collecting
	Gather  time.Duration `json:"gather"`  // advantages, and copying minibatches
	Forward time.Duration `json:"forward"` // learning: forward and loss
	Back    time.Duration `json:"back"`    // learning: backward and optimizer
}

// Progress is one update.
type Progress struct {
	Update   int           `json:"update"` // from 1
	Updates  int           `json:"updates"`
	Steps    int64         `json:"steps"` // so far
	Elapsed  time.Duration `json:"elapsed"`
	SPS      float64       `json:"sps"` // steps per second of this update
	Episodes env.Stats     `json:"episodes"`
	Loss     nn.Stats      `json:"loss"`
	GradNorm float64       `json:"grad_norm"` // mean, before clipping
	Rate     float64       `json:"rate"`
	Batches  int           `json:"batches"` // that were learnt from: fewer where KL stopped the update
	Phases   Phases        `json:"phases"`
}

// trainer is a run.
type trainer struct {
	cfg    Config
	form   adv.Form
	v      vec.Vector
	spec   env.Spec
	rows   int
	policy *nn.Policy
	opt    optim.Optimizer
	ring   *buffer.Ring
	rnd    env.Rand

	collecting, learning, extra *nn.Pass
	batch                       buffer.Batch
	grad                        f32.Matrix
	next                        []float32 // values after the last step
	cut                         cutRows

	update int
	steps  int64
	took   Phases
}

// cutRows are the rows of a step whose episode was cut off, with what is needed to value their final observations.
type cutRows struct {
	cols []int
	in   nn.Input
	h, c []float32
}

func newTrainer(cfg Config, maker vec.Maker) (*trainer, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	form, err := adv.ParseForm(cfg.Learn.Advantage)
	if err != nil {
		return nil, err
	}
	v, err := open(maker, cfg.Envs, cfg.Workers)
	if err != nil {
		return nil, err
	}
	t := &trainer{cfg: cfg, form: form, v: v, spec: v.Spec(), rows: v.Buffers().Rows, rnd: env.NewRand(env.SeedOf(cfg.Seed, 2))}
	if err := t.build(); err != nil {
		_ = v.Close() // it has done nothing yet
		return nil, err
	}
	return t, nil
}

func open(maker vec.Maker, envs, workers int) (vec.Vector, error) {
	if workers == 0 {
		return vec.NewSerial(maker, envs)
	}
	return vec.NewParallel(maker, vec.Config{Envs: envs, Workers: workers})
}

func (t *trainer) build() error {
	var err error
	if t.policy, err = nn.New(t.cfg.policy(t.spec), t.cfg.Seed); err != nil {
		return err
	}
	if t.opt, err = optim.New(t.cfg.Learn.Optimizer, t.policy.Params()); err != nil {
		return err
	}
	t.ring, err = buffer.New(buffer.Config{
		Steps: t.cfg.Horizon, Cols: t.rows, Spec: t.spec, State: t.cfg.Net.LSTM, StateEvery: t.cfg.Learn.Segment,
	})
	t.collecting, t.learning, t.extra = t.policy.NewPass(), t.policy.NewPass(), t.policy.NewPass()
	t.next = make([]float32, t.rows)
	return err
}

// updates is how many there are in all.
func (t *trainer) updates() int {
	each := int64(t.rows) * int64(t.cfg.Horizon)
	return int((t.cfg.Steps + each - 1) / each)
}

// progress is how far the run is, from 0 to 1.
func (t *trainer) progress() float64 { return float64(t.update) / float64(t.updates()) }

// restart begins the environments' episodes anew. Their seed tells one beginning from another.
func (t *trainer) restart(ctx context.Context) error {
	t.ring.Restart()
	if err := t.v.Reset(ctx, env.SeedOf(t.cfg.Seed, 1000+uint64(t.update))); err != nil {
		return fmt.Errorf("reset environments: %w", err)
	}
	return nil
}

func (t *trainer) observed() nn.Input {
	b := t.v.Buffers()
	return nn.Input{Rows: b.Rows, U8: b.ObsU8, F32: b.ObsF32}
}

// state is the LSTM's, as a sequence of one step; nil without one.
func (t *trainer) state(keep bool) *nn.Sequence {
	n := t.cfg.Net.LSTM
	if n == 0 {
		return nil
	}
	h, c := f32.Matrix{Data: t.ring.H, Rows: t.rows, Cols: n}, f32.Matrix{Data: t.ring.C, Rows: t.rows, Cols: n}
	seq := &nn.Sequence{Steps: 1, Seqs: t.rows, H: h, C: c}
	if keep {
		seq.NextH, seq.NextC = h, c
	}
	return seq
}

// since adds the time from start to a phase, and returns now.
func since(start time.Time, phase *time.Duration) time.Time {
	now := time.Now()
	*phase += now.Sub(start)
	return now
}

// collect fills the ring.
func (t *trainer) collect(ctx context.Context) error {
	t.ring.Clear()
	for range t.cfg.Horizon {
		if err := t.step(ctx); err != nil {
			return err
		}
	}
	start := time.Now()
	t.policy.Values(t.collecting.Forward(t.observed(), t.state(false)), t.next)
	since(start, &t.took.Policy)
	t.steps += int64(t.rows) * int64(t.cfg.Horizon)
	return nil
}

func (t *trainer) step(ctx context.Context) error {
	b, start := t.v.Buffers(), time.Now()
	s := t.ring.Begin()
	copy(s.ObsU8, b.ObsU8)
	copy(s.ObsF32, b.ObsF32)
	copy(s.ActionMasks, b.ActionMasks)
	out := t.collecting.Forward(t.observed(), t.state(true))
	t.policy.Sample(out, &nn.Actions{
		Masks: b.ActionMasks, Choices: s.Choices, Numbers: s.Numbers, LogProbs: s.LogProbs, Values: s.Values,
	}, &t.rnd)
	tell(t.spec, b, s.Choices, s.Numbers)
	start = since(start, &t.took.Policy)
	if err := t.v.Step(ctx); err != nil {
		return fmt.Errorf("step environments: %w", err)
	}
	start = since(start, &t.took.Env)
	copy(s.Rewards, b.Rewards)
	copy(s.Terminals, b.Terminals)
	copy(s.Truncations, b.Truncations)
	copy(s.Valid, b.Masks)
	if limit := t.cfg.Learn.RewardClip; limit > 0 {
		for i, r := range s.Rewards {
			s.Rewards[i] = max(-limit, min(limit, r))
		}
	}
	t.bootstrap(b, s.Finals)
	t.ring.End()
	since(start, &t.took.Policy)
	return nil
}

// tell gives actions to the environments: numbers within their bounds.
func tell(spec env.Spec, b *env.Buffers, choices []int32, numbers []float32) {
	copy(b.Choices, choices)
	for i, x := range numbers {
		j := i % spec.Act.Numbers
		b.Numbers[i] = max(spec.Act.Low[j], min(spec.Act.High[j], x))
	}
}

// bootstrap values the final observations of the episodes that were cut off, from the states that they ended with.
func (t *trainer) bootstrap(b *env.Buffers, finals []float32) {
	k, n, width := &t.cut, t.cfg.Net.LSTM, t.spec.Obs.Len
	k.cols, k.in, k.h, k.c = k.cols[:0], nn.Input{U8: k.in.U8[:0], F32: k.in.F32[:0]}, k.h[:0], k.c[:0]
	for col := range b.Rows {
		if b.Truncations[col] == 0 || b.Terminals[col] != 0 {
			continue
		}
		k.cols = append(k.cols, col)
		if b.FinalU8 != nil {
			k.in.U8 = append(k.in.U8, b.FinalU8[col*width:(col+1)*width]...)
		} else {
			k.in.F32 = append(k.in.F32, b.FinalF32[col*width:(col+1)*width]...)
		}
		k.h = append(k.h, t.ring.H[col*n:(col+1)*n]...)
		k.c = append(k.c, t.ring.C[col*n:(col+1)*n]...)
	}
	k.in.Rows = len(k.cols)
	if k.in.Rows == 0 {
		return
	}
	if b.FinalU8 == nil {
		k.in.U8 = nil
	}
	out := t.extra.Forward(k.in, &nn.Sequence{
		Steps: 1, Seqs: k.in.Rows,
		H: f32.Matrix{Data: k.h, Rows: k.in.Rows, Cols: n}, C: f32.Matrix{Data: k.c, Rows: k.in.Rows, Cols: n},
	})
	for i, col := range k.cols {
		finals[col] = out.Data[(i+1)*out.Cols-1]
	}
}
