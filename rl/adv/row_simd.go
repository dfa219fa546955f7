//go:build goexperiment.simd && amd64

package adv

import (
	"encoding/binary"
	"simd/archsimd"
)

// Backend says which loop is used: "portable", "avx2" or "avx512".
func Backend() string {
	switch {
	case archsimd.X86.AVX512():
		return "avx512"
	case archsimd.X86.AVX2() && archsimd.X86.FMA():
		return "avx2"
	}
	return "portable"
}

func bestRow() func(*row, *consts) {
	switch Backend() {
	case "avx512":
		return avx512Row
	case "avx2":
		return avx2Row
	}
	return portableRow
}

// clearUpper ends the slow time that a preemption may have begun (see the package's comment).
func clearUpper() {
	if archsimd.X86.AVX() {
		archsimd.ClearAVXUpperBits()
	}
}

// rest does what is left of a row from column j on.
func (w *row) rest(j int, k *consts) {
	if j == len(w.adv) {
		return
	}
	tail := row{adv: w.adv[j:], later: w.later[j:], value: w.value[j:], next: w.next[j:], reward: w.reward[j:], done: w.done[j:]}
	if w.importance != nil {
		tail.importance = w.importance[j:]
	}
	portableRow(&tail, k)
}

func avx512Row(w *row, k *consts) {
	n := len(w.adv)
	adv, later, value, next := w.adv, w.later[:n], w.value[:n], w.next[:n]
	reward, done, imp := w.reward[:n], w.done[:n], w.importance
	one, gamma, gl := archsimd.BroadcastFloat32x16(1), archsimd.BroadcastFloat32x16(k.gamma), archsimd.BroadcastFloat32x16(k.gl)
	rhoMax, cMax := archsimd.BroadcastFloat32x16(k.rho), archsimd.BroadcastFloat32x16(k.c)
	rho, c := rhoMax, cMax.Mul(gl)
	j := 0
	for ; j+16 <= n; j += 16 {
		keep := one.Sub(archsimd.LoadUint8x16((*[16]uint8)(done[j : j+16])).ExtendToUint32().AsInt32x16().ConvertToFloat32())
		if imp != nil {
			x := archsimd.LoadFloat32x16((*[16]float32)(imp[j : j+16]))
			rho, c = x.Min(rhoMax), x.Min(cMax).Mul(gl)
		}
		future := archsimd.LoadFloat32x16((*[16]float32)(next[j : j+16])).Mul(gamma).Mul(keep)
		r, v := archsimd.LoadFloat32x16((*[16]float32)(reward[j:j+16])), archsimd.LoadFloat32x16((*[16]float32)(value[j:j+16]))
		var delta archsimd.Float32x16
		if k.rewardsOnly {
			delta = rho.MulAdd(r, future.Sub(v))
		} else {
			delta = rho.Mul(r.Add(future).Sub(v))
		}
		c.Mul(keep).MulAdd(archsimd.LoadFloat32x16((*[16]float32)(later[j:j+16])), delta).Store((*[16]float32)(adv[j : j+16]))
	}
	clearUpper()
	w.rest(j, k)
}

func avx2Row(w *row, k *consts) {
	n := len(w.adv)
	adv, later, value, next := w.adv, w.later[:n], w.value[:n], w.next[:n]
	reward, done, imp := w.reward[:n], w.done[:n], w.importance
	one, gamma, gl := archsimd.BroadcastFloat32x8(1), archsimd.BroadcastFloat32x8(k.gamma), archsimd.BroadcastFloat32x8(k.gl)
	rhoMax, cMax := archsimd.BroadcastFloat32x8(k.rho), archsimd.BroadcastFloat32x8(k.c)
	rho, c := rhoMax, cMax.Mul(gl)
	j := 0
	for ; j+8 <= n; j += 8 {
		keep := one.Sub(archsimd.BroadcastUint64x2(binary.LittleEndian.Uint64(done[j : j+8])).AsUint8x16().ExtendLo8ToUint32().AsInt32x8().ConvertToFloat32())
		if imp != nil {
			x := archsimd.LoadFloat32x8((*[8]float32)(imp[j : j+8]))
			rho, c = x.Min(rhoMax), x.Min(cMax).Mul(gl)
		}
		future := archsimd.LoadFloat32x8((*[8]float32)(next[j : j+8])).Mul(gamma).Mul(keep)
		r, v := archsimd.LoadFloat32x8((*[8]float32)(reward[j:j+8])), archsimd.LoadFloat32x8((*[8]float32)(value[j:j+8]))
		var delta archsimd.Float32x8
		if k.rewardsOnly {
			delta = rho.MulAdd(r, future.Sub(v))
		} else {
			delta = rho.Mul(r.Add(future).Sub(v))
		}
		c.Mul(keep).MulAdd(archsimd.LoadFloat32x8((*[8]float32)(later[j:j+8])), delta).Store((*[8]float32)(adv[j : j+8]))
	}
	clearUpper()
	w.rest(j, k)
}
