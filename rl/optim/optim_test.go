package optim

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/dsec-io/dsec/rl/f32"
	"github.com/dsec-io/dsec/rl/nn"
)

func param(rows, cols int, rnd *rand.Rand) *nn.Param {
	p := &nn.Param{Name: "p", W: f32.NewMatrix(rows, cols), G: f32.NewMatrix(rows, cols)}
	for i := range p.W.Data {
		p.W.Data[i], p.G.Data[i] = float32(rnd.NormFloat64()), float32(rnd.NormFloat64())
	}
	return p
}

// TestAdam compares with the formulas of the paper, in float64.
func TestAdam(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	p := param(3, 7, rnd)
	o, err := New(Config{Name: "adam", Beta1: 0.8, Beta2: 0.99, Eps: 1e-5}, []*nn.Param{p})
	if err != nil {
		t.Fatal(err)
	}
	w, m, v := make([]float64, 21), make([]float64, 21), make([]float64, 21)
	for i, x := range p.W.Data {
		w[i] = float64(x)
	}
	for step := 1; step <= 20; step++ {
		for i := range p.G.Data {
			p.G.Data[i] = float32(rnd.NormFloat64())
			g := 0.5 * float64(p.G.Data[i])
			m[i] = 0.8*m[i] + 0.2*g
			v[i] = 0.99*v[i] + 0.01*g*g
			w[i] -= 0.01 * m[i] / (1 - math.Pow(0.8, float64(step))) / (math.Sqrt(v[i]/(1-math.Pow(0.99, float64(step)))) + 1e-5)
		}
		o.Step(0.01, 0.5)
	}
	for i, x := range p.W.Data {
		if math.Abs(float64(x)-w[i]) > 1e-5 {
			t.Errorf("weight %d is %v, want %v", i, x, w[i])
		}
	}
}

// TestSingularValues: what five steps make of one singular value, computed by hand and by the matrices.
func TestSingularValues(t *testing.T) {
	var ns newtonSchulz
	for _, tc := range []struct{ s, low, high float64 }{
		{1, 0.978, 1.032}, {0.3, 0.978, 1.032}, {0.05, 0.978, 1.032}, {0.01, 0.978, 1.032}, {0.003, 0.978, 1.145}, {0.001, 0.47, 0.48},
	} {
		// A diagonal of s and sqrt(1-s²) has length 1 already.
		m := f32.NewMatrix(2, 3)
		m.Data[0], m.Data[4] = float32(tc.s), float32(math.Sqrt(1-tc.s*tc.s))
		ns.orthogonalize(m)
		if got := float64(m.Data[0]); got < tc.low || got > tc.high {
			t.Errorf("%v became %v, want it in [%v, %v]", tc.s, got, tc.low, tc.high)
		}
	}
}

func TestOrthogonalize(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	var ns newtonSchulz
	for _, shape := range [][2]int{{20, 50}, {50, 20}} {
		p := param(shape[0], shape[1], rnd)
		ns.orthogonalize(p.W)
		x, turned := p.W, f32.NewMatrix(p.W.Cols, p.W.Rows)
		f32.Transpose(turned, x)
		if x.Rows > x.Cols {
			x, turned = turned, x
		}
		g := f32.NewMatrix(x.Rows, x.Rows)
		new(f32.Workspace).MatMul(g, x, turned, false)
		for i := range g.Rows {
			for j, y := range g.Row(i) {
				want := 0.0
				if i == j {
					want = 1
				}
				if math.Abs(float64(y)-want) > 0.07 {
					t.Fatalf("%v: %d·%d = %v", shape, i, j, y)
				}
			}
		}
	}
}

// TestMuonStep: a matrix moves by the rate in every direction, scaled by its shape; a vector by Nesterov's momentum.
func TestMuonStep(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	wide, vector := param(4, 16, rnd), param(1, 5, rnd)
	before := append([]float32(nil), wide.W.Data...)
	first := append([]float32(nil), vector.W.Data...)
	o, err := New(Config{Name: "muon", Momentum: 0.9}, []*nn.Param{wide, vector})
	if err != nil {
		t.Fatal(err)
	}
	o.Step(0.1, 1)
	sum := 0.0
	for i, x := range wide.W.Data {
		sum += math.Pow(float64(x-before[i]), 2)
	}
	if got, want := math.Sqrt(sum), 0.1*2*math.Sqrt(4); math.Abs(got-want) > 0.05*want {
		t.Errorf("the matrix moved by %v, want about %v", got, want)
	}
	for i, x := range vector.W.Data {
		if want := first[i] - 0.1*1.9*vector.G.Data[i]; math.Abs(float64(x-want)) > 1e-6 {
			t.Errorf("vector[%d] = %v, want %v", i, x, want)
		}
	}
}

// TestGoesOn: state and steps are all that an optimizer remembers.
func TestGoesOn(t *testing.T) {
	for _, name := range []string{"adam", "muon"} {
		rnd := rand.New(rand.NewPCG(7, 8))
		a := param(6, 9, rnd)
		o, err := New(Config{Name: name}, []*nn.Param{a})
		if err != nil {
			t.Fatal(err)
		}
		o.Step(0.01, 1)
		b := &nn.Param{Name: "p", W: f32.NewMatrix(6, 9), G: f32.NewMatrix(6, 9)}
		copy(b.W.Data, a.W.Data)
		copy(b.G.Data, a.G.Data)
		other, err := New(Config{Name: name}, []*nn.Param{b})
		if err != nil {
			t.Fatal(err)
		}
		for i, s := range other.State() {
			copy(s.Data, o.State()[i].Data)
		}
		other.SetSteps(o.Steps())
		for range 3 {
			o.Step(0.01, 1)
			other.Step(0.01, 1)
		}
		for i := range a.W.Data {
			if a.W.Data[i] != b.W.Data[i] {
				t.Fatalf("%s: weight %d is %v, %v where it went on", name, i, b.W.Data[i], a.W.Data[i])
			}
		}
	}
	if _, err := New(Config{Name: "sgd"}, nil); err == nil {
		t.Error("no error for sgd")
	}
}

func TestClipScale(t *testing.T) {
	p := param(2, 2, rand.New(rand.NewPCG(1, 1)))
	copy(p.G.Data, []float32{3, 0, 0, 4})
	if got := GradNorm([]*nn.Param{p}); got != 5 {
		t.Errorf("GradNorm = %v, want 5", got)
	}
	for _, tc := range []struct {
		norm        float64
		limit, want float32
	}{{5, 0, 1}, {5, 10, 1}, {5, 1, 0.2}, {0, 1, 1}} {
		if got := ClipScale(tc.norm, tc.limit); math.Abs(float64(got-tc.want)) > 1e-6 {
			t.Errorf("ClipScale(%v, %v) = %v, want %v", tc.norm, tc.limit, got, tc.want)
		}
	}
}
