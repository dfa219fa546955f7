package aether

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"runtime/debug"

	"github.com/dsec-io/dsec/api"
)

// partialOpen is an OPEN whose frames haven't all come.
type partialOpen struct {
	payload []byte
	trace   [traceSize]byte
	refused bool // the rest is dropped
	fds     int  // of a refused one: descriptors that come with it; see announced
}

const maxBacklog = 128 // streams opened by the peer before Serve

func (c *Conn) readLoop() {
	err, tell := c.readFrames()
	c.fail(err, tell)
}

// readFrames reads until the connection ends, and tells whether the peer should hear why.
func (c *Conn) readFrames() (err error, tell bool) {
	var h header
	for {
		if err := c.rd.next(&h); err != nil {
			if errors.Is(err, io.EOF) {
				err = ErrHungUp
			}
			return err, errors.Is(err, ErrMagic) || errors.Is(err, ErrHeaderCRC) || errors.Is(err, ErrFlags)
		}
		if err := h.check(c.version, uint32(c.opts.MaxData)); err != nil {
			return err, true
		}
		if h.channel == Control {
			err, tell = c.control(&h)
		} else {
			err, tell = c.content(&h)
		}
		if err != nil {
			return err, tell
		}
	}
}

// content takes a data or message frame.
func (c *Conn) content(h *header) (err error, tell bool) {
	s, err := c.find(h.stream)
	if err != nil {
		return err, true
	}
	if s == nil {
		return c.rd.discard(int(h.length)), false
	}
	if err := s.admit(h); err != nil {
		if !errors.Is(err, errLate) {
			s.violated(err)
		}
		return c.rd.discard(int(h.length)), false
	}
	f := Frame{
		Channel: h.channel, Type: h.typ, End: h.flags&flagEnd != 0, more: h.flags&flagMore != 0,
		crc: h.crc, stream: s,
	}
	if h.length > 0 {
		f.buf = c.bufs.get(int(h.length))
		f.Data = f.buf.b
		if err := c.rd.payload(f.Data); err != nil {
			return err, false
		}
	}
	s.push(f)
	return nil, false
}

// find returns the stream, or nil for one that has ended here.
func (c *Conn) find(id uint32) (*Stream, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.streams[id]; s != nil {
		return s, nil
	}
	if c.opening[id] != nil {
		return nil, nil
	}
	last := c.peerID
	if c.isOurs(id) {
		last = c.lastID
	}
	if id > last {
		return nil, fmt.Errorf("%w: %d was never opened", ErrStreamID, id)
	}
	return nil, nil
}

func (c *Conn) isOurs(id uint32) bool { return id&1 == 1 == c.client }

// control takes a frame of the control channel.
func (c *Conn) control(h *header) (err error, tell bool) {
	p := c.small[:]
	if h.typ != ctlWindow {
		p = make([]byte, h.length)
	}
	if err := c.rd.payload(p); err != nil {
		return err, false
	}
	intact := checksum(p) == h.crc
	switch {
	case h.stream == 0: // only a RESET gets here
		if !intact {
			return ErrPayloadCRC, false
		}
		return fmt.Errorf("told by the peer: %w", parseReset(p)), false
	case h.typ == ctlOpen:
		err := c.opened(h, p, intact)
		return err, true
	}
	s, err := c.find(h.stream)
	if err != nil {
		return err, true
	}
	if s == nil {
		c.forgetOpening(h)
		return nil, false
	}
	switch {
	case h.flags&flagReset != 0:
		cause := error(ErrReset)
		if intact {
			cause = parseReset(p)
		}
		c.wasReset(s, cause)
	case !intact:
		s.violated(ErrPayloadCRC)
	case h.typ == ctlWindow:
		c.granted(s, p)
	default:
		c.wasClosed(s)
	}
	return nil, false
}

// forgetOpening drops a half-opened stream that was reset.
func (c *Conn) forgetOpening(h *header) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.opening[h.stream]; p != nil && h.flags&flagReset != 0 {
		c.pending -= len(p.payload)
		delete(c.opening, h.stream)
	}
}

func (c *Conn) wasReset(s *Stream, cause error) {
	c.mu.Lock()
	s.lostLocked(cause)
	s.remoteDone, s.localDone = true, true
	c.dropOutLocked(s)
	if s.openDone {
		c.removeLocked(s)
	} else if !s.localReset {
		// Refused in the middle of its OPEN: the peer waits for the end of that, or for this.
		s.localReset = true
		s.out.push(resetFrame(&c.bufs, nil))
		s.overLocked()
		c.readyLocked(s)
	}
	s.wakeLocked()
	c.kickLocked(true)
	s.finish(cause)
}

func (c *Conn) wasClosed(s *Stream) {
	c.mu.Lock()
	again := s.remoteDone
	s.remoteDone = true
	if s.endSent {
		c.removeLocked(s)
	}
	c.mu.Unlock()
	if again {
		s.violated(ErrEnded)
		return
	}
	s.finish(errEOF)
}

// granted takes a WINDOW frame.
func (c *Conn) granted(s *Stream, p []byte) {
	ch, n := Channel(p[0]), int64(binary.LittleEndian.Uint32(p[4:]))
	if p[1]|p[2]|p[3] != 0 || ch < Stdin || ch > Stderr {
		s.violated(fmt.Errorf("%w: window of channel %d", ErrChannel, ch))
		return
	}
	c.mu.Lock()
	credit := s.sendCredit[ch] + n
	ok := n > 0 && credit <= int64(c.peer.Window)
	if ok {
		s.sendCredit[ch] = credit
		s.wakeLocked()
	}
	c.mu.Unlock()
	if !ok {
		s.violated(fmt.Errorf("%w: %d more on channel %d makes %d", ErrCredit, n, ch, credit))
	}
}

// opened takes a frame of an OPEN. An error ends the connection.
func (c *Conn) opened(h *header, p []byte, intact bool) error {
	c.mu.Lock()
	part := c.opening[h.stream]
	switch {
	case c.dead != nil:
		c.mu.Unlock()
		return c.dead
	case part != nil:
	case c.isOurs(h.stream) || h.stream <= c.peerID:
		c.mu.Unlock()
		return fmt.Errorf("%w: open of %d after %d", ErrStreamID, h.stream, c.peerID)
	case len(c.opening) >= c.opts.MaxStreams+maxRefusals:
		c.mu.Unlock()
		return fmt.Errorf("%w: %d being opened", ErrTooMany, len(c.opening))
	default:
		c.peerID = h.stream
		part = &partialOpen{}
		c.opening[h.stream] = part
	}
	refuse := c.addOpenLocked(part, h, p, intact)
	if refuse != nil {
		part.refused, part.fds = true, unknownFDs
		if intact {
			part.fds = announced(part.payload)
		}
		c.pending -= len(part.payload)
		part.payload = nil
		if c.refusals.n >= maxRefusals {
			c.mu.Unlock()
			return fmt.Errorf("%w: %d refused streams", ErrFlood, maxRefusals)
		}
		c.refusals.push(refusal{h.stream, refuse})
	}
	last := h.flags&flagMore == 0
	if last {
		delete(c.opening, h.stream)
	}
	if refuse != nil || !last || part.refused {
		c.kickLocked(refuse != nil)
		if last {
			return c.discardFDs(h.stream, part.fds)
		}
		return nil
	}
	c.mu.Unlock()
	return c.accept(h.stream, part, h.flags&flagEnd != 0)
}

// addOpenLocked adds a frame to an OPEN and tells why the stream is to be refused, if so.
func (c *Conn) addOpenLocked(part *partialOpen, h *header, p []byte, intact bool) *api.Error {
	if part.refused {
		return nil
	}
	if len(part.payload) == 0 {
		part.payload, part.trace = p, h.trace
	} else {
		part.payload = append(part.payload, p...)
	}
	c.pending += len(p)
	switch {
	case !intact:
		return api.Errorf(api.CodeInvalid, "open: %v", ErrPayloadCRC)
	case len(part.payload) > MaxMessage+maxReset:
		return api.Errorf(api.CodeTooLarge, "open: more than %d bytes", MaxMessage)
	case c.theirs+len(c.opening) > c.opts.MaxStreams:
		return api.Errorf(api.CodeTooMany, "%v: %d", ErrTooMany, c.opts.MaxStreams)
	case c.pending > maxPendingOpen:
		return api.Errorf(api.CodeTooMany, "more than %d bytes of streams being opened", maxPendingOpen)
	}
	return nil
}

// accept makes the stream that has been opened.
func (c *Conn) accept(id uint32, part *partialOpen, closed bool) error {
	var o Open
	n, err := o.unmarshal(part.payload)
	var fds []int
	switch {
	case err != nil:
		if lost := c.discardFDs(id, announced(part.payload)); lost != nil {
			return lost
		}
	case n > 0:
		if fds, err = c.takeFDs(n); err != nil && c.fds != nil {
			return fmt.Errorf("open of %d with %d descriptors: %w", id, n, err) // which frame the others belong to isn't known any more
		}
	}
	return c.enter(id, part, &o, arrived{fds, err, closed})
}

// arrived is what is known of an OPEN that has come, besides what it says.
type arrived struct {
	fds    []int
	err    error // why it is refused
	closed bool
}

// enter makes a stream of an OPEN, or refuses it.
func (c *Conn) enter(id uint32, part *partialOpen, o *Open, a arrived) error {
	fds, err, closed := a.fds, a.err, a.closed
	c.mu.Lock()
	if err == nil && c.serve == nil && len(c.backlog) >= maxBacklog {
		err = ErrTooMany
	}
	if err != nil || c.dead != nil {
		c.pending -= len(part.payload)
		if err != nil && c.refusals.n < maxRefusals {
			c.refusals.push(refusal{id, api.Errorf(api.CodeInvalid, "open: %v", err)})
		}
		c.kickLocked(true)
		if len(fds) > 0 {
			c.fds.CloseFDs(fds)
		}
		return nil
	}
	o.Trace, o.Closed = part.trace, closed
	s := newStream(c, *o)
	s.id, s.accepted, s.openSent, s.openDone, s.fds, s.size = id, true, true, true, fds, len(part.payload)
	if closed {
		s.remoteDone, s.recvErr = true, errEOF
	}
	c.streams[id] = s
	c.theirs++
	if c.serve == nil {
		c.backlog = append(c.backlog, s)
		c.mu.Unlock()
		return nil
	}
	c.pending -= len(part.payload)
	c.serve(s)
	c.mu.Unlock()
	return nil
}

// unknownFDs is the number of descriptors of an OPEN that doesn't tell it.
const unknownFDs = -1

// announced is how many descriptors the beginning of an OPEN's payload says that come with it. The number stands before
// the body, which may be cut.
func announced(b []byte) int {
	d := decoder{rest: b}
	for d.next() {
		switch d.field {
		case openFDs:
			return int(d.uint(8))
		case openBody:
			return 0
		}
	}
	if d.field == openBody || !d.bad {
		return 0
	}
	return unknownFDs
}

// discardFDs closes the descriptors of an OPEN that was refused, so that they don't become another one's. An error ends
// the connection: whose the waiting ones are isn't known any more.
func (c *Conn) discardFDs(id uint32, n int) error {
	if c.fds == nil || n == 0 {
		return nil // a transport without descriptors, or an OPEN
	}
	fds, err := c.takeFDs(max(n, 1))
	switch {
	case err == nil:
		c.fds.CloseFDs(fds)
		if n != unknownFDs {
			return nil
		}
		err = ErrDescriptors
	case n == unknownFDs:
		return nil // none are here, and they come with the OPEN's last bytes or before
	}
	return fmt.Errorf("refused open of %d with %d descriptors: %w", id, n, err)
}

func (c *Conn) takeFDs(n int) ([]int, error) {
	if c.fds == nil || n > maxFDs {
		return nil, ErrDescriptors
	}
	fds, err := c.fds.TakeFDs(n)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDescriptors, err)
	}
	return fds, nil
}

// Serve runs handler in a goroutine per stream that the peer opens. It returns when the connection has ended and every
// handler has returned; the end of ctx closes the connection. A stream whose handler has returned is closed and what
// still arrives on it is dropped. ctx is handed to the handlers.
func (c *Conn) Serve(ctx context.Context, handler func(context.Context, *Stream)) error {
	w := &crew{next: make(chan *Stream), over: c.done, serve: func(s *Stream) { c.handle(ctx, s, handler) }}
	start := w.start
	c.mu.Lock()
	if c.serve != nil {
		c.mu.Unlock()
		return errors.New("aether connection is being served already")
	}
	if c.dead == nil {
		c.serve = start
	}
	for _, s := range c.backlog {
		c.pending -= s.size
		start(s)
	}
	c.backlog = nil
	c.mu.Unlock()
	stop := context.AfterFunc(ctx, func() { c.fail(context.Cause(ctx), false) })
	defer stop()
	<-c.done
	w.all.Wait()
	return c.Err()
}

func (c *Conn) handle(ctx context.Context, s *Stream, handler func(context.Context, *Stream)) {
	defer func() {
		if c.opts.Panic != nil {
			if v := recover(); v != nil {
				c.opts.Panic(v, debug.Stack())
				s.Reset(api.Errorf(api.CodeInternal, "%s: the handler failed", s.open.Method))
			}
		}
		s.abandon()
		s.Close() //nolint:errcheck // closed or reset already
	}()
	handler(ctx, s)
}
