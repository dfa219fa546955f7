package env

import (
	"fmt"
	"math"
	"slices"
)

// Leaf is a part of a flat value.
type Leaf struct {
	Path   string // "/camera/0"; "" where the whole space is the leaf
	Space  Space  // Box, Discrete or MultiDiscrete
	Offset int    // in elements of the array that it lies in
	Len    int    // in elements
}

// Observations is how the values of a space lie in one flat row of numbers. Where all leaves are boxes of bytes the
// row is of bytes; otherwise it's of float32, which holds every integer that a space may have (see [Box]), and each
// element has the same size, so that no leaf has an alignment to get wrong.
type Observations struct {
	Space  Space
	DType  DType // Uint8 or Float32
	Len    int   // elements in a row
	Shape  []int // of the box, where the space is a single one; otherwise {Len}
	Leaves []Leaf
}

// Actions is how the values of a space lie in the two rows of an action: the choices in one of int32, the numbers in
// one of float32. Most spaces have one of the two only.
type Actions struct {
	Space     Space
	Choices   []int     // how many there are to choose from, for each int32 of a row
	Numbers   int       // how many float32 a row has
	Low, High []float32 // of each of them
	Leaves    []Leaf    // Offset counts in the array of the leaf's kind
}

// FlatObservations lays out a space of observations.
func FlatObservations(s Space) (Observations, error) {
	if err := validateIn(s); err != nil {
		return Observations{}, fmt.Errorf("observation space: %w", err)
	}
	o := Observations{Space: s, DType: Uint8, Leaves: s.leaves("", nil)}
	for i := range o.Leaves {
		leaf := &o.Leaves[i]
		leaf.Offset = o.Len
		o.Len += leaf.Len
		if box, ok := leaf.Space.(Box); !ok || box.DType != Uint8 {
			o.DType = Float32
		}
	}
	o.Shape = []int{o.Len}
	if box, ok := s.(Box); ok && len(box.Shape) > 0 {
		o.Shape = slices.Clone(box.Shape)
	}
	return o, nil
}

// FlatActions lays out a space of actions. Boxes have to be of float32.
func FlatActions(s Space) (Actions, error) {
	if err := validateIn(s); err != nil {
		return Actions{}, fmt.Errorf("action space: %w", err)
	}
	a := Actions{Space: s, Leaves: s.leaves("", nil)}
	for i := range a.Leaves {
		leaf := &a.Leaves[i]
		switch space := leaf.Space.(type) {
		case Discrete:
			leaf.Offset = len(a.Choices)
			a.Choices = append(a.Choices, space.N)
		case MultiDiscrete:
			leaf.Offset = len(a.Choices)
			a.Choices = append(a.Choices, space.N...)
		case Box:
			if space.DType != Float32 {
				return Actions{}, fmt.Errorf("action space: %s: box of %v", leaf.Path, space.DType)
			}
			leaf.Offset = a.Numbers
			a.Numbers += leaf.Len
			for range leaf.Len {
				a.Low, a.High = append(a.Low, space.Low), append(a.High, space.High)
			}
		}
	}
	return a, nil
}

// MaskLen is how many bytes a row of action masks has: one for each choice of each int32.
func (a Actions) MaskLen() int {
	n := 0
	for _, c := range a.Choices {
		n += c
	}
	return n
}

// Contains says why a flat row isn't in the space, or nil.
func (o Observations) Contains(u8 []uint8, f32 []float32) error {
	at := func(i int) float64 {
		if o.DType == Uint8 {
			return float64(u8[i])
		}
		return float64(f32[i])
	}
	for _, leaf := range o.Leaves {
		for j := range leaf.Len {
			low, high, whole := leaf.bounds(j)
			v := at(leaf.Offset + j)
			if !(v >= low && v <= high) || whole && v != math.Trunc(v) {
				return fmt.Errorf("element %d of %q is %v, which isn't in [%v, %v]", j, leaf.Path, v, low, high)
			}
		}
	}
	return nil
}

// bounds returns between what an element lies, and whether it's an integer.
func (l Leaf) bounds(j int) (low, high float64, whole bool) {
	switch s := l.Space.(type) {
	case Box:
		return float64(s.Low), float64(s.High), s.DType != Float32
	case Discrete:
		return 0, float64(s.N - 1), true
	case MultiDiscrete:
		return 0, float64(s.N[j] - 1), true
	}
	return 0, 0, false
}
