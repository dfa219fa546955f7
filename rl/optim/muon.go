package optim

import (
	"math"

	"github.com/dsec-io/dsec/rl/f32"
	"github.com/dsec-io/dsec/rl/nn"
)

// muon moves a matrix by its momentum with all singular values made alike, as PufferLib 4.0 does it; vectors go by
// Nesterov's momentum.
type muon struct {
	momentum float32
	params   []*nn.Param
	m        []Tensor
	steps    int
	work     newtonSchulz
}

func newMuon(cfg Config, params []*nn.Param) *muon {
	return &muon{momentum: or(cfg.Momentum, 0.95), params: params, m: like(params, "muon.m")}
}

// Step implements [Optimizer].
func (u *muon) Step(rate, scale float32) {
	u.steps++
	for i, p := range u.params {
		m := u.m[i].Data
		step := f32.Matrix{Data: f32.Grow(u.work.step, len(m)), Rows: p.W.Rows, Cols: p.W.Cols}
		u.work.step = step.Data
		for j, g := range p.G.Data {
			m[j] = u.momentum*m[j] + scale*g
			step.Data[j] = scale*g + u.momentum*m[j]
		}
		by := rate
		if p.W.Rows > 1 && p.W.Cols > 1 {
			u.work.orthogonalize(step)
			// Outputs over inputs; weights are stored inputs first.
			by *= float32(math.Sqrt(max(1, float64(p.W.Cols)/float64(p.W.Rows))))
		}
		f32.AddScaled(p.W.Data, step.Data, -by)
	}
}

// State implements [Optimizer].
func (u *muon) State() []Tensor { return append([]Tensor(nil), u.m...) }

// Steps implements [Optimizer].
func (u *muon) Steps() int { return u.steps }

// SetSteps implements [Optimizer].
func (u *muon) SetSteps(n int) { u.steps = n }

// newtonSchulz is the memory of an iteration that drives the singular values of a matrix towards 1.
type newtonSchulz struct {
	ws                             f32.Workspace
	step, x, turned, g, poly, next []float32
}

// coefficients returns (a, b, c) of the five steps x ← a·x + (b·g + c·g²)·x with g = x·xᵀ. A singular value from 0.01 to
// 1 ends in [0.978, 1.032].
func coefficients() [5][3]float32 {
	return [5][3]float32{
		{4.0848, -6.8946, 2.9270},
		{3.9505, -6.3029, 2.6377},
		{3.7418, -5.5913, 2.3037},
		{2.8769, -3.1427, 1.2046},
		{2.8366, -3.0525, 1.2012},
	}
}

func matrix(buf *[]float32, rows, cols int) f32.Matrix {
	*buf = f32.Grow(*buf, rows*cols)
	return f32.Matrix{Data: *buf, Rows: rows, Cols: cols}
}

// orthogonalize changes m in place.
func (w *newtonSchulz) orthogonalize(m f32.Matrix) {
	rows, cols := min(m.Rows, m.Cols), max(m.Rows, m.Cols)
	x := matrix(&w.x, rows, cols)
	if m.Rows <= m.Cols {
		copy(x.Data, m.Data)
	} else {
		f32.Transpose(x, m)
	}
	norm := float32(math.Sqrt(f32.SumSquares(x.Data))) + 1e-7
	for i := range x.Data {
		x.Data[i] /= norm
	}
	turned, g, poly, next := matrix(&w.turned, cols, rows), matrix(&w.g, rows, rows), matrix(&w.poly, rows, rows), matrix(&w.next, rows, cols)
	for _, k := range coefficients() {
		f32.Transpose(turned, x)
		w.ws.MatMul(g, x, turned, false)
		w.ws.MatMul(poly, g, g, false)
		for i, y := range poly.Data {
			poly.Data[i] = k[1]*g.Data[i] + k[2]*y
		}
		w.ws.MatMul(next, poly, x, false)
		for i := range x.Data {
			x.Data[i] = k[0]*x.Data[i] + next.Data[i]
		}
	}
	if m.Rows <= m.Cols {
		copy(m.Data, x.Data)
	} else {
		f32.Transpose(m, x)
	}
}
