// Package content makes bytes that are made and compared much faster than they are sent, to verify what went through a
// server without holding it.
package content

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
)

const blockSize = 1 << 20

// Content is a few random blocks in turns, each with its number in front. It is the same each time, and may be used by
// several goroutines.
type Content struct {
	Size   int64
	Digest string // SHA-256, in hex
	blocks [][]byte
}

// New makes content of so many bytes.
func New(size int64) *Content {
	c := &Content{Size: size}
	source := rand.NewChaCha8([32]byte{1})
	for range 8 {
		block := make([]byte, blockSize)
		_, _ = source.Read(block) // it never fails
		c.blocks = append(c.blocks, block)
	}
	sum := sha256.New()
	_, _ = io.Copy(sum, c.Reader()) // neither fails
	c.Digest = hex.EncodeToString(sum.Sum(nil))
	return c
}

// part is the longest piece at an offset that lies within the number or the rest of a block.
func (c *Content) part(at int64, number *[8]byte) []byte {
	block, within := at/blockSize, at%blockSize
	left := c.Size - at
	if within < int64(len(number)) {
		binary.LittleEndian.PutUint64(number[:], uint64(block))
		return number[within:][:min(left, int64(len(number))-within)]
	}
	b := c.blocks[block%int64(len(c.blocks))][within:]
	return b[:min(left, int64(len(b)))]
}

// Reader reads content once. It is for one goroutine.
type Reader struct {
	*Content
	at int64
}

// Reader reads from the start.
func (c *Content) Reader() *Reader { return &Reader{Content: c} }

// Read implements [io.Reader].
func (r *Reader) Read(p []byte) (n int, err error) {
	var number [8]byte
	for n < len(p) && r.at < r.Size {
		m := copy(p[n:], r.part(r.at, &number))
		n, r.at = n+m, r.at+int64(m)
	}
	if n == 0 && len(p) > 0 {
		return 0, io.EOF
	}
	return n, nil
}

// Checker is a writer that takes nothing but content. It is for one goroutine.
type Checker struct {
	*Content
	at int64
}

// Checker wants the content from the start.
func (c *Content) Checker() *Checker { return &Checker{Content: c} }

// Write implements [io.Writer].
func (w *Checker) Write(p []byte) (int, error) {
	var number [8]byte
	for n := 0; n < len(p); {
		if w.at >= w.Size {
			return n, fmt.Errorf("more than %d bytes came", w.Size)
		}
		want := w.part(w.at, &number)
		want = want[:min(len(want), len(p)-n)]
		if !bytes.Equal(p[n:n+len(want)], want) {
			return n, fmt.Errorf("other bytes came within %d of offset %d", len(want), w.at)
		}
		n, w.at = n+len(want), w.at+int64(len(want))
	}
	return len(p), nil
}

// Whole is nil when all has been written.
func (w *Checker) Whole() error {
	if w.at != w.Size {
		return fmt.Errorf("%d bytes of %d came", w.at, w.Size)
	}
	return nil
}
