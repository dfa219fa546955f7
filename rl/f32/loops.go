package f32

import "math"

// AddScaled adds s·src to dst, as far as both go.
func AddScaled(dst, src []float32, s float32) {
	if !addScaledVector(dst, src, s) {
		addScaledPortable(dst, src, s)
	}
}

// Tanh writes the hyperbolic tangents of src to dst, which may be the same.
func Tanh(dst, src []float32) {
	if !tanhVector(dst, src) {
		tanhPortable(dst, src)
	}
}

// Sigmoid writes 1/(1+exp(-x)) for each x of src to dst, which may be the same.
func Sigmoid(dst, src []float32) {
	if !sigmoidVector(dst, src) {
		sigmoidPortable(dst, src)
	}
}

// AdamStep is one step of the optimizer Adam. The corrections of the two averages' bias are part of Rate and Root.
type AdamStep struct {
	Beta1, Beta2, Eps float32
	Scale             float32 // of gradients
	Rate              float32 // learning rate / (1 - Beta1^step)
	Root              float32 // 1 / sqrt(1 - Beta2^step)
}

// Adam updates the averages m and v with the gradients g, and the weights w with them.
func Adam(w, g, m, v []float32, s AdamStep) {
	n := min(len(w), len(g), len(m), len(v))
	w, g, m, v = w[:n], g[:n], m[:n], v[:n]
	for i := range n {
		x := g[i] * s.Scale
		m[i] = s.Beta1*m[i] + (1-s.Beta1)*x
		v[i] = s.Beta2*v[i] + (1-s.Beta2)*x*x
		w[i] -= s.Rate * m[i] / (float32(math.Sqrt(float64(v[i])))*s.Root + s.Eps)
	}
}

// AddRows adds every row of m to sum.
func AddRows(sum []float32, m Matrix) {
	for i := range m.Rows {
		AddScaled(sum, m.Row(i), 1)
	}
}

// Fill sets every row of m to row.
func Fill(m Matrix, row []float32) {
	for i := range m.Rows {
		copy(m.Row(i), row)
	}
}

// SumSquares returns the sum of squares, in float64.
func SumSquares(x []float32) float64 {
	var s0, s1, s2, s3 float64
	for len(x) >= 4 {
		a, b, c, d := float64(x[0]), float64(x[1]), float64(x[2]), float64(x[3])
		s0 += a * a
		s1 += b * b
		s2 += c * c
		s3 += d * d
		x = x[4:]
	}
	for _, a := range x {
		s0 += float64(a) * float64(a)
	}
	return s0 + s1 + s2 + s3
}
