//go:build !amd64

package f32

// Backend says which form of the loops is used: "portable", "avx2" or "avx512".
func Backend() string { return "portable" }

func kernelOf() kernel { return portable() }

func addScaledVector(_, _ []float32, _ float32) bool { return false }

func tanhVector(_, _ []float32) bool { return false }

func sigmoidVector(_, _ []float32) bool { return false }
