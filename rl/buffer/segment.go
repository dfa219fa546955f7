package buffer

import (
	"errors"
	"fmt"
	"math"
	"sort"

	"github.com/dsec-io/dsec/rl/env"
)

// Segment is neighbouring steps of one column.
type Segment struct {
	Col, Age, Len int
}

// Segments cuts everything stored into segments of a length; the last of each column may be shorter. Every row is in
// exactly one. Each has to begin with a step whose state is kept.
func (r *Ring) Segments(length int) ([]Segment, error) {
	if length < 1 {
		return nil, fmt.Errorf("segments of %d steps", length)
	}
	var all []Segment
	for age := 0; age < r.stored; age += length {
		if r.cfg.State > 0 && r.place(age)%r.cfg.StateEvery != 0 {
			return nil, fmt.Errorf("segments of %d steps, with a state every %d", length, r.cfg.StateEvery)
		}
		for col := range r.cfg.Cols {
			all = append(all, Segment{col, age, min(length, r.stored-age)})
		}
	}
	return all, nil
}

// Episode is what is stored of one: its steps, up to its end or to the newest.
type Episode struct {
	Segment
	Begun                 bool // the first of the steps is the episode's first
	Terminated, Truncated bool // neither: it goes on
}

// Episodes lists what is stored, column by column, oldest first.
func (r *Ring) Episodes() []Episode {
	var all []Episode
	for col := range r.cfg.Cols {
		first := 0
		for age := range r.stored {
			s := r.At(age)
			done := s.Terminals[col]|s.Truncations[col] != 0
			if !done && age < r.stored-1 {
				continue
			}
			all = append(all, Episode{
				Segment: Segment{col, first, age + 1 - first}, Begun: r.At(first).Reset[col] != 0,
				Terminated: s.Terminals[col] != 0, Truncated: s.Truncations[col] != 0 && s.Terminals[col] == 0,
			})
			first = age + 1
		}
	}
	return all
}

// Sequences draws n sequences, for learning off-policy: each begins at any step whose state is kept, all alike, and
// has up to length steps, fewer where its episode or what is stored ends before.
func (r *Ring) Sequences(length, n int, rnd *env.Rand) ([]Segment, error) {
	if r.stored == 0 || length < 1 {
		return nil, fmt.Errorf("sequences of %d steps out of %d", length, r.stored)
	}
	every := 1
	if r.cfg.State > 0 {
		every = r.cfg.StateEvery
	}
	var starts []int
	for age := range r.stored {
		if r.place(age)%every == 0 {
			starts = append(starts, age)
		}
	}
	if len(starts) == 0 {
		return nil, errors.New("sequences: no step with a state")
	}
	all := make([]Segment, n)
	for i := range all {
		s := Segment{Col: rnd.IntN(r.cfg.Cols), Age: starts[rnd.IntN(len(starts))]}
		for s.Len < length && s.Age+s.Len < r.stored {
			at := r.At(s.Age + s.Len)
			s.Len++
			if at.Terminals[s.Col]|at.Truncations[s.Col] != 0 {
				break
			}
		}
		all[i] = s
	}
	return all, nil
}

// Shuffle puts segments into a random order.
func Shuffle(segments []Segment, rnd *env.Rand) {
	for i := len(segments) - 1; i > 0; i-- {
		j := rnd.IntN(i + 1)
		segments[i], segments[j] = segments[j], segments[i]
	}
}

// Priorities are the probabilities with which segments are drawn.
type Priorities struct {
	probs []float64
	sums  []float64
}

// Prioritize weighs segments by (the sum of |A|)^alpha + 10⁻⁶; a sum that isn't finite counts as 0. alpha 0 makes all
// alike.
func (r *Ring) Prioritize(segments []Segment, alpha float64) Priorities {
	p := Priorities{make([]float64, len(segments)), make([]float64, len(segments))}
	total := 0.0
	for i, s := range segments {
		sum := 0.0
		for k := range s.Len {
			sum += math.Abs(float64(r.AdvantagesAt(s.Age + k)[s.Col]))
		}
		if math.IsNaN(sum) || math.IsInf(sum, 0) {
			sum = 0
		}
		p.probs[i] = math.Pow(sum, alpha) + 1e-6
		total += p.probs[i]
		p.sums[i] = total
	}
	for i := range p.probs {
		p.probs[i] /= total
		p.sums[i] /= total
	}
	return p
}

// Draw returns the index of one segment, and its weight (n·p)^-beta: with beta 1 a weighted mean is what the mean over
// all segments would be.
func (p Priorities) Draw(beta float64, rnd *env.Rand) (index int, weight float32) {
	u := float64(rnd.Uint64()>>11) / (1 << 53)
	i := min(sort.SearchFloat64s(p.sums, math.Nextafter(u, 1)), len(p.sums)-1)
	return i, float32(math.Pow(float64(len(p.probs))*p.probs[i], -beta))
}

// Batch is some segments side by side, time-major: row t*Seqs+s is step t of segment s. Rows beyond the end of a
// segment are invalid.
type Batch struct {
	Steps, Seqs          int
	ObsU8                []uint8
	ObsF32               []float32
	ActionMasks          []uint8
	Choices              []int32
	Numbers              []float32
	Valid, Reset         []uint8
	LogProbs, Values     []float32
	Advantages, Returns  []float32
	H, C                 []float32 // [Seqs][State], before the first step
	NewRatios, NewValues []float32 // room for what a learner finds out; see Update
	segments             []Segment
}

// Gather copies segments to b, whose memory is used again.
func (r *Ring) Gather(b *Batch, segments []Segment) {
	b.Steps, b.Seqs, b.segments = 0, len(segments), segments
	for _, s := range segments {
		b.Steps = max(b.Steps, s.Len)
	}
	n, a, size := b.Steps*b.Seqs, &r.all, r.cfg.Steps*r.cfg.Cols
	b.ObsU8, b.ObsF32 = sized(b.ObsU8, n*len(a.ObsU8)/size), sized(b.ObsF32, n*len(a.ObsF32)/size)
	b.ActionMasks = sized(b.ActionMasks, n*len(a.ActionMasks)/size)
	b.Choices, b.Numbers = sized(b.Choices, n*len(a.Choices)/size), sized(b.Numbers, n*len(a.Numbers)/size)
	b.Valid, b.Reset = sized(b.Valid, n), sized(b.Reset, n)
	for _, f := range []*[]float32{&b.LogProbs, &b.Values, &b.Advantages, &b.Returns, &b.NewRatios, &b.NewValues} {
		*f = sized(*f, n)
	}
	b.H, b.C = sized(b.H, b.Seqs*r.cfg.State), sized(b.C, b.Seqs*r.cfg.State)
	for i, s := range segments {
		if first := r.At(s.Age); first.H != nil {
			copy(part(b.H, i, b.Seqs), part(first.H, s.Col, r.cfg.Cols))
			copy(part(b.C, i, b.Seqs), part(first.C, s.Col, r.cfg.Cols))
		}
		for t := range b.Steps {
			row := t*b.Seqs + i
			if t >= s.Len {
				b.blank(row, n)
				continue
			}
			r.copyRow(b, row, r.place(s.Age+t)*r.cfg.Cols+s.Col)
		}
	}
}

func (r *Ring) copyRow(b *Batch, row, from int) {
	n, size, a := b.Steps*b.Seqs, r.cfg.Steps*r.cfg.Cols, &r.all
	copy(part(b.ObsU8, row, n), part(a.ObsU8, from, size))
	copy(part(b.ObsF32, row, n), part(a.ObsF32, from, size))
	copy(part(b.ActionMasks, row, n), part(a.ActionMasks, from, size))
	copy(part(b.Choices, row, n), part(a.Choices, from, size))
	copy(part(b.Numbers, row, n), part(a.Numbers, from, size))
	b.Valid[row], b.Reset[row] = a.Valid[from], a.Reset[from]
	b.LogProbs[row], b.Values[row] = a.LogProbs[from], a.Values[from]
	b.Advantages[row], b.Returns[row] = r.advs[from], r.advs[from]+a.Values[from]
}

// blank makes a row that nobody learns from; what it observes is zeros.
func (b *Batch) blank(row, n int) {
	clear(part(b.ObsU8, row, n))
	clear(part(b.ObsF32, row, n))
	clear(part(b.ActionMasks, row, n))
	clear(part(b.Choices, row, n))
	clear(part(b.Numbers, row, n))
	b.Valid[row], b.Reset[row] = 0, 0
	b.LogProbs[row], b.Values[row], b.Advantages[row], b.Returns[row] = 0, 0, 0, 0
}

// Update writes NewRatios of b's valid rows to the ring: the importance of later advantages. The values stay what they
// were, because the returns are still measured from them.
func (r *Ring) Update(b *Batch) {
	for i, s := range b.segments {
		for t := range s.Len {
			r.ratios[r.place(s.Age+t)*r.cfg.Cols+s.Col] = b.NewRatios[t*b.Seqs+i]
		}
	}
}

// Scale multiplies the advantages of each segment of b by its weight.
func (b *Batch) Scale(weights []float32) {
	for row := range b.Advantages {
		b.Advantages[row] *= weights[row%b.Seqs]
	}
}

// Normalize shifts and scales the advantages of valid rows to mean 0 and variance 1. Where they are all alike they
// become 0, not NaN.
func (b *Batch) Normalize() {
	var n, mean, square float64
	for i, a := range b.Advantages {
		if b.Valid[i] != 0 {
			n++
			mean += float64(a)
		}
	}
	if n == 0 {
		return
	}
	mean /= n
	for i, a := range b.Advantages {
		if b.Valid[i] != 0 {
			square += (float64(a) - mean) * (float64(a) - mean)
		}
	}
	scale := 1 / (math.Sqrt(square/n) + 1e-8)
	for i, a := range b.Advantages {
		b.Advantages[i] = float32((float64(a) - mean) * scale)
	}
}
