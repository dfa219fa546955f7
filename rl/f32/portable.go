package f32

// portable is the kernel without vectors: its tile is as large as sixteen registers allow.
func portable() kernel { return kernel{mr: 2, nr: 4, tile: tile2x4, one: tile1x4} }

func tile2x4(c, a, b []float32, s *shape) {
	a0, a1, next := a, a[s.rowA/size:], s.nextA/size
	var s00, s01, s02, s03, s10, s11, s12, s13 float32
	at := 0
	for k := 0; k < s.depth && len(b) >= 4; k++ {
		x, y := a0[at], a1[at]
		b0, b1, b2, b3 := b[0], b[1], b[2], b[3]
		s00 += x * b0
		s01 += x * b1
		s02 += x * b2
		s03 += x * b3
		s10 += y * b0
		s11 += y * b1
		s12 += y * b2
		s13 += y * b3
		b, at = b[4:], at+next
	}
	put4(c, s, [4]float32{s00, s01, s02, s03})
	put4(c[s.rowC/size:], s, [4]float32{s10, s11, s12, s13})
}

func tile1x4(c, a, b []float32, s *shape) {
	next := s.nextA / size
	var s0, s1, s2, s3 float32
	at := 0
	for k := 0; k < s.depth && len(b) >= 4; k++ {
		x := a[at]
		s0 += x * b[0]
		s1 += x * b[1]
		s2 += x * b[2]
		s3 += x * b[3]
		b, at = b[4:], at+next
	}
	put4(c, s, [4]float32{s0, s1, s2, s3})
}

func put4(c []float32, s *shape, sums [4]float32) {
	c = c[:4]
	if s.add != 0 {
		for i := range sums {
			sums[i] += c[i]
		}
	}
	copy(c, sums[:])
}

func addScaledPortable(dst, src []float32, s float32) {
	for len(dst) >= 4 && len(src) >= 4 {
		dst[0] += s * src[0]
		dst[1] += s * src[1]
		dst[2] += s * src[2]
		dst[3] += s * src[3]
		dst, src = dst[4:], src[4:]
	}
	for i := range min(len(dst), len(src)) {
		dst[i] += s * src[i]
	}
}

// The hyperbolic tangent as a quotient of polynomials, from Eigen (MPL 2.0 lists it as published minimax coefficients):
// within 3 units in the last place, odd, and ±1 from ±7.9 on.
const (
	tanhLimit = 7.90531110763549805

	tanhA1  = 4.89352455891786e-03
	tanhA3  = 6.37261928875436e-04
	tanhA5  = 1.48572235717979e-05
	tanhA7  = 5.12229709037114e-08
	tanhA9  = -8.60467152213735e-11
	tanhA11 = 2.00018790482477e-13
	tanhA13 = -2.76076847742355e-16

	tanhB0 = 4.89352518554385e-03
	tanhB2 = 2.26843463243900e-03
	tanhB4 = 1.18534705686654e-04
	tanhB6 = 1.19825839466702e-06
)

// Tanh32 is the hyperbolic tangent of one number, as [Tanh] computes it without vectors.
func Tanh32(x float32) float32 {
	x = max(-tanhLimit, min(tanhLimit, x))
	y := x * x
	p := float32(tanhA13)
	p = p*y + tanhA11
	p = p*y + tanhA9
	p = p*y + tanhA7
	p = p*y + tanhA5
	p = p*y + tanhA3
	p = p*y + tanhA1
	q := float32(tanhB6)
	q = q*y + tanhB4
	q = q*y + tanhB2
	q = q*y + tanhB0
	return x * p / q
}

func tanhPortable(dst, src []float32) {
	for i := range min(len(dst), len(src)) {
		dst[i] = Tanh32(src[i])
	}
}

func sigmoidPortable(dst, src []float32) {
	for i := range min(len(dst), len(src)) {
		dst[i] = 0.5*Tanh32(0.5*src[i]) + 0.5
	}
}
