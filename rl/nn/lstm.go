package nn

import "github.com/dsec-io/dsec/rl/f32"

// lstm are the weights of an LSTM. The gates of a row are side by side: input, forget, output, cell.
type lstm struct {
	n         int
	wx, wh, b *Param
}

// cells are what a pass through an LSTM leaves behind for the way back: a row each.
type cells struct {
	seq          Sequence
	gates        f32.Matrix // after their activations; on the way back, the gradients before them
	c, tc        f32.Matrix // the new cell, and its tanh
	h            f32.Matrix // the new state
	prevH, prevC f32.Matrix // the state before, after any reset
	dH, dC       f32.Matrix // [Seqs], what flows back from the step after
}

func (q *Pass) forwardLSTM(rows int, seq *Sequence) f32.Matrix {
	l, k := q.p.lstm, &q.cells
	n := l.n
	k.seq = *seq
	resize(&k.gates, rows, 4*n)
	for _, m := range []*f32.Matrix{&k.c, &k.tc, &k.h, &k.prevH, &k.prevC} {
		resize(m, rows, n)
	}
	f32.Fill(k.gates, l.b.W.Data)
	if len(q.p.layers) == 0 {
		q.x.mulAdd(&q.ws, k.gates, l.wx.W)
	} else {
		q.ws.MatMul(k.gates, q.last(), l.wx.W, true)
	}
	h, c := seq.H, seq.C
	for t := range seq.Steps {
		lo, hi := t*seq.Seqs, (t+1)*seq.Seqs
		copy(k.prevH.Slice(lo, hi).Data, h.Data)
		copy(k.prevC.Slice(lo, hi).Data, c.Data)
		if seq.Reset != nil {
			resetRows(seq.Reset[lo:hi], k.prevH.Slice(lo, hi), k.prevC.Slice(lo, hi))
		}
		q.ws.MatMul(k.gates.Slice(lo, hi), k.prevH.Slice(lo, hi), l.wh.W, true)
		for i := lo; i < hi; i++ {
			k.step(i, n)
		}
		h, c = k.h.Slice(lo, hi), k.c.Slice(lo, hi)
	}
	if seq.NextH.Data != nil {
		copy(seq.NextH.Data, h.Data)
		copy(seq.NextC.Data, c.Data)
	}
	return k.h
}

func resetRows(reset []uint8, ms ...f32.Matrix) {
	for s, r := range reset {
		if r == 0 {
			continue
		}
		for _, m := range ms {
			clear(m.Row(s))
		}
	}
}

// step computes one row's gates and state.
func (k *cells) step(row, n int) {
	gates := k.gates.Row(row)
	f32.Sigmoid(gates[:3*n], gates[:3*n])
	f32.Tanh(gates[3*n:], gates[3*n:])
	in, forget, out, cell := gates[:n], gates[n:2*n], gates[2*n:3*n], gates[3*n:4*n]
	c, tc, h, prev := k.c.Row(row)[:n], k.tc.Row(row)[:n], k.h.Row(row)[:n], k.prevC.Row(row)[:n]
	for j := range c {
		c[j] = forget[j]*prev[j] + in[j]*cell[j]
	}
	f32.Tanh(tc, c)
	for j := range h {
		h[j] = out[j] * tc[j]
	}
}

// backwardLSTM adds to the LSTM's gradients, from that of its outputs, and returns that of its inputs (nothing where
// they are the observations).
func (q *Pass) backwardLSTM(d f32.Matrix) f32.Matrix {
	l, k := q.p.lstm, &q.cells
	seq := &k.seq
	for _, m := range []*f32.Matrix{&k.dH, &k.dC} {
		resize(m, seq.Seqs, l.n)
	}
	clear(k.dH.Data)
	clear(k.dC.Data)
	back := q.transposed(l.wh.W)
	for t := seq.Steps - 1; t >= 0; t-- {
		lo, hi := t*seq.Seqs, (t+1)*seq.Seqs
		for i := lo; i < hi; i++ {
			k.stepBack(i, i-lo, d.Row(i))
		}
		if t == 0 {
			break
		}
		q.ws.MatMul(k.dH, k.gates.Slice(lo, hi), back, false)
		if seq.Reset != nil {
			resetRows(seq.Reset[lo:hi], k.dH, k.dC)
		}
	}
	q.ws.MatMulT(l.wh.G, k.prevH, k.gates, true)
	f32.AddRows(l.b.G.Data, k.gates)
	if len(q.p.layers) == 0 {
		q.x.gradient(&q.ws, l.wx.G, k.gates)
		return f32.Matrix{}
	}
	q.ws.MatMulT(l.wx.G, q.last(), k.gates, true)
	return q.backInput(l.wx.W, k.gates, 1)
}

// stepBack turns one row's gates into their gradients, and dC into that of the state before.
func (k *cells) stepBack(row, seq int, d []float32) {
	n := len(d)
	gates := k.gates.Row(row)
	in, forget, out, cell := gates[:n], gates[n:2*n], gates[2*n:3*n], gates[3*n:4*n]
	tc, prev := k.tc.Row(row)[:n], k.prevC.Row(row)[:n]
	dH, dC := k.dH.Row(seq)[:n], k.dC.Row(seq)[:n]
	for j := range d {
		dh := d[j] + dH[j]
		i, f, o, g, th := in[j], forget[j], out[j], cell[j], tc[j]
		dc := dC[j] + dh*o*(1-th*th)
		in[j] = dc * g * i * (1 - i)
		forget[j] = dc * prev[j] * f * (1 - f)
		out[j] = dh * th * o * (1 - o)
		cell[j] = dc * i * (1 - g*g)
		dC[j] = dc * f
	}
}
