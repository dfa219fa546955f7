package aether

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/dsec-io/dsec/api"
)

// errEOF is what Recv returns after a graceful end. No other error here wraps it.
var errEOF = io.EOF

// Relay copies between two streams, both ways, until both directions have ended. Frames keep their payload checksum.
// A reset of one stream resets the other with the same error, at once; the end of ctx resets both. Relay returns nil after a graceful
// end, else what ended it.
func Relay(ctx context.Context, a, b *Stream) error {
	back := make(chan error, 1) // the one result
	go func() { back <- pump(ctx, a, b) }()
	err := pump(ctx, b, a)
	return errors.Join(err, <-back)
}

// pump copies one way.
func pump(ctx context.Context, dst, src *Stream) error {
	for {
		f, more, err := src.next(ctx)
		switch {
		case errors.Is(err, errEOF):
			if err = dst.Close(); err == nil || errors.Is(err, ErrClosed) {
				return untilOver(ctx, dst, src)
			}
		case err == nil:
			err = forward(ctx, dst, src, f, !more)
		}
		if err == nil {
			continue
		}
		if errors.Is(err, ErrClosed) {
			return nil // the other direction has ended both and tells why
		}
		tell := passOn(ctx, err)
		dst.Reset(tell)
		src.Reset(tell)
		return err
	}
}

// untilOver passes on a reset of src after its graceful end: a client that said all and waits may leave while the server
// has nothing to say.
func untilOver(ctx context.Context, dst, src *Stream) error {
	select {
	case <-src.Done():
	case <-dst.Done():
		return nil
	case <-ctx.Done():
		return nil // the other direction sees it, too
	}
	err := src.Err()
	if err == nil || errors.Is(err, ErrClosed) {
		return nil
	}
	dst.Reset(passOn(ctx, err))
	return err
}

// passOn is what the other side of a relay is told about err.
func passOn(ctx context.Context, err error) *api.Error {
	switch e, ok := errors.AsType[*api.Error](err); {
	case ok:
		return e
	case errors.Is(err, ErrReset) || ctx.Err() != nil:
		return nil
	case errors.Is(err, ErrConnLost):
		return api.Errorf(api.CodeUnavailable, "relay: %v", err)
	}
	return api.Errorf(api.CodeInternal, "relay: %v", err)
}

// forward sends a frame on and gives its credit back once the next hop has taken it.
func forward(ctx context.Context, dst, src *Stream, f Frame, now bool) error {
	n := len(f.Data)
	out := outFrame{buf: f.buf, crc: f.crc, channel: f.Channel, typ: f.Type}
	if f.End {
		out.flags |= flagEnd
	}
	if f.more {
		out.flags |= flagMore
	}
	f.buf, f.Data = nil, nil
	var err error
	if limit := int(dst.conn.peer.MaxData); n > limit {
		err = forwardSplit(ctx, dst, src, out, limit)
	} else {
		err = dst.put(ctx, out, src, now)
	}
	if err == nil {
		f.giveCredit(n)
	}
	return err
}

// forwardSplit cuts a frame that is too large for the next hop. Its checksum ends here, so it is checked here.
func forwardSplit(ctx context.Context, dst, src *Stream, f outFrame, limit int) error {
	defer f.buf.free()
	rest := f.buf.b
	if checksum(rest) != f.crc {
		return fmt.Errorf("channel %d, %d bytes: %w", f.channel, len(rest), ErrPayloadCRC)
	}
	for len(rest) > 0 {
		part := f
		part.buf = dst.conn.bufs.get(min(limit, len(rest)))
		rest = rest[copy(part.buf.b, rest):]
		part.crc = checksum(part.buf.b)
		if len(rest) > 0 {
			part.flags &^= flagEnd
			if f.channel == Message {
				part.flags |= flagMore
			}
		}
		if err := dst.put(ctx, part, src, true); err != nil {
			return err
		}
	}
	return nil
}

// Unary opens a stream, waits for its one [MsgReply] and returns the body.
func Unary(ctx context.Context, c *Conn, o Open) ([]byte, error) {
	o.Closed = true
	s, err := c.Open(ctx, o)
	if err != nil {
		return nil, err
	}
	for {
		f, err := s.Recv(ctx)
		if err != nil {
			s.Reset(nil)
			if errors.Is(err, errEOF) {
				err = fmt.Errorf("%s: no reply: %w", o.Method, io.ErrUnexpectedEOF)
			}
			return nil, err
		}
		if f.Channel == Message && f.Type == MsgReply {
			body := f.Data
			if f.buf != nil {
				body = append([]byte(nil), f.Data...)
			}
			f.Release()
			return body, nil
		}
		f.Release()
	}
}
