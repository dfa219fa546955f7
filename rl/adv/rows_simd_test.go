//go:build goexperiment.simd && amd64

package adv

import (
	"simd/archsimd"
	"testing"
	"time"
)

func rows() map[string]func(*row, *consts) {
	all := map[string]func(*row, *consts){"portable": portableRow}
	if archsimd.X86.AVX2() {
		all["avx2"] = avx2Row
	}
	if archsimd.X86.AVX512() {
		all["avx512"] = avx512Row
	}
	return all
}

// TestUpperHalvesAreClean is about the trap that the package's comment tells of: vector code, or at GOAMD64=v3 a mere
// preemption of scalar code, that leaves the upper halves dirty makes scalar code slower by a factor of 50 and more.
// Run it with GOAMD64=v3, too: without the clearing after each row it fails there by a factor of 170.
func TestUpperHalvesAreClean(t *testing.T) {
	r := randomRollout(64, 512, 1)
	out := make([]float32, 64*512)
	p := Params{Form: VTrace3, Gamma: 0.99, Lambda: 0.95}
	best := func() time.Duration {
		d := time.Hour
		for range 60 {
			start := time.Now()
			if err := compute(p, r, out, portableRow); err != nil {
				t.Fatal(err)
			}
			d = min(d, time.Since(start))
		}
		return d
	}
	before := best()
	for name, do := range rows() {
		if err := compute(p, r, out, do); err != nil {
			t.Fatal(err)
		}
		if after := best(); after > 8*before {
			t.Errorf("after %s the portable loop takes %v, %v before", name, after, before)
		}
	}
}
