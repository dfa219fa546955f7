package env

import "fmt"

// Buffers are the arrays that environments work on, one row an agent. Flags are bytes, 0 or 1, because that's what the
// loops that read them like best. Of each pair of arrays that a Spec has no use for, one is nil.
type Buffers struct {
	Rows int

	ObsU8   []uint8   // [Rows][Spec.Obs.Len], where Spec.Obs.DType is Uint8
	ObsF32  []float32 // the same, where it's Float32
	FinalU8 []uint8   // like ObsU8; a row means something only where it's done: the last observation of the episode
	// FinalF32 is to ObsF32 what FinalU8 is to ObsU8.
	FinalF32 []float32

	Choices []int32   // [Rows][len(Spec.Act.Choices)]
	Numbers []float32 // [Rows][Spec.Act.Numbers]

	Rewards     []float32 // [Rows]
	Terminals   []uint8   // [Rows]; 1: the task is over, nothing follows
	Truncations []uint8   // [Rows]; 1: cut off, Final would have had a value
	// Masks is 0 where the row isn't a transition to learn from: an agent that is out, an environment that failed.
	Masks []uint8 // [Rows]
	// ActionMasks is [Rows][Spec.Act.MaskLen()], 1 where a choice is open; nil unless Spec.Masked.
	ActionMasks []uint8
}

// NewBuffers makes buffers for a number of environments.
func NewBuffers(spec Spec, envs int) *Buffers {
	rows := envs * spec.Agents
	b := &Buffers{
		Rows:        rows,
		Rewards:     make([]float32, rows),
		Terminals:   make([]uint8, rows),
		Truncations: make([]uint8, rows),
		Masks:       make([]uint8, rows),
	}
	for i := range b.Masks {
		b.Masks[i] = 1
	}
	if n := rows * spec.Obs.Len; spec.Obs.DType == Uint8 {
		b.ObsU8, b.FinalU8 = make([]uint8, n), make([]uint8, n)
	} else {
		b.ObsF32, b.FinalF32 = make([]float32, n), make([]float32, n)
	}
	if n := len(spec.Act.Choices); n > 0 {
		b.Choices = make([]int32, rows*n)
	}
	if n := spec.Act.Numbers; n > 0 {
		b.Numbers = make([]float32, rows*n)
	}
	if spec.Masked {
		b.ActionMasks = make([]uint8, rows*spec.Act.MaskLen())
		for i := range b.ActionMasks {
			b.ActionMasks[i] = 1
		}
	}
	return b
}

// View returns rows lo to hi of b: the same memory. No view reaches over the end of its rows by append.
func (b *Buffers) View(lo, hi int) *Buffers {
	return &Buffers{
		Rows:        hi - lo,
		ObsU8:       part(b.ObsU8, b.Rows, lo, hi),
		ObsF32:      part(b.ObsF32, b.Rows, lo, hi),
		FinalU8:     part(b.FinalU8, b.Rows, lo, hi),
		FinalF32:    part(b.FinalF32, b.Rows, lo, hi),
		Choices:     part(b.Choices, b.Rows, lo, hi),
		Numbers:     part(b.Numbers, b.Rows, lo, hi),
		Rewards:     part(b.Rewards, b.Rows, lo, hi),
		Terminals:   part(b.Terminals, b.Rows, lo, hi),
		Truncations: part(b.Truncations, b.Rows, lo, hi),
		Masks:       part(b.Masks, b.Rows, lo, hi),
		ActionMasks: part(b.ActionMasks, b.Rows, lo, hi),
	}
}

func part[T any](s []T, rows, lo, hi int) []T {
	if s == nil {
		return nil
	}
	n := len(s) / rows
	return s[lo*n : hi*n : hi*n]
}

// Check says whether b is made for spec: what a Batch's Bind begins with.
func (b *Buffers) Check(spec Spec) error {
	if b.Rows < 1 || b.Rows%spec.Agents != 0 {
		return fmt.Errorf("buffers of %d rows for %s, which has %d agents", b.Rows, spec.Name, spec.Agents)
	}
	u8, f32, masks := 0, 0, 0
	if spec.Obs.DType == Uint8 {
		u8 = spec.Obs.Len
	} else {
		f32 = spec.Obs.Len
	}
	if spec.Masked {
		masks = spec.Act.MaskLen()
	}
	for _, a := range []struct {
		name      string
		have, row int
	}{
		{"ObsU8", len(b.ObsU8), u8},
		{"FinalU8", len(b.FinalU8), u8},
		{"ObsF32", len(b.ObsF32), f32},
		{"FinalF32", len(b.FinalF32), f32},
		{"Choices", len(b.Choices), len(spec.Act.Choices)},
		{"Numbers", len(b.Numbers), spec.Act.Numbers},
		{"Rewards", len(b.Rewards), 1},
		{"Terminals", len(b.Terminals), 1},
		{"Truncations", len(b.Truncations), 1},
		{"Masks", len(b.Masks), 1},
		{"ActionMasks", len(b.ActionMasks), masks},
	} {
		if a.have != b.Rows*a.row {
			return fmt.Errorf("buffers for %s: %s has %d elements, want %d rows of %d", spec.Name, a.name, a.have, b.Rows, a.row)
		}
	}
	return nil
}

// Done says whether the episode of a row ended with the last step, in either way.
func (b *Buffers) Done(row int) bool { return b.Terminals[row]|b.Truncations[row] != 0 }

// KeepFinal copies the observation of a row to Final.
func (b *Buffers) KeepFinal(row int) {
	if n := len(b.ObsU8) / b.Rows; n > 0 {
		copy(b.FinalU8[row*n:(row+1)*n], b.ObsU8[row*n:(row+1)*n])
	}
	if n := len(b.ObsF32) / b.Rows; n > 0 {
		copy(b.FinalF32[row*n:(row+1)*n], b.ObsF32[row*n:(row+1)*n])
	}
}

// BeginStep makes rewards and flags 0 and masks 1, in all rows.
func (b *Buffers) BeginStep() {
	clear(b.Rewards)
	clear(b.Terminals)
	clear(b.Truncations)
	for i := range b.Masks {
		b.Masks[i] = 1
	}
}

// Over says whether every row is done or masked: with one environment's rows, that its episode is over.
func (b *Buffers) Over() bool {
	for i, mask := range b.Masks {
		if mask != 0 && b.Terminals[i]|b.Truncations[i] == 0 {
			return false
		}
	}
	return true
}

// SampleActions writes random actions of the space into every row, open ones where there are masks.
func (b *Buffers) SampleActions(spec Spec, r *Rand) {
	heads, maskLen := spec.Act.Choices, spec.Act.MaskLen()
	for row := range b.Rows {
		var mask []uint8
		if b.ActionMasks != nil {
			mask = b.ActionMasks[row*maskLen : (row+1)*maskLen]
		}
		for h, n := range heads {
			choice := r.IntN(n)
			if mask != nil {
				choice = open(mask[:n], choice)
				mask = mask[n:]
			}
			b.Choices[row*len(heads)+h] = int32(choice)
		}
		for i := range spec.Act.Numbers {
			low, high := max(spec.Act.Low[i], -1e6), min(spec.Act.High[i], 1e6)
			b.Numbers[row*spec.Act.Numbers+i] = r.Range(low, high)
		}
	}
}

// open returns the (choice mod count)-th open choice, or choice itself where none is.
func open(mask []uint8, choice int) int {
	count := 0
	for _, m := range mask {
		count += int(m)
	}
	if count == 0 {
		return choice
	}
	skip := choice % count
	for i, m := range mask {
		if m == 0 {
			continue
		}
		if skip == 0 {
			return i
		}
		skip--
	}
	return choice
}
