package nn

import (
	"encoding/binary"
	"math"

	"github.com/dsec-io/dsec/rl/f32"
)

// Input is observations, one row each, of bytes or of numbers.
type Input struct {
	Rows int
	U8   []uint8
	F32  []float32
}

// Part returns rows lo to hi.
func (in Input) Part(lo, hi int) Input {
	part := Input{Rows: hi - lo}
	if in.Rows == 0 {
		return part
	}
	if n := len(in.U8) / in.Rows; n > 0 {
		part.U8 = in.U8[lo*n : hi*n]
	}
	if n := len(in.F32) / in.Rows; n > 0 {
		part.F32 = in.F32[lo*n : hi*n]
	}
	return part
}

// features are an Input as the first layer takes it: all numbers, or the nonzeros of each row where they are few.
type features struct {
	sparse bool
	dense  f32.Matrix
	cols   []int32 // of the nonzeros
	vals   []float32
	ends   []int // of each row in cols and vals
}

// sparseBelow is the share of nonzeros from which on a product with all numbers is as fast.
const sparseBelow = 0.2

func (f *features) set(in Input, width int, scale float32) {
	f.cols, f.vals, f.ends = f.cols[:0], f.vals[:0], f.ends[:0]
	limit := int(sparseBelow * float64(in.Rows*width))
	for i := range in.Rows {
		if in.U8 != nil {
			f.addBytes(in.U8[i*width:(i+1)*width], scale)
		} else {
			f.addNumbers(in.F32[i*width:(i+1)*width], scale)
		}
		f.ends = append(f.ends, len(f.cols))
		if len(f.cols) > limit {
			f.setDense(in, width, scale)
			return
		}
	}
	f.sparse = true
}

func (f *features) addBytes(row []uint8, scale float32) {
	at := 0
	for ; at+8 <= len(row); at += 8 {
		if binary.LittleEndian.Uint64(row[at:]) == 0 {
			continue
		}
		for j, x := range row[at : at+8] {
			if x != 0 {
				f.cols, f.vals = append(f.cols, int32(at+j)), append(f.vals, scale*float32(x))
			}
		}
	}
	for ; at < len(row); at++ {
		if x := row[at]; x != 0 {
			f.cols, f.vals = append(f.cols, int32(at)), append(f.vals, scale*float32(x))
		}
	}
}

func (f *features) addNumbers(row []float32, scale float32) {
	for j, x := range row {
		if x != 0 {
			f.cols, f.vals = append(f.cols, int32(j)), append(f.vals, scale*x)
		}
	}
}

func (f *features) setDense(in Input, width int, scale float32) {
	f.sparse = false
	f.dense = f32.Matrix{Data: f32.Grow(f.dense.Data, in.Rows*width), Rows: in.Rows, Cols: width}
	if in.U8 != nil {
		for i, x := range in.U8[:len(f.dense.Data)] {
			f.dense.Data[i] = scale * float32(x)
		}
		return
	}
	for i, x := range in.F32[:len(f.dense.Data)] {
		f.dense.Data[i] = scale * x
	}
}

// mulAdd computes y += x·w.
func (f *features) mulAdd(ws *f32.Workspace, y, w f32.Matrix) {
	if !f.sparse {
		ws.MatMul(y, f.dense, w, true)
		return
	}
	lo := 0
	for i, hi := range f.ends {
		row := y.Row(i)
		for k := lo; k < hi; k++ {
			f32.AddScaled(row, w.Row(int(f.cols[k])), f.vals[k])
		}
		lo = hi
	}
}

// gradient computes g += xᵀ·dy.
func (f *features) gradient(ws *f32.Workspace, g, dy f32.Matrix) {
	if !f.sparse {
		ws.MatMulT(g, f.dense, dy, true)
		return
	}
	lo := 0
	for i, hi := range f.ends {
		row := dy.Row(i)
		for k := lo; k < hi; k++ {
			f32.AddScaled(g.Row(int(f.cols[k])), row, f.vals[k])
		}
		lo = hi
	}
}

// finite says whether no number is infinite or NaN.
func finite(xs []float32) bool {
	for _, x := range xs {
		if math.Float32bits(x)>>23&0xff == 0xff {
			return false
		}
	}
	return true
}
