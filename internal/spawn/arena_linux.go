package spawn

import "unsafe"

// arena is memory whose addresses stay valid until reset: chunks of words, filled front to back. Go's collector doesn't
// move heap objects, and the chunks are reachable from the arena.
type arena struct {
	chunks [][]uint64
	cur    int // chunk in use
	off    int // words used in it
}

const (
	chunkWords = 1 << 10 // 8 KiB: a usual argv and environment
	keepWords  = 1 << 17 // 1 MiB: larger chunks are one-off, given back at reset
)

// words hands out n 8-byte words. Their content is unspecified.
func (a *arena) words(n int) []uint64 {
	for a.cur < len(a.chunks) {
		if c := a.chunks[a.cur]; a.off+n <= len(c) {
			w := c[a.off : a.off+n : a.off+n]
			a.off += n
			return w
		}
		a.cur++
		a.off = 0
	}
	a.chunks = append(a.chunks, make([]uint64, max(n, chunkWords)))
	a.off = n
	return a.chunks[a.cur][:n:n]
}

// bytes hands out n bytes, 8-byte aligned; n is above zero.
func (a *arena) bytes(n int) []byte {
	w := a.words((n + 7) / 8)
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(w))), n)
}

func (a *arena) reset() {
	a.cur, a.off = 0, 0
	kept := a.chunks[:0]
	total := 0
	for _, c := range a.chunks {
		if total += len(c); total > keepWords {
			break
		}
		kept = append(kept, c)
	}
	clear(a.chunks[len(kept):])
	a.chunks = kept
}
