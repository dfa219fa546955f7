package aether

import "sync"

// buffer is a frame's payload. Buffers come in four sizes, so that what a small frame holds stays near its cost in credit.
type buffer struct {
	b    []byte
	pool *sync.Pool // nil: not pooled
}

type pools struct{ class [4]sync.Pool }

// get returns a buffer of length n.
func (p *pools) get(n int) *buffer {
	size := 0
	var i int
	switch {
	case n <= 512:
		i, size = 0, 512
	case n <= 4<<10:
		i, size = 1, 4<<10
	case n <= MaxDataAether:
		i, size = 2, MaxDataAether
	case n <= MaxDataElse:
		i, size = 3, MaxDataElse
	default:
		return &buffer{b: make([]byte, n)}
	}
	if v, ok := p.class[i].Get().(*buffer); ok {
		v.b = v.b[:n]
		return v
	}
	return &buffer{b: make([]byte, n, size), pool: &p.class[i]}
}

// free gives the buffer back; nothing may refer to it any more.
func (b *buffer) free() {
	if b != nil && b.pool != nil {
		b.pool.Put(b)
	}
}
