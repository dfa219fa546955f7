//go:build !goexperiment.simd || !amd64

package adv

func rows() map[string]func(*row, *consts) {
	return map[string]func(*row, *consts){"portable": portableRow}
}
