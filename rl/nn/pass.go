package nn

import (
	"math"

	"github.com/dsec-io/dsec/rl/f32"
)

// Pass is the memory of one forward and backward computation. It's used again and again, by one goroutine.
type Pass struct {
	p     *Policy
	ws    f32.Workspace
	x     features
	acts  []f32.Matrix // of each layer, after its activation
	cells cells
	out   f32.Matrix
	grads [2][]float32 // of two neighbouring layers' outputs
	turn  []float32    // transposed weights
}

// Sequence says how the rows of an Input follow each other: row t*Seqs+s is step t of sequence s. A policy without an
// LSTM doesn't care.
type Sequence struct {
	Steps, Seqs int
	Reset       []uint8    // [Steps*Seqs]; 1: an episode begins with this row, from a state of zeros. nil: with none.
	H, C        f32.Matrix // [Seqs][LSTM], the state before the first step
	// NextH and NextC get the state after the last step; they may be H and C. Where Data is nil it's not written.
	NextH, NextC f32.Matrix
}

// NewPass makes room for a computation.
func (p *Policy) NewPass() *Pass {
	return &Pass{p: p, acts: make([]f32.Matrix, len(p.layers))}
}

func resize(m *f32.Matrix, rows, cols int) f32.Matrix {
	*m = f32.Matrix{Data: f32.Grow(m.Data, rows*cols), Rows: rows, Cols: cols}
	return *m
}

// Forward computes the outputs of every row. They are overwritten by the next Forward.
func (q *Pass) Forward(in Input, seq *Sequence) f32.Matrix {
	p := q.p
	q.x.set(in, p.cfg.Obs, p.cfg.Scale)
	for i, l := range p.layers {
		y := resize(&q.acts[i], in.Rows, l.w.W.Cols)
		f32.Fill(y, l.b.W.Data)
		if i == 0 {
			q.x.mulAdd(&q.ws, y, l.w.W)
		} else {
			q.ws.MatMul(y, q.acts[i-1], l.w.W, true)
		}
		activate(l.act, y.Data)
	}
	last := q.last()
	if p.lstm != nil {
		last = q.forwardLSTM(in.Rows, seq)
	}
	y := resize(&q.out, in.Rows, p.head.w.W.Cols)
	f32.Fill(y, p.head.b.W.Data)
	q.ws.MatMul(y, last, p.head.w.W, true)
	return y
}

// last is the output of the last hidden layer; no matrix where there's none.
func (q *Pass) last() f32.Matrix {
	if len(q.acts) == 0 {
		return f32.Matrix{}
	}
	return q.acts[len(q.acts)-1]
}

// Backward adds to the gradients of all parameters, from the gradient of what the last Forward returned.
func (q *Pass) Backward(dOut f32.Matrix) {
	p := q.p
	in := q.last()
	if p.lstm != nil {
		in = q.cells.h
	}
	d := q.backLinear(p.head, in, dOut, 0)
	slot := 0
	if p.lstm != nil {
		d, slot = q.backwardLSTM(d), 1
	}
	for i := len(p.layers) - 1; i >= 0; i-- {
		l := p.layers[i]
		deactivate(l.act, d.Data, q.acts[i].Data)
		if i == 0 {
			q.x.gradient(&q.ws, l.w.G, d)
			f32.AddRows(l.b.G.Data, d)
			return
		}
		slot = 1 - slot
		d = q.backLinear(l, q.acts[i-1], d, slot)
	}
}

// backLinear adds to the gradients of a layer, and returns that of its input, in q.grads[slot].
func (q *Pass) backLinear(l linear, x, dy f32.Matrix, slot int) f32.Matrix {
	q.ws.MatMulT(l.w.G, x, dy, true)
	f32.AddRows(l.b.G.Data, dy)
	return q.backInput(l.w.W, dy, slot)
}

// backInput returns dy·wᵀ.
func (q *Pass) backInput(w, dy f32.Matrix, slot int) f32.Matrix {
	q.grads[slot] = f32.Grow(q.grads[slot], dy.Rows*w.Rows)
	dx := f32.Matrix{Data: q.grads[slot], Rows: dy.Rows, Cols: w.Rows}
	q.ws.MatMul(dx, dy, q.transposed(w), false)
	return dx
}

func (q *Pass) transposed(w f32.Matrix) f32.Matrix {
	q.turn = f32.Grow(q.turn, len(w.Data))
	t := f32.Matrix{Data: q.turn, Rows: w.Cols, Cols: w.Rows}
	f32.Transpose(t, w)
	return t
}

func activate(act Activation, y []float32) {
	switch act {
	case ReLU:
		for i, x := range y {
			y[i] = max(x, 0)
		}
	case Tanh:
		f32.Tanh(y, y)
	}
}

// deactivate turns the gradient of an activation's output y into that of its input.
func deactivate(act Activation, d, y []float32) {
	y = y[:len(d)]
	switch act {
	case ReLU:
		for i, x := range y { // y is positive or 0, which is random: no branch on it
			open := uint32(-int32(math.Float32bits(x)) >> 31)
			d[i] = math.Float32frombits(math.Float32bits(d[i]) & open)
		}
	case Tanh:
		for i := range d {
			d[i] *= 1 - y[i]*y[i]
		}
	}
}
