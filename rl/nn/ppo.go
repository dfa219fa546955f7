package nn

import (
	"errors"
	"math"

	"github.com/dsec-io/dsec/rl/f32"
)

// PPO are the constants of the loss
//
//	mean of max(-A·r, -A·clip(r, 1±Clip)) + ValueCoef·½·max((v-R)², (clip(v, old±ValueClip)-R)²) - EntropyCoef·H
//
// where r is the probability of the action now over then.
type PPO struct {
	Clip      float32
	ValueClip float32 // 0: the value is free
	ValueCoef float32
	Entropy   float32
}

// Batch is what happened, a row each, in the order of the outputs.
type Batch struct {
	Input
	Masks   []uint8   // as for [Actions]
	Choices []int32   // what was done
	Numbers []float32 //
	// Valid is 1 where a row is to be learnt from; nil: everywhere. The others count in no mean.
	Valid                []uint8
	LogProbs, Values     []float32 // then
	Advantages, Returns  []float32
	NewRatios, NewValues []float32 // written where they aren't nil: r, and the value now
}

// Stats are means over the valid rows of a batch.
type Stats struct {
	Policy, Value, Entropy float64 // losses, and H
	OldKL, KL              float64 // mean of -log r, and of r - 1 - log r, which has less variance and is never negative
	ClipFraction           float64
	Ratio                  float64
	Explained              float64 // 1 - variance of (R - V then) over that of R
	Rows                   int
}

// ErrNotFinite is returned where a loss or a gradient is infinite or NaN.
var ErrNotFinite = errors.New("a number of the loss isn't finite: the learning rate may be too high, or a reward not finite")

// PPO computes the loss of a batch and writes its gradient for out to grad, which has out's shape. That for the standard
// deviations is added to their parameter.
func (p *Policy) PPO(out f32.Matrix, b *Batch, k PPO, grad f32.Matrix) (Stats, error) {
	l := loss{p: p, b: b, k: k, probs: make([]float64, p.cfg.Logits()), entropies: make([]float64, len(p.cfg.Choices)), std: p.std()}
	for i := range out.Rows {
		if b.Valid == nil || b.Valid[i] != 0 {
			l.rows++
		}
	}
	var sum Stats
	for i := range out.Rows {
		g := grad.Row(i)
		clear(g)
		if b.Valid == nil || b.Valid[i] != 0 {
			l.row(i, out.Row(i), g, &sum)
		} else {
			l.tell(i, 1, out.Row(i)[out.Cols-1])
		}
	}
	if l.rows == 0 {
		return Stats{}, nil
	}
	s := sum.over(l.rows)
	s.Explained = b.explained()
	if math.IsNaN(s.Policy+s.Value+s.Entropy) || math.IsInf(s.Policy+s.Value+s.Entropy, 0) || !finite(grad.Data) {
		return s, ErrNotFinite
	}
	return s, nil
}

func (s Stats) over(rows int) Stats {
	n := float64(rows)
	return Stats{
		Policy: s.Policy / n, Value: s.Value / n, Entropy: s.Entropy / n, OldKL: s.OldKL / n, KL: s.KL / n,
		ClipFraction: s.ClipFraction / n, Ratio: s.Ratio / n, Rows: rows,
	}
}

// explained is how much of the returns' variance the values knew before.
func (b *Batch) explained() float64 {
	var n, mean, square, meanOff, squareOff float64
	for i, r := range b.Returns {
		if b.Valid != nil && b.Valid[i] == 0 {
			continue
		}
		x, off := float64(r), float64(r)-float64(b.Values[i])
		n++
		mean += x
		square += x * x
		meanOff += off
		squareOff += off * off
	}
	variance := square/n - mean/n*mean/n
	if variance <= 0 {
		return 0
	}
	return 1 - (squareOff/n-meanOff/n*meanOff/n)/variance
}

// loss is what the rows of a batch share.
type loss struct {
	p         *Policy
	b         *Batch
	k         PPO
	rows      int
	probs     []float64
	entropies []float64
	std       []float64
}

func (l *loss) row(i int, out, grad []float32, sum *Stats) {
	b, n := l.b, float64(l.rows)
	logp, entropy := l.logProb(i, out)
	logr := logp - float64(b.LogProbs[i])
	r, a := math.Exp(logr), float64(b.Advantages[i])
	clipped := max(1-float64(l.k.Clip), min(1+float64(l.k.Clip), r))
	policy := max(-a*r, -a*clipped)
	dLogp := 0.0
	if -a*r >= -a*clipped {
		dLogp = -a * r / n
	}
	v := float64(out[len(out)-1])
	value, dValue := l.value(i, v)
	l.gradients(i, out, grad, dLogp)
	grad[len(grad)-1] = float32(float64(l.k.ValueCoef) * dValue / n)
	l.tell(i, float32(r), float32(v))
	sum.Policy += policy
	sum.Value += value
	sum.Entropy += entropy
	sum.OldKL -= logr
	sum.KL += r - 1 - logr
	sum.Ratio += r
	if r != clipped {
		sum.ClipFraction++
	}
}

func (l *loss) tell(i int, ratio, value float32) {
	if l.b.NewRatios != nil {
		l.b.NewRatios[i] = ratio
	}
	if l.b.NewValues != nil {
		l.b.NewValues[i] = value
	}
}

// value returns the loss of a value, and its derivative.
func (l *loss) value(i int, v float64) (loss, derivative float64) {
	ret, old, clip := float64(l.b.Returns[i]), float64(l.b.Values[i]), float64(l.k.ValueClip)
	off := v - ret
	if clip <= 0 {
		return off * off / 2, off
	}
	near := max(old-clip, min(old+clip, v)) - ret
	if off*off >= near*near {
		return off * off / 2, off
	}
	return near * near / 2, 0 // v is beyond the limit, where the clipped value doesn't move with it
}

// logProb returns the logarithm of the probability of what was done, and the entropy; it leaves the probabilities and
// entropies of the heads in l.
func (l *loss) logProb(i int, out []float32) (logp, entropy float64) {
	cfg := &l.p.cfg
	mask := l.mask(i)
	at := 0
	for h, n := range cfg.Choices {
		head := l.probs[at : at+n]
		softmax(head, out[at:at+n], maskOf(mask, at, n))
		l.entropies[h] = 0
		for _, q := range head {
			if q > 0 {
				l.entropies[h] -= q * math.Log(q)
			}
		}
		entropy += l.entropies[h]
		logp += math.Log(head[l.b.Choices[i*len(cfg.Choices)+h]])
		at += n
	}
	for j, s := range l.std {
		z := (float64(l.b.Numbers[i*len(l.std)+j]) - float64(out[at+j])) / s
		logp -= z*z/2 + math.Log(s) + logRootTwoPi
		entropy += math.Log(s) + logRootTwoPi + 0.5
	}
	return logp, entropy
}

func (l *loss) mask(i int) []uint8 {
	if l.b.Masks == nil {
		return nil
	}
	return l.b.Masks[i*len(l.probs) : (i+1)*len(l.probs)]
}

// gradients writes those of the logits and the means, and adds that of the standard deviations.
func (l *loss) gradients(i int, out, grad []float32, dLogp float64) {
	cfg, dEntropy := &l.p.cfg, -float64(l.k.Entropy)/float64(l.rows)
	at := 0
	for h, n := range cfg.Choices {
		for j, q := range l.probs[at : at+n] {
			if q > 0 {
				grad[at+j] = float32(-dLogp*q - dEntropy*q*(math.Log(q)+l.entropies[h]))
			}
		}
		grad[at+int(l.b.Choices[i*len(cfg.Choices)+h])] += float32(dLogp)
		at += n
	}
	for j, s := range l.std {
		z := (float64(l.b.Numbers[i*len(l.std)+j]) - float64(out[at+j])) / s
		grad[at+j] = float32(dLogp * z / s)
		if x := l.p.logStd.W.Data[j]; x > minLogStd && x < maxLogStd {
			l.p.logStd.G.Data[j] += float32(dLogp*(z*z-1) + dEntropy)
		}
	}
}
