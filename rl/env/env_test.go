package env_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/dsec-io/dsec/rl/env"
)

// drawSpace draws a space, and a value of it.
func drawSpace(t *rapid.T, depth int, actions bool) (env.Space, any) {
	kinds := 3
	if depth > 0 {
		kinds = 5
	}
	switch rapid.IntRange(0, kinds-1).Draw(t, "kind") {
	case 0:
		n := rapid.IntRange(1, 1<<24).Draw(t, "n")
		return env.Discrete{N: n}, rapid.IntRange(0, n-1).Draw(t, "choice")
	case 1:
		ns := rapid.SliceOfN(rapid.IntRange(1, 9), 1, 4).Draw(t, "ns")
		v := make([]int, len(ns))
		for i, n := range ns {
			v[i] = rapid.IntRange(0, n-1).Draw(t, "choice")
		}
		return env.MultiDiscrete{N: ns}, v
	case 2:
		return drawBox(t, actions)
	case 3:
		d, v := env.Dict{}, map[string]any{}
		for i := range rapid.IntRange(1, 3).Draw(t, "fields") {
			name := fmt.Sprint("f", i)
			s, part := drawSpace(t, depth-1, actions)
			d, v[name] = append(d, env.Field{Name: name, Space: s}), part
		}
		return d, v
	default:
		var tuple env.Tuple
		var v []any
		for range rapid.IntRange(1, 3).Draw(t, "parts") {
			s, part := drawSpace(t, depth-1, actions)
			tuple, v = append(tuple, s), append(v, part)
		}
		return tuple, v
	}
}

func drawBox(t *rapid.T, actions bool) (env.Space, any) {
	shape := rapid.SliceOfN(rapid.IntRange(1, 3), 0, 3).Draw(t, "shape")
	n := 1
	for _, d := range shape {
		n *= d
	}
	dtype := env.Float32
	if !actions {
		dtype = env.DType(rapid.IntRange(1, 3).Draw(t, "dtype"))
	}
	box := env.Box{DType: dtype, Shape: shape}
	switch dtype {
	case env.Uint8:
		box.High = 255
		return box, rapid.SliceOfN(rapid.Uint8(), n, n).Draw(t, "bytes")
	case env.Int32:
		box.Low, box.High = -1<<24, 1<<24
		return box, rapid.SliceOfN(rapid.Int32Range(-1<<24, 1<<24), n, n).Draw(t, "ints")
	default:
		box.Low, box.High = float32(math.Inf(-1)), float32(math.Inf(1))
		return box, rapid.SliceOfN(rapid.Float32(), n, n).Draw(t, "floats")
	}
}

// TestObservationsReversible: what goes into a row comes out of it, for any tree of any types. Leaves of odd sizes
// before others are what a layout of bytes gets wrong.
func TestObservationsReversible(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, value := drawSpace(t, 2, false)
		o, err := env.FlatObservations(s)
		if err != nil {
			t.Fatal(err)
		}
		var u8 []uint8
		var f32 []float32
		if o.DType == env.Uint8 {
			u8 = make([]uint8, o.Len)
		} else {
			f32 = make([]float32, o.Len)
		}
		if err := o.Pack(value, u8, f32); err != nil {
			t.Fatal(err)
		}
		if err := o.Contains(u8, f32); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(value, o.Unpack(u8, f32)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		end := 0
		for _, leaf := range o.Leaves {
			if leaf.Offset != end {
				t.Errorf("leaf %q begins at %d, the one before ends at %d", leaf.Path, leaf.Offset, end)
			}
			end += leaf.Len
		}
	})
}

func TestActionsReversible(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, value := drawSpace(t, 2, true)
		a, err := env.FlatActions(s)
		if err != nil {
			t.Fatal(err)
		}
		choices, numbers := make([]int32, len(a.Choices)), make([]float32, a.Numbers)
		if err := a.Pack(value, choices, numbers); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(value, a.Unpack(choices, numbers)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		for i, c := range choices {
			if c < 0 || int(c) >= a.Choices[i] {
				t.Errorf("choice %d of %d", c, a.Choices[i])
			}
		}
	})
}

func TestLayout(t *testing.T) {
	o, err := env.FlatObservations(env.Dict{
		{Name: "pixels", Space: env.Bytes(255, 3)},
		{Name: "speed", Space: env.Reals(-1, 1, 2)},
		{Name: "gear", Space: env.Tuple{env.Discrete{N: 5}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	fmt.Fprint(&got, o.DType, o.Len, o.Shape)
	for _, leaf := range o.Leaves {
		fmt.Fprint(&got, " ", leaf.Path, ":", leaf.Offset, "+", leaf.Len)
	}
	if want := "float32 6 [6] /pixels:0+3 /speed:3+2 /gear/0:5+1"; got.String() != want {
		t.Errorf("layout %s, want %s", got.String(), want)
	}
	bytes, err := env.FlatObservations(env.Tuple{env.Bytes(1, 2, 2), env.Bytes(9)})
	if err != nil || bytes.DType != env.Uint8 || bytes.Len != 5 {
		t.Errorf("layout of bytes %+v, %v", bytes, err)
	}
}

func TestSpacesRefused(t *testing.T) {
	for name, s := range map[string]env.Space{
		"nothing":         nil,
		"no-type":         env.Box{},
		"empty-shape":     env.Bytes(1, 0),
		"upside-down":     env.Reals(1, -1),
		"bytes-below-0":   env.Box{DType: env.Uint8, Low: -1, High: 1},
		"ints-too-big":    env.Box{DType: env.Int32, Low: 0, High: 1 << 25},
		"no-choice":       env.Discrete{},
		"no-choices":      env.MultiDiscrete{},
		"no-fields":       env.Dict{},
		"same-fields":     env.Dict{{Name: "a", Space: env.Discrete{N: 1}}, {Name: "a", Space: env.Discrete{N: 1}}},
		"nothing-in-it":   env.Tuple{nil},
		"shape-overflows": env.Bytes(1, 1<<20, 1<<20, 1<<20, 1<<20),
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := env.FlatObservations(s); err == nil {
				t.Error("no error")
			}
		})
	}
	if _, err := env.FlatActions(env.Bytes(1, 1)); err == nil {
		t.Error("bytes as actions: no error")
	}
}

func TestValuesRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		space env.Space
		value any
	}{
		"choice-too-high": {env.Discrete{N: 2}, 2},
		"other-type":      {env.Discrete{N: 2}, "1"},
		"too-few":         {env.MultiDiscrete{N: []int{2, 2}}, []int{1}},
		"beyond-box":      {env.Reals(-1, 1, 1), []float32{2}},
		"no-number":       {env.Reals(-1, 1, 1), []float32{float32(math.NaN())}},
		"bytes-for-reals": {env.Reals(0, 1, 1), []uint8{1}},
		"field-missing":   {env.Dict{{Name: "a", Space: env.Discrete{N: 1}}}, map[string]any{}},
		"field-else":      {env.Dict{{Name: "a", Space: env.Discrete{N: 1}}}, map[string]any{"b": 0}},
		"tuple-too-short": {env.Tuple{env.Discrete{N: 1}}, []any{}},
	} {
		t.Run(name, func(t *testing.T) {
			o, err := env.FlatObservations(tc.space)
			if err != nil {
				t.Fatal(err)
			}
			if err := o.Pack(tc.value, make([]uint8, 8), make([]float32, 8)); err == nil {
				t.Error("no error")
			}
		})
	}
}

// TestSeedsApart: no stream of one seed is one of another, as with i + seed*n, where two learners with neighbouring
// seeds see the same episodes.
func TestSeedsApart(t *testing.T) {
	const n = 300
	seen := make(map[uint64][2]uint64)
	for seed := range uint64(n) {
		for i := range uint64(n) {
			s := env.SeedOf(seed, i)
			if other, ok := seen[s]; ok {
				t.Fatalf("environment %d of seed %d is environment %d of seed %d", i, seed, other[1], other[0])
			}
			seen[s] = [2]uint64{seed, i}
		}
	}
}

// TestRand compares with the numbers that splitmix64's author gives for seed 1234567.
func TestRand(t *testing.T) {
	r := env.NewRand(1234567)
	for i, want := range []uint64{6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821} {
		if got := r.Uint64(); got != want {
			t.Errorf("number %d is %d, want %d", i, got, want)
		}
	}
	counts := make([]int, 7)
	low, high, sum := float32(1), float32(0), 0.0
	for range 70000 {
		counts[r.IntN(7)]++
		f := r.Float32()
		low, high, sum = min(low, f), max(high, f), sum+float64(f)
	}
	for _, c := range counts {
		if c < 9600 || c > 10400 {
			t.Errorf("counts %v", counts)
		}
	}
	if low < 0 || low > 0.01 || high >= 1 || high < 0.99 || math.Abs(sum/70000-0.5) > 0.01 {
		t.Errorf("floats from %v to %v, mean %v", low, high, sum/70000)
	}
}

// TestViewsApart: appending to one view can't reach the next.
func TestViewsApart(t *testing.T) {
	spec, err := env.NewSpec("x", 2, env.Bytes(9, 3), env.Discrete{N: 2})
	if err != nil {
		t.Fatal(err)
	}
	spec.Masked = true
	b := env.NewBuffers(spec, 4)
	v := b.View(2, 4)
	if err := v.Check(spec); err != nil {
		t.Error(err)
	}
	v.ObsU8[0] = 7
	_ = append(v.ObsU8, 1)
	if b.ObsU8[6] != 7 || b.ObsU8[12] != 0 {
		t.Errorf("observations %v", b.ObsU8)
	}
	if err := b.View(0, 3).Check(spec); err == nil {
		t.Error("three rows for environments of two agents: no error")
	}
}

func TestSampleActionsOpen(t *testing.T) {
	spec, err := env.NewSpec("x", 1, env.Bytes(9, 3), env.Tuple{env.MultiDiscrete{N: []int{3, 2}}, env.Reals(-2, 5, 2)})
	if err != nil {
		t.Fatal(err)
	}
	spec.Masked = true
	b := env.NewBuffers(spec, 2)
	copy(b.ActionMasks, []uint8{0, 1, 1, 1, 0, 0, 0, 0, 0, 1})
	r := env.NewRand(1)
	seen := make(map[int32]bool)
	for range 200 {
		b.SampleActions(spec, &r)
		seen[b.Choices[0]] = true
		if b.Choices[0] == 0 || b.Choices[1] != 0 || b.Choices[3] != 1 {
			t.Fatalf("choices %v", b.Choices)
		}
		for _, v := range b.Numbers {
			if v < -2 || v > 5 {
				t.Fatalf("numbers %v", b.Numbers)
			}
		}
	}
	if len(seen) != 2 {
		t.Errorf("choices seen: %v", seen)
	}
}

func ExampleFlatObservations() {
	o, _ := env.FlatObservations(env.Dict{
		{Name: "where", Space: env.Reals(-1, 1, 2)},
		{Name: "gear", Space: env.Discrete{N: 5}},
	})
	row := make([]float32, o.Len)
	_ = o.Pack(map[string]any{"where": []float32{0.5, -0.5}, "gear": 3}, nil, row)
	fmt.Println(row, o.Unpack(nil, row))
	// Output: [0.5 -0.5 3] map[gear:3 where:[0.5 -0.5]]
}
