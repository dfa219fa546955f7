package env

import "math/bits"

const golden = 0x9e3779b97f4a7c15

// Rand is the splitmix64 generator: eight bytes of state, so that a stream for each environment costs nothing. Its
// zero value is the stream of seed 0. It isn't for secrets.
type Rand struct{ State uint64 }

// NewRand returns the stream of a seed.
func NewRand(seed uint64) Rand { return Rand{seed} }

// SeedOf derives the seed of one stream out of many. Neighbouring seeds and indices give unrelated streams, unlike
// seed*n + i, where environment 1 of seed 0 repeats environment 0 of seed 1.
func SeedOf(seed, index uint64) uint64 {
	return mix(mix(seed+golden) + (index+1)*0xd1342543de82ef95)
}

func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// Uint64 returns 64 random bits.
func (r *Rand) Uint64() uint64 {
	r.State += golden
	return mix(r.State)
}

// IntN returns a number in [0, n). The bias of n/2^64 can't be measured. It needs n > 0.
func (r *Rand) IntN(n int) int {
	hi, _ := bits.Mul64(r.Uint64(), uint64(n))
	return int(hi)
}

// Float32 returns a multiple of 2^-24 in [0, 1).
func (r *Rand) Float32() float32 { return float32(r.Uint64()>>40) * (1.0 / (1 << 24)) }

// Range returns a number in [low, high). The product is rounded by itself, so that it's the same on every machine.
func (r *Rand) Range(low, high float32) float32 { return low + float32((high-low)*r.Float32()) }
