package f32

import "fmt"

// Matrix is Rows rows of Cols numbers, one after the other.
type Matrix struct {
	Data       []float32
	Rows, Cols int
}

// NewMatrix returns a matrix of zeros.
func NewMatrix(rows, cols int) Matrix {
	return Matrix{make([]float32, rows*cols), rows, cols}
}

// Row returns row i, the same memory.
func (m Matrix) Row(i int) []float32 { return m.Data[i*m.Cols : (i+1)*m.Cols : (i+1)*m.Cols] }

// Slice returns rows lo to hi of m, the same memory.
func (m Matrix) Slice(lo, hi int) Matrix {
	return Matrix{m.Data[lo*m.Cols : hi*m.Cols : hi*m.Cols], hi - lo, m.Cols}
}

// Workspace is the memory that products need besides their operands. Its zero value is ready.
type Workspace struct {
	pack []float32 // b, or a block of it, as strips that are as wide as a kernel's tile
	edge []float32 // the last strip of c, where c isn't a whole number of strips wide
}

// Grow returns buf with n elements, anew where it's too small; what they hold is left as it is.
func Grow[T any](buf []T, n int) []T {
	if cap(buf) < n {
		return make([]T, n)
	}
	return buf[:n]
}

// shape tells a kernel where the numbers lie: c[i][j] = sum over k of a[i][k]·b[k][j], for a tile of c. b is a strip.
// The distances are in bytes, because that's what the kernels in assembly add to addresses.
type shape struct {
	depth int // how many k there are
	rowC  int // from one row of c to the next
	rowA  int // from a[i][k] to a[i+1][k]
	nextA int // from a[i][k] to a[i][k+1]
	add   int // 1: c += instead
}

// kernel computes tiles of mr rows and nr columns, or of one row for the rows that are left over.
type kernel struct {
	mr, nr int
	tile   func(c, a, b []float32, s *shape)
	one    func(c, a, b []float32, s *shape)
}

const size = 4 // of a float32

// depthBlock is how many rows of a and b a transposed product takes at a time, so that they stay in the cache.
const depthBlock = 256

// MatMul computes c = a·b, or c += a·b where add.
func (w *Workspace) MatMul(c, a, b Matrix, add bool) {
	w.matMul(kernelOf(), c, a, b, add)
}

// MatMulT computes c = aᵀ·b, or c += aᵀ·b where add.
func (w *Workspace) MatMulT(c, a, b Matrix, add bool) {
	w.matMulT(kernelOf(), c, a, b, add)
}

func (w *Workspace) matMul(k kernel, c, a, b Matrix, add bool) {
	if a.Cols != b.Rows || c.Rows != a.Rows || c.Cols != b.Cols {
		panic(fmt.Sprintf("%dx%d = %dx%d · %dx%d", c.Rows, c.Cols, a.Rows, a.Cols, b.Rows, b.Cols))
	}
	w.strips(k, c, a, b, shape{depth: a.Cols, rowA: size * a.Cols, nextA: size, add: bit(add)})
}

func (w *Workspace) matMulT(k kernel, c, a, b Matrix, add bool) {
	if a.Rows != b.Rows || c.Rows != a.Cols || c.Cols != b.Cols {
		panic(fmt.Sprintf("%dx%d = (%dx%d)ᵀ · %dx%d", c.Rows, c.Cols, a.Rows, a.Cols, b.Rows, b.Cols))
	}
	if a.Rows == 0 && !add {
		clear(c.Data)
	}
	for lo := 0; lo < a.Rows; lo += depthBlock {
		hi := min(lo+depthBlock, a.Rows)
		s := shape{depth: hi - lo, rowA: size, nextA: size * a.Cols, add: bit(add || lo > 0)}
		w.strips(k, c, a.Slice(lo, hi), b.Slice(lo, hi), s)
	}
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

// strips computes c strip by strip. Row i of the product begins at a.Data[i*s.rowA/size].
func (w *Workspace) strips(k kernel, c, a, b Matrix, s shape) {
	if c.Rows == 0 || c.Cols == 0 {
		return
	}
	if s.depth == 0 {
		if s.add == 0 {
			clear(c.Data)
		}
		return
	}
	w.packStrips(b, k.nr)
	for j := 0; j < c.Cols; j += k.nr {
		strip := w.pack[j*b.Rows:][:k.nr*b.Rows]
		dst, ldc := w.strip(c, j, k.nr, s.add != 0)
		s.rowC = size * ldc
		i := 0
		for ; i+k.mr <= c.Rows; i += k.mr {
			k.tile(dst[i*ldc:], a.Data[i*s.rowA/size:], strip, &s)
		}
		for ; i < c.Rows; i++ {
			k.one(dst[i*ldc:], a.Data[i*s.rowA/size:], strip, &s)
		}
		unstrip(c, dst, j, k.nr)
	}
}

// packStrips copies b to w.pack, strip after strip: a tile's columns lie side by side, and zeros fill the last strip.
func (w *Workspace) packStrips(b Matrix, nr int) {
	strips := (b.Cols + nr - 1) / nr
	w.pack = Grow(w.pack, strips*nr*b.Rows)
	for j := 0; j < b.Cols; j += nr {
		dst := w.pack[j*b.Rows:]
		n := min(nr, b.Cols-j)
		for k := range b.Rows {
			to := dst[k*nr : (k+1)*nr]
			copy(to, b.Data[k*b.Cols+j:][:n])
			clear(to[n:])
		}
	}
}

// strip returns where the kernels put columns j to j+nr of c, and how long a row is there: c itself where it has them
// all.
func (w *Workspace) strip(c Matrix, j, nr int, add bool) (dst []float32, ldc int) {
	if j+nr <= c.Cols {
		return c.Data[j:], c.Cols
	}
	w.edge = Grow(w.edge, nr*c.Rows)
	if add {
		for i := range c.Rows {
			copy(w.edge[i*nr:], c.Data[i*c.Cols+j:(i+1)*c.Cols])
		}
	}
	return w.edge, nr
}

// unstrip copies what is in dst to c, where they aren't the same.
func unstrip(c Matrix, dst []float32, j, nr int) {
	if j+nr <= c.Cols {
		return
	}
	for i := range c.Rows {
		copy(c.Data[i*c.Cols+j:(i+1)*c.Cols], dst[i*nr:])
	}
}

// Transpose writes aᵀ to c.
func Transpose(c, a Matrix) {
	for i := range a.Rows {
		for j, x := range a.Row(i) {
			c.Data[j*c.Cols+i] = x
		}
	}
}
