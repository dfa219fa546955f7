package f32

// kernels are those that this processor can run.
func kernels() map[string]kernel {
	all := map[string]kernel{"portable": portable()}
	if hasAVX2() {
		all["avx2"] = avx2()
	}
	if hasAVX512() {
		all["avx512"] = avx512()
	}
	return all
}
