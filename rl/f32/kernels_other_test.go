//go:build !amd64

package f32

// kernels are those that this processor can run.
func kernels() map[string]kernel { return map[string]kernel{"portable": portable()} }
