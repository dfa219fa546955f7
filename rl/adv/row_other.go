//go:build !goexperiment.simd || !amd64

package adv

// Backend says which loop is used: "portable", "avx2" or "avx512".
func Backend() string { return "portable" }

func bestRow() func(*row, *consts) { return portableRow }

// clearUpper has nothing to clear: without the experiment a preemption leaves nothing behind.
func clearUpper() {}
