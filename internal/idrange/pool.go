package idrange

import "slices"

// pool is the ids of some chunks, used and free. Chunk n holds perChunk ids, step apart, from first+n*perChunk*step.
type pool struct {
	first    uint32
	step     uint32
	perChunk uint32

	chunks []uint32
	used   map[uint32]bool
	// next is where the search for a free id goes on, so that a released id is reused as late as possible: what a dead
	// sandbox may have left on a file system doesn't meet its next namesake at once.
	next int
}

func (p *pool) setChunks(chunks []uint32) {
	p.chunks = slices.Clone(chunks)
	if p.used == nil {
		p.used = map[uint32]bool{}
	}
}

func (p *pool) at(i int) uint32 {
	chunk := p.chunks[i/int(p.perChunk)]
	return p.first + (chunk*p.perChunk+uint32(i%int(p.perChunk)))*p.step
}

func (p *pool) get() (uint32, bool) {
	n := len(p.chunks) * int(p.perChunk)
	for range n {
		i := p.next % n
		p.next = i + 1
		if id := p.at(i); !p.used[id] {
			p.used[id] = true
			return id, true
		}
	}
	return 0, false
}

func (p *pool) take(id uint32) bool {
	if id < p.first || (id-p.first)%p.step != 0 || p.used[id] {
		return false
	}
	if !slices.Contains(p.chunks, (id-p.first)/p.step/p.perChunk) {
		return false
	}
	p.used[id] = true
	return true
}

func (p *pool) put(id uint32) { delete(p.used, id) }
