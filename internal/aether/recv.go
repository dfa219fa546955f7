package aether

import (
	"context"
	"errors"
	"fmt"
	"io"
)

// Recv returns the next frame in order of arrival. What arrived before the end is returned first; then comes io.EOF after
// the peer's Close, the *api.Error with which the peer reset the stream, [ErrReset] when it reset it without one, or an error
// that wraps [ErrConnLost] when the connection is gone. After Reset on this side it is [ErrClosed] at once.
func (s *Stream) Recv(ctx context.Context) (Frame, error) {
	for {
		f, _, err := s.next(ctx)
		if err != nil {
			if errors.Is(err, io.EOF) && s.partial != nil {
				err = fmt.Errorf("within a message: %w", io.ErrUnexpectedEOF)
			}
			return Frame{}, err
		}
		if checksum(f.Data) != f.crc {
			err := fmt.Errorf("channel %d, %d bytes: %w", f.Channel, len(f.Data), ErrPayloadCRC)
			f.Release()
			s.violated(err)
			return Frame{}, err
		}
		if f.Channel != Message || !f.more && s.partial == nil {
			return f, nil
		}
		whole, err := s.assemble(&f)
		if err != nil {
			s.violated(err)
			return Frame{}, err
		}
		if whole {
			return f, nil
		}
	}
}

// assemble adds a message's frame to those before it. When it was the last, f becomes the whole message.
func (s *Stream) assemble(f *Frame) (whole bool, err error) {
	switch {
	case s.partial == nil:
		s.partial, s.partialType = make([]byte, 0, 2*len(f.Data)), f.Type
	case s.partialType != f.Type:
		return false, fmt.Errorf("%w: type %d within a message of type %d", ErrFlags, f.Type, s.partialType)
	case len(s.partial)+len(f.Data) > MaxMessage:
		return false, fmt.Errorf("message of type %d: %w", f.Type, ErrTooLarge)
	}
	s.partial = append(s.partial, f.Data...)
	more := f.more
	f.Release()
	if more {
		return false, nil
	}
	f.Data, s.partial = s.partial, nil
	return true, nil
}

// next returns the next frame as it came, and whether there is more to be had without waiting.
func (s *Stream) next(ctx context.Context) (f Frame, more bool, err error) {
	s.mu.Lock()
	for s.in.n == 0 {
		if s.recvErr != nil {
			err = s.recvErr
			s.mu.Unlock()
			return Frame{}, false, err
		}
		s.mu.Unlock()
		if s.held.Load() {
			s.Flush()
		}
		select {
		case <-s.wake:
		case <-ctx.Done():
			return Frame{}, false, context.Cause(ctx)
		}
		s.mu.Lock()
	}
	f = s.in.pop()
	if f.Channel == Message {
		s.msgFrames--
		s.msgBytes -= len(f.Data)
	}
	more = s.in.n > 0 || errors.Is(s.recvErr, io.EOF)
	s.mu.Unlock()
	return f, more, nil
}

// credit gives n back to the peer. It is told once it is worth a frame.
func (s *Stream) credit(ch Channel, n int) {
	s.mu.Lock()
	w := &s.flow[ch]
	w.owed += int64(n)
	if s.recvErr != nil || w.ended || w.owed < int64(s.conn.opts.Window)/2 {
		s.mu.Unlock()
		return
	}
	grant := w.owed
	w.credit += grant
	w.owed = 0
	s.mu.Unlock()
	c := s.conn
	c.mu.Lock()
	if s.over {
		c.mu.Unlock()
		return
	}
	s.grants[ch] += uint32(grant)
	c.readyLocked(s)
	c.kickLocked(true)
}

// errLate means that a frame came for a stream that has ended here.
var errLate = errors.New("late frame")

// admit tells whether a data or message frame may come now, and counts it.
func (s *Stream) admit(h *header) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case errors.Is(s.recvErr, io.EOF):
		return ErrEnded
	case s.recvErr != nil:
		return errLate
	case h.channel == Message:
		if s.msgFrames >= maxQueuedFrames || s.msgBytes+int(h.length) > maxQueuedMessage {
			return fmt.Errorf("%w: %d frames with %d bytes", ErrFlood, s.msgFrames, s.msgBytes)
		}
		s.msgFrames++
		s.msgBytes += int(h.length)
		return nil
	}
	w := &s.flow[h.channel]
	switch {
	case w.ended:
		return fmt.Errorf("%w: channel %d", ErrEnded, h.channel)
	case h.length > 0 && w.credit <= 0:
		return fmt.Errorf("%w: channel %d", ErrCredit, h.channel)
	}
	if h.length > 0 {
		w.credit -= int64(h.length) + frameCost
	}
	w.ended = h.flags&flagEnd != 0
	return nil
}

// push hands a frame to the receiver.
func (s *Stream) push(f Frame) {
	s.mu.Lock()
	drop := s.recvErr != nil || s.discard
	if !drop {
		s.in.push(f)
	} else if f.Channel == Message {
		s.msgFrames--
		s.msgBytes -= len(f.Data)
	}
	s.mu.Unlock()
	if drop {
		f.Release()
		return
	}
	s.signal()
}

func (s *Stream) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// finish makes Recv return err after what has arrived.
func (s *Stream) finish(err error) {
	s.mu.Lock()
	if s.recvErr == nil || errors.Is(s.recvErr, io.EOF) && !errors.Is(err, ErrConnLost) {
		s.recvErr = err
	}
	fds := s.fds
	if !errors.Is(err, io.EOF) {
		s.fds = nil
	}
	s.mu.Unlock()
	if !errors.Is(err, io.EOF) && len(fds) > 0 {
		s.conn.fds.CloseFDs(fds)
	}
	s.signal()
}

// drop makes Recv return err at once.
func (s *Stream) drop(err error) {
	s.mu.Lock()
	if s.recvErr == nil || errors.Is(s.recvErr, io.EOF) {
		s.recvErr = err
	}
	for s.in.n > 0 {
		f := s.in.pop()
		f.buf.free()
	}
	s.msgFrames, s.msgBytes = 0, 0
	s.mu.Unlock()
	s.finish(err)
}

// abandon drops what has come and what will come; the peer's credit goes on.
func (s *Stream) abandon() {
	s.mu.Lock()
	s.discard = true
	frames := s.in
	s.in = queue[Frame]{}
	s.msgFrames, s.msgBytes = 0, 0
	fds := s.fds
	s.fds = nil
	s.mu.Unlock()
	for frames.n > 0 {
		f := frames.pop()
		f.Release()
	}
	if len(fds) > 0 {
		s.conn.fds.CloseFDs(fds)
	}
}
