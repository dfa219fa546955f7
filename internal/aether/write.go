package aether

import (
	"context"
	"encoding/binary"

	"github.com/dsec-io/dsec/api"
)

// outFrame waits to be written.
type outFrame struct {
	buf     *buffer // nil: no payload
	fds     []int   // closed when written
	crc     uint32
	flags   uint8
	channel Channel
	typ     uint8
}

func (f *outFrame) size() int {
	if f.buf == nil {
		return 0
	}
	return len(f.buf.b)
}

const (
	batchFrames = 64
	batchBytes  = 256 << 10
	copyBelow   = 1 << 10 // smaller payloads are copied behind their header instead of getting a vector of their own
	scratchSize = batchFrames * (headerSize + traceSize + copyBelow)
	batchFDs    = 64 // below the kernel's 253 a message, and half of what a receiver lets wait, for what waits already
)

// batch is what goes out in one write.
type batch struct {
	scratch []byte // headers and small payloads
	vecs    [][]byte
	rest    [][]byte // what of vecs isn't written yet
	bufs    []*buffer
	fds     []int
	frames  int
	bytes   int
	cut     int // where in scratch the vector being built begins
}

func (b *batch) reset() {
	clear(b.vecs)
	clear(b.bufs)
	b.scratch, b.vecs, b.bufs, b.fds = b.scratch[:0], b.vecs[:0], b.bufs[:0], b.fds[:0]
	b.rest, b.frames, b.bytes, b.cut = nil, 0, 0, 0
}

func (b *batch) full() bool {
	return b.frames >= batchFrames || b.bytes >= batchBytes || len(b.fds) >= batchFDs
}

// add appends a frame; it takes over payload and descriptors.
func (b *batch) add(h *header, f *outFrame) {
	if b.scratch == nil {
		b.scratch = make([]byte, 0, scratchSize)
	}
	b.scratch = h.appendTo(b.scratch)
	b.frames++
	b.bytes += headerSize + int(h.length)
	b.fds = append(b.fds, f.fds...)
	switch {
	case f.buf == nil:
	case len(f.buf.b) < copyBelow:
		b.scratch = append(b.scratch, f.buf.b...)
		f.buf.free()
	default:
		b.vecs = append(b.vecs, b.scratch[b.cut:], f.buf.b)
		b.cut = len(b.scratch)
		b.bufs = append(b.bufs, f.buf)
	}
}

func (b *batch) finish() {
	if len(b.scratch) > b.cut {
		b.vecs = append(b.vecs, b.scratch[b.cut:])
		b.cut = len(b.scratch)
	}
	b.rest = b.vecs
}

// advance forgets n written bytes.
func (b *batch) advance(n int) {
	for len(b.rest) > 0 && n >= len(b.rest[0]) {
		n -= len(b.rest[0])
		b.rest = b.rest[1:]
	}
	if n > 0 {
		b.rest[0] = b.rest[0][n:]
	}
}

// readyLocked gives s its turn.
func (c *Conn) readyLocked(s *Stream) {
	if !s.queued && c.dead == nil {
		s.queued = true
		c.ready.push(s)
	}
}

// kickLocked sees to it that what is ready gets written, and unlocks c.mu. With now false nothing is written yet, because
// more follows at once.
func (c *Conn) kickLocked(now bool) {
	if !now || c.writer != writerNone || c.dead != nil || c.ready.n+c.refusals.n == 0 {
		c.mu.Unlock()
		return
	}
	if c.vec == nil {
		c.writer = writerLoop
		c.mu.Unlock()
		c.wakeWriter()
		return
	}
	// The caller writes itself, saving a switch of goroutines, as long as it needn't wait.
	c.writer = writerCaller
	c.fillLocked()
	c.mu.Unlock()
	n, err := c.vec.TryWriteBuffers(c.batch.rest, c.batch.fds)
	if n > 0 {
		c.fdsSent()
		c.batch.advance(n)
	}
	if err != nil {
		c.fail(err, false)
	}
	if err != nil || len(c.batch.rest) == 0 {
		c.batchDone()
	}
	c.mu.Lock()
	if c.dead == nil && len(c.batch.rest) == 0 && c.ready.n+c.refusals.n == 0 {
		c.writer = writerNone
		c.mu.Unlock()
		return
	}
	c.writer = writerLoop
	c.mu.Unlock()
	c.wakeWriter()
}

func (c *Conn) fdsSent() {
	if len(c.batch.fds) > 0 {
		c.fds.CloseFDs(c.batch.fds)
		c.batch.fds = c.batch.fds[:0]
	}
}

func (c *Conn) batchDone() {
	c.fdsSent()
	for _, b := range c.batch.bufs {
		b.free()
	}
	c.batch.reset()
}

// writeLoop writes what callers couldn't write at once. greeted is closed when HELLO is out.
func (c *Conn) writeLoop(greeted chan<- struct{}) {
	_, err := c.rw.Write(c.helloFrame())
	close(greeted)
	if err != nil {
		c.fail(err, false)
		return
	}
	for ok := c.writeOut(); ok; ok = c.writeOut() {
		<-c.wake
	}
}

// writeOut writes until nothing is ready. It tells whether there will be more.
func (c *Conn) writeOut() bool {
	for {
		c.mu.Lock()
		mine, dead, bye := c.writer == writerLoop, c.dead != nil, c.goodbye
		if mine && !dead && len(c.batch.rest) == 0 {
			if c.fillLocked(); len(c.batch.rest) == 0 {
				c.writer, mine = writerNone, false
			}
		}
		c.mu.Unlock()
		switch {
		case dead && !mine:
			// A caller is still writing; it wakes us when it is done.
			return c.callerWrites()
		case dead:
			torn := len(c.batch.rest) > 0
			c.batchDone()
			c.sayGoodbye(bye, torn)
			return false
		case !mine:
			return true
		}
		err := c.writeBatch()
		c.batchDone()
		if err != nil {
			c.fail(err, false)
		}
	}
}

// callerWrites tells whether a caller has hold of the batch.
func (c *Conn) callerWrites() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.writer == writerCaller
}

func (c *Conn) writeBatch() error {
	if c.vec != nil {
		_, err := c.vec.WriteBuffers(c.batch.rest, c.batch.fds)
		return err
	}
	for _, v := range c.batch.rest {
		if _, err := c.rw.Write(v); err != nil {
			return err
		}
	}
	return nil
}

// sayGoodbye tells the peer why the connection ends, unless it is in the middle of a frame.
func (c *Conn) sayGoodbye(frame []byte, torn bool) {
	if frame == nil {
		return
	}
	if !torn {
		c.rw.Write(frame) //nolint:errcheck // the connection is broken already
	}
	c.hangUp.Stop()
	c.rw.Close()
}

// fillLocked builds a batch: one frame from each ready stream in turn.
func (c *Conn) fillLocked() {
	b := &c.batch
	for c.refusals.n > 0 && !b.full() {
		r := c.refusals.pop()
		f := resetFrame(&c.bufs, r.err)
		c.addLocked(r.id, &f, nil)
	}
	for c.ready.n > 0 && !b.full() {
		s := c.ready.pop()
		s.queued = false
		if c.grantsLocked(s); s.out.n > 0 {
			c.nextLocked(s)
		}
		if s.out.n > 0 {
			c.readyLocked(s)
		}
	}
	b.finish()
}

func (c *Conn) addLocked(id uint32, f *outFrame, trace *[traceSize]byte) {
	h := header{
		version: c.version, flags: f.flags, channel: f.channel, typ: f.typ, stream: id,
		length: uint32(f.size()), crc: f.crc,
	}
	if trace != nil {
		h.trace = *trace
	}
	c.batch.add(&h, f)
}

// grantsLocked writes the credit that s owes the peer.
func (c *Conn) grantsLocked(s *Stream) {
	for ch, n := range s.grants {
		if n == 0 {
			continue
		}
		s.grants[ch] = 0
		if s.localReset {
			continue
		}
		buf := c.bufs.get(windowPayload)
		buf.b[0], buf.b[1], buf.b[2], buf.b[3] = byte(ch), 0, 0, 0
		binary.LittleEndian.PutUint32(buf.b[4:], n)
		c.addLocked(s.id, &outFrame{buf: buf, crc: checksum(buf.b), channel: Control, typ: ctlWindow}, nil)
	}
}

// nextLocked writes the next frame of s and draws the consequences.
func (c *Conn) nextLocked(s *Stream) {
	f := s.out.pop()
	n := f.size()
	c.addLocked(s.id, &f, &s.open.Trace)
	if f.channel == Message {
		s.outBytes -= n
		s.wakeLocked()
	}
	if f.channel != Control {
		return
	}
	switch {
	case f.typ == ctlOpen:
		s.openSent = true
		s.openDone = f.flags&flagMore == 0
		if f.flags&flagEnd != 0 {
			s.endSent = true
		}
	case f.flags&flagReset != 0:
		c.removeLocked(s)
	default:
		s.endSent = true
	}
	if s.endSent && s.remoteDone {
		c.removeLocked(s)
	}
}

// dropOutLocked forgets what s still had to write.
func (c *Conn) dropOutLocked(s *Stream) {
	for s.out.n > 0 {
		f := s.out.pop()
		f.buf.free()
		if len(f.fds) > 0 {
			c.fds.CloseFDs(f.fds)
		}
	}
	s.outBytes = 0
	s.grants = [Message]uint32{}
}

func resetFrame(p *pools, err *api.Error) outFrame {
	f := outFrame{flags: flagReset, channel: Control, typ: ctlEnd}
	if err != nil {
		f.buf = p.get(maxReset)
		f.buf.b = appendError(f.buf.b[:0], err)
		f.crc = checksum(f.buf.b)
	}
	return f
}

// put queues a frame of s, waiting for credit or room first. It owns the frame's buffer. With now false the frame may wait
// for one that follows at once. src, where not nil, is where the frame came from: its reset or loss ends the wait too,
// because a cancel that passes a relay must not wait for credit.
func (s *Stream) put(ctx context.Context, f outFrame, src *Stream, now bool) error {
	c := s.conn
	c.mu.Lock()
	for {
		if err := s.sendableLocked(f.channel); err != nil {
			c.mu.Unlock()
			f.buf.free()
			return err
		}
		if s.takeCreditLocked(&f) {
			break
		}
		wait := s.waitLocked()
		s.held.Store(false)
		c.kickLocked(true)
		select {
		case <-wait:
		case <-ctx.Done():
			f.buf.free()
			return context.Cause(ctx)
		case <-src.lost():
			f.buf.free()
			return src.Err()
		}
		c.mu.Lock()
	}
	if f.flags&flagEnd != 0 {
		s.ended[f.channel] = true
	}
	s.out.push(f)
	c.readyLocked(s)
	c.kickLocked(now && !s.held.Load())
	return nil
}

// takeCreditLocked pays for f, if it can be paid. A channel with any credit left may send one frame of any size.
func (s *Stream) takeCreditLocked(f *outFrame) bool {
	n := f.size()
	if f.channel == Message {
		if s.outBytes >= sendAhead {
			return false
		}
		s.outBytes += n
		return true
	}
	if n == 0 {
		return true
	}
	if s.sendCredit[f.channel] <= 0 {
		return false
	}
	s.sendCredit[f.channel] -= int64(n) + frameCost
	return true
}
