package aether

import (
	"errors"
	"fmt"
	"io"
)

const (
	readAhead = 32 << 10
	// After a large frame little is read beyond the next header, so that its payload goes straight where it belongs.
	readAheadBulk = 4 << 10
)

// frameReader cuts a byte stream into frames.
type frameReader struct {
	r          io.Reader
	buf        []byte
	start, end int
	bulk       bool
}

// next reads a header. It doesn't check what the header says.
func (r *frameReader) next(h *header) error {
	if err := r.need(headerSize); err != nil {
		return err
	}
	n, err := headerLen(r.buf[r.start:])
	if err != nil {
		return err
	}
	if err := r.need(n); err != nil {
		return err
	}
	err = h.decode(r.buf[r.start : r.start+n])
	r.start += n
	return err
}

// need makes n bytes available in the buffer.
func (r *frameReader) need(n int) error {
	if r.end-r.start >= n {
		return nil
	}
	if r.buf == nil {
		r.buf = make([]byte, readAhead)
	}
	if r.start > 0 {
		copy(r.buf, r.buf[r.start:r.end])
		r.start, r.end = 0, r.end-r.start
	}
	limit := len(r.buf)
	if r.bulk {
		limit = readAheadBulk
	}
	for idle := 0; r.end < n; {
		m, err := r.r.Read(r.buf[r.end:limit])
		r.end += m
		if m > 0 {
			idle = 0
			continue
		}
		if err == nil {
			if idle++; idle > 100 {
				return io.ErrNoProgress
			}
			continue
		}
		if errors.Is(err, io.EOF) && r.end > 0 {
			return fmt.Errorf("within a frame header: %w", io.ErrUnexpectedEOF)
		}
		return err
	}
	return nil
}

// payload reads len(p) bytes of the frame whose header was read last.
func (r *frameReader) payload(p []byte) error {
	n := copy(p, r.buf[r.start:r.end])
	r.start += n
	r.bulk = len(p) >= readAheadBulk
	if n == len(p) {
		return nil
	}
	if _, err := io.ReadFull(r.r, p[n:]); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return fmt.Errorf("within a frame payload: %w", err)
	}
	return nil
}

// discard skips n bytes of payload.
func (r *frameReader) discard(n int) error {
	for n > 0 {
		if r.start == r.end {
			r.start, r.end = 0, 0
			if err := r.need(1); err != nil {
				if errors.Is(err, io.EOF) {
					err = io.ErrUnexpectedEOF
				}
				return fmt.Errorf("within a frame payload: %w", err)
			}
		}
		m := min(n, r.end-r.start)
		r.start += m
		n -= m
	}
	return nil
}
