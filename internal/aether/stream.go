package aether

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/dsec-io/dsec/api"
)

// Stream is one conversation on a connection. Its methods are safe for concurrent use, but one goroutine at a time receives.
type Stream struct {
	conn     *Conn
	id       uint32
	accepted bool // opened by the peer
	open     Open
	size     int         // of the OPEN that came
	held     atomic.Bool // writes wait for Flush

	sender
	receiver

	// Only the receiver touches these.
	partial     []byte
	partialType uint8
}

// sender is a stream's sending side and how far its life has come. The connection's mu guards it.
type sender struct {
	out        queue[outFrame]
	outBytes   int // of messages in out
	sendCredit [Message]int64
	grants     [Message]uint32 // credit to tell the peer
	ended      [Message + 1]bool
	queued     bool // in conn.ready
	sending    bool // a message of several frames is being queued
	openSent   bool // the peer knows the stream
	openDone   bool // the peer knows all of OPEN
	localDone  bool // Close or Reset was called
	localReset bool
	endSent    bool
	remoteDone bool
	over       bool
	drained    bool          // what came from it is passed on though its connection is gone; see lost
	sendErr    error         // why nothing can be sent any more
	wait       chan struct{} // closed when a sender that waits should look again; nil when none waits
	doneCh     chan struct{}
	lostCh     chan struct{}
	afterOver  []func()
}

// receiver is a stream's receiving side.
type receiver struct {
	wake chan struct{} // one token: the receiver looks at everything

	// mu guards everything below.
	mu        sync.Mutex
	in        queue[Frame]
	recvErr   error // what Recv returns after the queue is empty
	flow      [Message]inflow
	msgFrames int // messages in the queue
	msgBytes  int
	discard   bool // nobody will receive any more
	fds       []int
}

// inflow is what may still come on a channel.
type inflow struct {
	credit int64 // that the peer has left
	owed   int64 // given back by the receiver, not yet told to the peer
	ended  bool
}

func newStream(c *Conn, o Open) *Stream {
	s := &Stream{conn: c, open: o, receiver: receiver{wake: make(chan struct{}, 1)}}
	s.held.Store(o.Hold)
	for ch := Stdin; ch <= Stderr; ch++ {
		s.sendCredit[ch] = int64(c.peer.Window)
		s.flow[ch].credit = int64(c.opts.Window)
	}
	return s
}

// Open is what opened the stream. Its FDs are only set where the stream was opened here; see TakeFDs.
func (s *Stream) Open() Open { return s.open }

// TakeFDs hands over the descriptors that came with the stream. Those never taken are closed with the stream.
func (s *Stream) TakeFDs() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	fds := s.fds
	s.fds = nil
	return fds
}

// Send sends a message. It needs no credit, but waits while too much of this stream isn't written yet.
func (s *Stream) Send(ctx context.Context, msgType uint8, body []byte) error {
	return s.send(ctx, msgType, body, true)
}

// Forward is [Stream.Send] for who relays from src. Where src has more to be had without waiting, the message waits for
// it, so that both leave in one write.
func (s *Stream) Forward(ctx context.Context, src *Stream, msgType uint8, body []byte) error {
	src.mu.Lock()
	more := src.in.n > 0
	src.mu.Unlock()
	return s.send(ctx, msgType, body, !more)
}

func (s *Stream) send(ctx context.Context, msgType uint8, body []byte, now bool) error {
	if msgType == 0 || len(body) > MaxMessage {
		return fmt.Errorf("message of type %d with %d bytes: %w", msgType, len(body), ErrTooLarge)
	}
	if err := s.lockSend(ctx); err != nil {
		return err
	}
	defer s.unlockSend()
	c := s.conn
	for first := true; ; first = false {
		n := min(len(body), int(c.peer.MaxData))
		f := outFrame{channel: Message, typ: msgType}
		if n > 0 {
			f.buf = c.bufs.get(n)
			copy(f.buf.b, body)
			f.crc = checksum(f.buf.b)
		}
		if body = body[n:]; len(body) > 0 {
			f.flags = flagMore
		}
		if err := s.put(ctx, f, nil, now); err != nil {
			if !first {
				s.Reset(nil) // the peer can't make sense of what follows
			}
			return err
		}
		if len(body) == 0 {
			return nil
		}
	}
}

// lockSend keeps the frames of two messages apart.
func (s *Stream) lockSend(ctx context.Context) error {
	s.conn.mu.Lock()
	for s.sending {
		wait := s.waitLocked()
		s.conn.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		s.conn.mu.Lock()
	}
	s.sending = true
	s.conn.mu.Unlock()
	return nil
}

func (s *Stream) unlockSend() {
	s.conn.mu.Lock()
	s.sending = false
	s.wakeLocked()
	s.conn.mu.Unlock()
}

// Write sends data, waiting for credit. p may be reused when it returns.
func (s *Stream) Write(ctx context.Context, ch Channel, p []byte) error {
	if ch < Stdin || ch > Stderr {
		return fmt.Errorf("write to channel %d: %w", ch, ErrChannel)
	}
	c := s.conn
	for len(p) > 0 {
		buf := c.bufs.get(min(len(p), int(c.peer.MaxData)))
		p = p[copy(buf.b, p):]
		if err := s.put(ctx, outFrame{buf: buf, crc: checksum(buf.b), channel: ch}, nil, true); err != nil {
			return err
		}
	}
	return nil
}

// CloseWrite ends a channel after the data written to it. Ending it again is no error.
func (s *Stream) CloseWrite(ch Channel) error {
	if ch < Stdin || ch > Stderr {
		return fmt.Errorf("end channel %d: %w", ch, ErrChannel)
	}
	s.conn.mu.Lock()
	ended := s.ended[ch]
	s.conn.mu.Unlock()
	if ended {
		return nil
	}
	return s.put(context.Background(), outFrame{channel: ch, flags: flagEnd}, nil, true) // never waits: it needs no credit
}

// Hold makes what is sent wait until Flush, Close, or until this side waits for something, so that several frames leave
// in one write.
func (s *Stream) Hold() { s.held.Store(true) }

// Flush ends Hold.
func (s *Stream) Flush() {
	s.held.Store(false)
	s.conn.mu.Lock()
	s.conn.kickLocked(true)
}

// Reply sends the answer of a unary method and closes our side.
func (s *Stream) Reply(ctx context.Context, body []byte) error {
	s.Hold()
	if err := s.Send(ctx, MsgReply, body); err != nil {
		return err
	}
	return s.Close()
}

// Reset ends the stream both ways at once. The peer's Recv returns err; nil tells it no more than [ErrReset].
func (s *Stream) Reset(err *api.Error) {
	s.end(err, ErrClosed)
}

// violated ends a stream whose peer broke a rule.
func (s *Stream) violated(cause error) {
	s.end(api.Errorf(api.CodeInvalid, "stream %d: %v", s.id, cause), cause)
}

// end resets the stream; local is what this side's callers are told.
func (s *Stream) end(tell *api.Error, local error) {
	c := s.conn
	c.mu.Lock()
	if s.localReset || s.over || c.dead != nil {
		c.mu.Unlock()
		s.drop(local)
		return
	}
	s.localReset, s.localDone = true, true
	s.lostLocked(local)
	c.dropOutLocked(s)
	if s.openSent {
		s.out.push(resetFrame(&c.bufs, tell))
		s.overLocked()
		c.readyLocked(s)
	} else {
		c.removeLocked(s)
	}
	s.wakeLocked()
	c.kickLocked(true)
	s.drop(local)
}

// Close ends our side after everything sent. The peer may go on sending, so whoever no longer reads uses Reset.
func (s *Stream) Close() error {
	s.held.Store(false)
	c := s.conn
	c.mu.Lock()
	if s.localDone || c.dead != nil {
		err := s.sendErr
		if err == nil && !s.localDone {
			err = c.dead
		}
		c.kickLocked(true)
		return err
	}
	s.localDone = true
	s.out.push(outFrame{channel: Control, typ: ctlEnd, flags: flagEnd})
	s.wakeLocked()
	c.readyLocked(s)
	c.kickLocked(true)
	return nil
}

// Done is closed when the stream is over: reset by either side, the connection lost, or closed by both sides.
func (s *Stream) Done() <-chan struct{} {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	if s.doneCh == nil {
		s.doneCh = make(chan struct{})
		if s.over {
			close(s.doneCh)
		}
	}
	return s.doneCh
}

// Err is why the stream can't be used any more: the peer's error, [ErrClosed] after Reset here, an error that wraps
// [ErrConnLost]. It is nil while the stream lives and after a graceful end.
func (s *Stream) Err() error {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	return s.sendErr
}

// sendableLocked tells why nothing can be sent on ch, if so.
func (s *Stream) sendableLocked(ch Channel) error {
	switch {
	case s.sendErr != nil:
		return s.sendErr
	case s.conn.dead != nil:
		return s.conn.dead
	case s.localDone:
		return ErrClosed
	case s.ended[ch]:
		return fmt.Errorf("channel %d: %w", ch, ErrClosed)
	}
	return nil
}

// waitLocked returns a channel that is closed at the next wakeLocked.
func (s *Stream) waitLocked() <-chan struct{} {
	if s.wait == nil {
		s.wait = make(chan struct{})
	}
	return s.wait
}

func (s *Stream) wakeLocked() {
	if s.wait != nil {
		close(s.wait)
		s.wait = nil
	}
}

// lost is closed when the stream was reset by either side or its connection is gone; the latter not for a stream that is
// drained. It never is for a nil stream.
func (s *Stream) lost() <-chan struct{} {
	if s == nil {
		return nil
	}
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	if s.lostCh == nil {
		s.lostCh = make(chan struct{})
		if s.stopsLocked(s.sendErr) {
			close(s.lostCh)
		}
	}
	return s.lostCh
}

// stopsLocked tells whether err keeps what has come from being passed on.
func (s *Stream) stopsLocked(err error) bool {
	return err != nil && !(s.drained && errors.Is(err, ErrConnLost))
}

// drain makes the loss of the stream's connection no reason to stop passing on what came from it.
func (s *Stream) drain() {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	s.drained = true
}

// lostLocked says why nothing can be sent any more. The first reason stays.
func (s *Stream) lostLocked(err error) {
	if s.sendErr != nil {
		return
	}
	s.sendErr = err
	if s.lostCh != nil && s.stopsLocked(err) {
		close(s.lostCh)
	}
}

func (s *Stream) overLocked() {
	if s.over {
		return
	}
	s.over = true
	if s.doneCh != nil {
		close(s.doneCh)
	}
	for _, f := range s.afterOver {
		f()
	}
	s.afterOver = nil
}
