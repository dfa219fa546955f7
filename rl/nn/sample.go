package nn

import (
	"math"

	"github.com/dsec-io/dsec/rl/env"
	"github.com/dsec-io/dsec/rl/f32"
)

// Actions are what a policy chose, a row each. Masks is read, the rest is written.
type Actions struct {
	Masks    []uint8   // 1: the choice is open; nil: all are. [rows][sum of Choices]
	Choices  []int32   // [rows][len(Choices)]
	Numbers  []float32 // [rows][Numbers], as drawn, within no bounds
	LogProbs []float32 // [rows], of the whole action
	Values   []float32 // [rows]
}

// The limits of a logarithm of a standard deviation.
const (
	minLogStd = -20
	maxLogStd = 2
)

const logRootTwoPi = 0.91893853320467274178

// Sample draws an action for every row of out. A masked choice is never drawn, unless all are.
func (p *Policy) Sample(out f32.Matrix, a *Actions, rnd *env.Rand) { p.act(out, a, rnd) }

// Best takes the likeliest action for every row of out.
func (p *Policy) Best(out f32.Matrix, a *Actions) { p.act(out, a, nil) }

// Values copies the values from out.
func (p *Policy) Values(out f32.Matrix, values []float32) {
	for i := range out.Rows {
		values[i] = out.Data[(i+1)*out.Cols-1]
	}
}

func (p *Policy) act(out f32.Matrix, a *Actions, rnd *env.Rand) {
	logits := p.cfg.Logits()
	probs := make([]float64, logits)
	std := p.std()
	for i := range out.Rows {
		row := out.Row(i)
		var mask []uint8
		if a.Masks != nil {
			mask = a.Masks[i*logits : (i+1)*logits]
		}
		logp, at := 0.0, 0
		for h, n := range p.cfg.Choices {
			head := probs[at : at+n]
			softmax(head, row[at:at+n], maskOf(mask, at, n))
			choice := pick(head, rnd)
			a.Choices[i*len(p.cfg.Choices)+h] = int32(choice)
			logp += math.Log(head[choice])
			at += n
		}
		for j, s := range std {
			noise := 0.0
			if rnd != nil {
				noise = normal(rnd)
			}
			a.Numbers[i*len(std)+j] = row[at+j] + float32(s*noise)
			logp -= noise*noise/2 + math.Log(s) + logRootTwoPi
		}
		a.LogProbs[i], a.Values[i] = float32(logp), row[len(row)-1]
	}
}

// std returns the standard deviations of the continuous actions.
func (p *Policy) std() []float64 {
	if p.logStd == nil {
		return nil
	}
	std := make([]float64, p.cfg.Numbers)
	for j, x := range p.logStd.W.Data {
		std[j] = math.Exp(float64(max(minLogStd, min(maxLogStd, x))))
	}
	return std
}

// maskOf returns a head's part of a row's mask, nil where it says nothing: no mask, or no choice open.
func maskOf(mask []uint8, at, n int) []uint8 {
	if mask == nil {
		return nil
	}
	mask = mask[at : at+n]
	for _, m := range mask {
		if m != 0 {
			return mask
		}
	}
	return nil
}

// softmax writes the probabilities of logits: exactly 0 for what is masked.
func softmax(probs []float64, logits []float32, mask []uint8) {
	top := math.Inf(-1)
	for i, z := range logits {
		if mask == nil || mask[i] != 0 {
			top = max(top, float64(z))
		}
	}
	sum := 0.0
	for i, z := range logits {
		probs[i] = 0
		if mask == nil || mask[i] != 0 {
			probs[i] = math.Exp(float64(z) - top)
		}
		sum += probs[i]
	}
	for i := range probs {
		probs[i] /= sum
	}
}

// pick draws an index by its probability, or returns the likeliest where rnd is nil. It never returns one of
// probability 0.
func pick(probs []float64, rnd *env.Rand) int {
	best := 0
	for i, p := range probs {
		if p > probs[best] {
			best = i
		}
	}
	if rnd == nil {
		return best
	}
	u := float64(rnd.Uint64()>>11) / (1 << 53)
	for i, p := range probs {
		if u < p {
			return i
		}
		u -= p
	}
	return best // rounding left something over
}
