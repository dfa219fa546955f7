package env

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// DType is the type of the elements of a flat observation, or of a Box.
type DType uint8

// The element types. A flat observation is of Uint8 or Float32; Int32 occurs in leaves only.
const (
	Uint8 DType = iota + 1
	Int32
	Float32
)

// String returns the type's name.
func (d DType) String() string {
	switch d {
	case Uint8:
		return "uint8"
	case Int32:
		return "int32"
	case Float32:
		return "float32"
	}
	return fmt.Sprintf("DType(%d)", uint8(d))
}

// Space is a set of values: [Box], [Discrete], [MultiDiscrete], [Dict] or [Tuple].
type Space interface {
	// Validate says what is wrong with the space itself.
	Validate() error
	// leaves appends the leaves of the space in order.
	leaves(path string, to []Leaf) []Leaf
}

// Box is an array of numbers between Low and High, which hold for every element. A Value of it is a []uint8, []int32
// or []float32.
type Box struct {
	DType     DType
	Shape     []int // empty: a single number
	Low, High float32
}

// Bytes returns a box of bytes.
func Bytes(high uint8, shape ...int) Box {
	return Box{DType: Uint8, Shape: shape, High: float32(high)}
}

// Reals returns a box of float32.
func Reals(low, high float32, shape ...int) Box {
	return Box{DType: Float32, Shape: shape, Low: low, High: high}
}

// Discrete is one of N choices, 0 to N-1. A Value of it is an int.
type Discrete struct{ N int }

// MultiDiscrete is several choices at once. A Value of it is an []int.
type MultiDiscrete struct{ N []int }

// Dict is a record, in the order of its fields. A Value of it is a map[string]any.
type Dict []Field

// Field is one named part of a Dict.
type Field struct {
	Name  string
	Space Space
}

// Tuple is a sequence of spaces. A Value of it is an []any.
type Tuple []Space

// exact is the largest integer up to which float32 has them all.
const exact = 1 << 24

// Validate implements [Space].
func (b Box) Validate() error {
	if b.DType < Uint8 || b.DType > Float32 {
		return fmt.Errorf("box of %v", b.DType)
	}
	if product(b.Shape) <= 0 {
		return fmt.Errorf("box of shape %v", b.Shape)
	}
	if !(b.Low <= b.High) {
		return fmt.Errorf("box from %v to %v", b.Low, b.High)
	}
	if b.DType == Uint8 && (b.Low < 0 || b.High > math.MaxUint8) {
		return fmt.Errorf("box of uint8 from %v to %v", b.Low, b.High)
	}
	if b.DType == Int32 && (b.Low < -exact || b.High > exact) {
		return fmt.Errorf("box of int32 from %v to %v: beyond ±2^24 a flat float32 can't hold it", b.Low, b.High)
	}
	return nil
}

// Validate implements [Space].
func (d Discrete) Validate() error {
	if d.N < 1 || d.N > exact {
		return fmt.Errorf("discrete of %d choices", d.N)
	}
	return nil
}

// Validate implements [Space].
func (m MultiDiscrete) Validate() error {
	if len(m.N) == 0 {
		return errors.New("multi-discrete of nothing")
	}
	for _, n := range m.N {
		if err := (Discrete{n}).Validate(); err != nil {
			return err
		}
	}
	return nil
}

// Validate implements [Space].
func (d Dict) Validate() error {
	if len(d) == 0 {
		return errors.New("dict of nothing")
	}
	names := make([]string, 0, len(d))
	for _, f := range d {
		if slices.Contains(names, f.Name) {
			return fmt.Errorf("dict with two fields %q", f.Name)
		}
		names = append(names, f.Name)
		if err := validateIn(f.Space); err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	return nil
}

// Validate implements [Space].
func (t Tuple) Validate() error {
	if len(t) == 0 {
		return errors.New("tuple of nothing")
	}
	for i, s := range t {
		if err := validateIn(s); err != nil {
			return fmt.Errorf("%d: %w", i, err)
		}
	}
	return nil
}

func validateIn(s Space) error {
	if s == nil {
		return errors.New("no space")
	}
	return s.Validate()
}

func (b Box) leaves(path string, to []Leaf) []Leaf {
	return append(to, Leaf{Path: path, Space: b, Len: product(b.Shape)})
}

func (d Discrete) leaves(path string, to []Leaf) []Leaf {
	return append(to, Leaf{Path: path, Space: d, Len: 1})
}

func (m MultiDiscrete) leaves(path string, to []Leaf) []Leaf {
	return append(to, Leaf{Path: path, Space: m, Len: len(m.N)})
}

func (d Dict) leaves(path string, to []Leaf) []Leaf {
	for _, f := range d {
		to = f.Space.leaves(path+"/"+f.Name, to)
	}
	return to
}

func (t Tuple) leaves(path string, to []Leaf) []Leaf {
	for i, s := range t {
		to = s.leaves(fmt.Sprintf("%s/%d", path, i), to)
	}
	return to
}

func product(shape []int) int {
	n := 1
	for _, d := range shape {
		if d <= 0 || n > exact/d {
			return -1
		}
		n *= d
	}
	return n
}
