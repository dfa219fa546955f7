package f32

import "golang.org/x/sys/cpu"

func hasAVX2() bool { return cpu.X86.HasAVX2 && cpu.X86.HasFMA }

func hasAVX512() bool { return hasAVX2() && cpu.X86.HasAVX512F }

// Backend says which form of the loops is used: "portable", "avx2" or "avx512".
func Backend() string {
	switch {
	case hasAVX512():
		return "avx512"
	case hasAVX2():
		return "avx2"
	}
	return "portable"
}

func kernelOf() kernel {
	switch {
	case hasAVX512():
		return avx512()
	case hasAVX2():
		return avx2()
	}
	return portable()
}

func avx512() kernel {
	return kernel{
		mr: 8, nr: 32,
		tile: func(c, a, b []float32, s *shape) {
			s.check(c, a, b, 8, 32)
			tile8x32(&c[0], &a[0], &b[0], s)
		},
		one: func(c, a, b []float32, s *shape) {
			s.check(c, a, b, 1, 32)
			tile1x32(&c[0], &a[0], &b[0], s)
		},
	}
}

func avx2() kernel {
	return kernel{
		mr: 4, nr: 16,
		tile: func(c, a, b []float32, s *shape) {
			s.check(c, a, b, 4, 16)
			tile4x16(&c[0], &a[0], &b[0], s)
		},
		one: func(c, a, b []float32, s *shape) {
			s.check(c, a, b, 1, 16)
			tile1x16(&c[0], &a[0], &b[0], s)
		},
	}
}

// check panics where a tile would read or write beyond a slice: the assembly doesn't look.
func (s *shape) check(c, a, b []float32, rows, cols int) {
	_ = c[(rows-1)*s.rowC/size+cols-1]
	_ = a[((rows-1)*s.rowA+(s.depth-1)*s.nextA)/size]
	_ = b[s.depth*cols-1]
}

//go:noescape
func tile8x32(c, a, b *float32, s *shape)

//go:noescape
func tile1x32(c, a, b *float32, s *shape)

//go:noescape
func tile4x16(c, a, b *float32, s *shape)

//go:noescape
func tile1x16(c, a, b *float32, s *shape)

//go:noescape
func addScaledAVX2(dst, src *float32, n int, s float32)

//go:noescape
func tanhAVX2(dst, src *float32, n int, k *tanhTerms)

// tanhTerms are what tanhAVX2 needs: out·tanh(in·x) + plus, and the polynomials from the highest power down.
type tanhTerms struct {
	in, out, plus, limit, low float32
	a                         [7]float32
	b                         [4]float32
}

func addScaledVector(dst, src []float32, s float32) bool {
	n := min(len(dst), len(src)) &^ 7
	if n == 0 || !hasAVX2() {
		return false
	}
	addScaledAVX2(&dst[0], &src[0], n, s)
	addScaledPortable(dst[n:], src[n:], s)
	return true
}

func tanhVector(dst, src []float32) bool { return scaledTanh(dst, src, 1, 0) }

func sigmoidVector(dst, src []float32) bool { return scaledTanh(dst, src, 0.5, 0.5) }

// scaledTanh writes scale·tanh(scale·x) + plus. A number's result doesn't depend on where it lies: what is left over of
// whole vectors goes through one, too.
func scaledTanh(dst, src []float32, scale, plus float32) bool {
	if !hasAVX2() {
		return false
	}
	k := tanhTerms{
		in: scale, out: scale, plus: plus, limit: tanhLimit, low: -tanhLimit,
		a: [7]float32{tanhA13, tanhA11, tanhA9, tanhA7, tanhA5, tanhA3, tanhA1},
		b: [4]float32{tanhB6, tanhB4, tanhB2, tanhB0},
	}
	all := min(len(dst), len(src))
	n := all &^ 7
	if n > 0 {
		tanhAVX2(&dst[0], &src[0], n, &k)
	}
	if n < all {
		var rest [8]float32
		copy(rest[:], src[n:all])
		tanhAVX2(&rest[0], &rest[0], 8, &k)
		copy(dst[n:all], rest[:])
	}
	return true
}
