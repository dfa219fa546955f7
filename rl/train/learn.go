package train

import (
	"time"

	"github.com/dsec-io/dsec/rl/adv"
	"github.com/dsec-io/dsec/rl/buffer"
	"github.com/dsec-io/dsec/rl/f32"
	"github.com/dsec-io/dsec/rl/nn"
	"github.com/dsec-io/dsec/rl/optim"
)

// learnt is what an update came to.
type learnt struct {
	sum      nn.Stats
	gradNorm float64
	batches  int
	rate     float32
}

// learn does one update with what is in the ring.
func (t *trainer) learn() (learnt, error) {
	l := &t.cfg.Learn
	segments, err := t.ring.Segments(l.Segment)
	if err != nil {
		return learnt{}, err
	}
	if err := t.advantages(); err != nil {
		return learnt{}, err
	}
	u := learnt{rate: annealed(l.Anneal, l.Rate, l.Rate*l.MinRate, t.progress())}
	each := max(1, l.Minibatch/l.Segment)
	for range l.Epochs {
		if l.PriorityAlpha == 0 {
			buffer.Shuffle(segments, &t.rnd)
		}
		for lo := 0; lo < len(segments); lo += each {
			if t.form != adv.GAE && u.batches > 0 { // the importance has changed
				if err := t.advantages(); err != nil {
					return u, err
				}
			}
			t.draw(segments, lo, min(lo+each, len(segments)))
			stop, err := t.batchStep(&u)
			if err != nil || stop {
				return u, err
			}
		}
	}
	return u, nil
}

func (t *trainer) advantages() error {
	defer since(time.Now(), &t.took.Gather)
	l := &t.cfg.Learn
	return t.ring.Advantages(adv.Params{Form: t.form, Gamma: l.Gamma, Lambda: l.Lambda, RhoMax: l.RhoMax, CMax: l.CMax}, t.next)
}

// draw fills the batch: with segments lo to hi, or as many drawn by priority.
func (t *trainer) draw(segments []buffer.Segment, lo, hi int) {
	start, l := time.Now(), &t.cfg.Learn
	defer func() { since(start, &t.took.Gather) }()
	if l.PriorityAlpha == 0 {
		t.ring.Gather(&t.batch, segments[lo:hi])
		if !l.RawAdv {
			t.batch.Normalize()
		}
		return
	}
	beta := t.beta()
	p := t.ring.Prioritize(segments, float64(l.PriorityAlpha))
	chosen, weights := make([]buffer.Segment, hi-lo), make([]float32, hi-lo)
	for i := range chosen {
		k, w := p.Draw(beta, &t.rnd)
		chosen[i], weights[i] = segments[k], w
	}
	t.ring.Gather(&t.batch, chosen)
	if !l.RawAdv {
		t.batch.Normalize()
	}
	t.batch.Scale(weights)
}

// beta is how far the draw by priorities is made up for: from PriorityBeta at the beginning to 1 at the end.
func (t *trainer) beta() float64 {
	first := float64(t.cfg.Learn.PriorityBeta)
	return first + (1-first)*t.progress()
}

// batchStep learns from the batch. stop says that the policy has moved far enough.
func (t *trainer) batchStep(u *learnt) (stop bool, err error) {
	b, l, start := &t.batch, &t.cfg.Learn, time.Now()
	rows := b.Steps * b.Seqs
	in := nn.Input{Rows: rows, F32: b.ObsF32}
	if len(b.ObsU8) > 0 {
		in.U8 = b.ObsU8
	}
	out := t.learning.Forward(in, t.sequence())
	t.grad = f32.Matrix{Data: f32.Grow(t.grad.Data, len(out.Data)), Rows: out.Rows, Cols: out.Cols}
	t.policy.ZeroGrad()
	batch := nn.Batch{
		Input: in, Choices: b.Choices, Numbers: b.Numbers, Valid: b.Valid, LogProbs: b.LogProbs, Values: b.Values,
		Advantages: b.Advantages, Returns: b.Returns, NewRatios: b.NewRatios, NewValues: b.NewValues,
	}
	if t.spec.Masked {
		batch.Masks = b.ActionMasks
	}
	entropy := l.Entropy
	if l.EntropyEnd != 0 {
		entropy = annealed(l.Anneal, l.Entropy, max(0, l.EntropyEnd), t.progress())
	}
	stats, err := t.policy.PPO(out, &batch, nn.PPO{Clip: l.Clip, ValueClip: l.ValueClip, ValueCoef: l.ValueCoef, Entropy: entropy}, t.grad)
	start = since(start, &t.took.Forward)
	if err != nil {
		return false, err
	}
	if l.TargetKL > 0 && stats.KL > 1.5*float64(l.TargetKL) {
		return true, nil
	}
	t.learning.Backward(t.grad)
	norm := optim.GradNorm(t.policy.Params())
	t.opt.Step(u.rate, optim.ClipScale(norm, l.GradClip))
	if t.form != adv.GAE {
		t.ring.Update(b)
	}
	since(start, &t.took.Back)
	u.add(stats, norm)
	return false, nil
}

func (t *trainer) sequence() *nn.Sequence {
	n, b := t.cfg.Net.LSTM, &t.batch
	if n == 0 {
		return nil
	}
	return &nn.Sequence{
		Steps: b.Steps, Seqs: b.Seqs, Reset: b.Reset,
		H: f32.Matrix{Data: b.H, Rows: b.Seqs, Cols: n}, C: f32.Matrix{Data: b.C, Rows: b.Seqs, Cols: n},
	}
}

func (u *learnt) add(s nn.Stats, norm float64) {
	u.batches++
	u.gradNorm += norm
	u.sum.Policy += s.Policy
	u.sum.Value += s.Value
	u.sum.Entropy += s.Entropy
	u.sum.OldKL += s.OldKL
	u.sum.KL += s.KL
	u.sum.ClipFraction += s.ClipFraction
	u.sum.Ratio += s.Ratio
	u.sum.Explained += s.Explained
	u.sum.Rows += s.Rows
}

// mean returns the averages over the batches.
func (u *learnt) mean() (nn.Stats, float64) {
	n, s := float64(max(1, u.batches)), u.sum
	return nn.Stats{
		Policy: s.Policy / n, Value: s.Value / n, Entropy: s.Entropy / n, OldKL: s.OldKL / n, KL: s.KL / n,
		ClipFraction: s.ClipFraction / n, Ratio: s.Ratio / n, Explained: s.Explained / n, Rows: s.Rows,
	}, u.gradNorm / n
}
