package f32

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

func random(rows, cols int, r *rand.Rand) Matrix {
	m := NewMatrix(rows, cols)
	for i := range m.Data {
		m.Data[i] = float32(r.NormFloat64())
	}
	return m
}

func BenchmarkMatMul(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	var w Workspace
	for _, s := range [][3]int{{8192, 128, 128}, {128, 128, 512}, {8192, 512, 128}, {8192, 128, 6}} {
		for name, k := range kernels() {
			b.Run(fmt.Sprintf("%s/%dx%dx%d", name, s[0], s[1], s[2]), func(b *testing.B) {
				x, y, c := random(s[0], s[1], r), random(s[1], s[2], r), NewMatrix(s[0], s[2])
				best := time.Hour // of one call: what the machine can do when nobody else is on it
				for b.Loop() {
					start := time.Now()
					w.matMul(k, c, x, y, false)
					best = min(best, time.Since(start))
				}
				b.ReportMetric(float64(2*s[0]*s[1]*s[2])/best.Seconds()/1e9, "best-GFLOP/s")
			})
			b.Run(fmt.Sprintf("T-%s/%dx%dx%d", name, s[0], s[1], s[2]), func(b *testing.B) {
				x, y, c := random(s[0], s[1], r), random(s[0], s[2], r), NewMatrix(s[1], s[2])
				best := time.Hour // of one call: what the machine can do when nobody else is on it
				for b.Loop() {
					start := time.Now()
					w.matMulT(k, c, x, y, false)
					best = min(best, time.Since(start))
				}
				b.ReportMetric(float64(2*s[0]*s[1]*s[2])/best.Seconds()/1e9, "best-GFLOP/s")
			})
		}
	}
}

func TestMatMul(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	var w Workspace
	for name, k := range kernels() {
		for range 60 {
			m, n, d := 1+r.IntN(70), 1+r.IntN(70), 1+r.IntN(300)
			add := r.IntN(2) == 1
			x, y, c := random(m, d, r), random(d, n, r), random(m, n, r)
			want := reference(c, x, y, add)
			w.matMul(k, c, x, y, add)
			if off := worst(c.Data, want); off > 1e-6*float64(d) {
				t.Fatalf("%s %dx%dx%d: off by %g", name, m, d, n, off)
			}
			xt := NewMatrix(d, m)
			Transpose(xt, x)
			c = random(m, n, r)
			want = reference(c, x, y, add)
			w.matMulT(k, c, xt, y, add)
			if off := worst(c.Data, want); off > 1e-6*float64(d) {
				t.Fatalf("%s transposed %dx%dx%d: off by %g", name, m, d, n, off)
			}
		}
	}
}

func reference(c, a, b Matrix, add bool) []float64 {
	out := make([]float64, len(c.Data))
	for i := range c.Rows {
		for j := range c.Cols {
			var s float64
			if add {
				s = float64(c.Data[i*c.Cols+j])
			}
			for k := range a.Cols {
				s += float64(a.Data[i*a.Cols+k]) * float64(b.Data[k*b.Cols+j])
			}
			out[i*c.Cols+j] = s
		}
	}
	return out
}

func worst(got []float32, want []float64) float64 {
	var off float64
	for i, x := range got {
		off = max(off, math.Abs(float64(x)-want[i]))
	}
	return off
}

func TestLoops(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for n := range 70 {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(r.NormFloat64() * 4)
		}
		got, want := make([]float32, n), make([]float64, n)
		for i := range x {
			want[i] = math.Tanh(float64(x[i]))
		}
		Tanh(got, x)
		if off := worst(got, want); off > 4e-7 {
			t.Errorf("tanh of %d numbers: off by %g", n, off)
		}
		for i := range x {
			want[i] = 1 / (1 + math.Exp(-float64(x[i])))
		}
		Sigmoid(got, x)
		if off := worst(got, want); off > 4e-7 {
			t.Errorf("sigmoid of %d numbers: off by %g", n, off)
		}
		for i := range x {
			want[i] = float64(got[i]) + 0.3*float64(x[i])
		}
		AddScaled(got, x, 0.3)
		if off := worst(got, want); off > 1e-6 {
			t.Errorf("adding %d numbers: off by %g", n, off)
		}
	}
	inf := float32(math.Inf(1))
	got := []float32{0, 0, 0, 0, 0, 0, 0, 0}
	Tanh(got, []float32{inf, -inf, 100, -100, 0, 8, -8, 1e-30})
	for i, want := range []float32{1, -1, 1, -1, 0, 1, -1, 1e-30} {
		if math.Abs(float64(got[i]-want)) > 1e-6 {
			t.Errorf("tanh number %d = %g, want %g", i, got[i], want)
		}
	}
}
