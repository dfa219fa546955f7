package aether

import (
	"context"

	"github.com/dsec-io/dsec/api"
)

// Stream is one conversation on a connection.
type Stream struct{}

// Open is what opened the stream. Its FDs are only set where the stream was opened here; see TakeFDs.
func (s *Stream) Open() Open { return Open{} }

// TakeFDs hands over the descriptors that came with the stream. Those never taken are closed with the stream.
func (s *Stream) TakeFDs() []int { return nil }

// Send sends a message. It needs no credit, but waits while too much of this stream isn't written yet.
func (s *Stream) Send(ctx context.Context, msgType uint8, body []byte) error { return ErrClosed }

// Write sends data, waiting for credit. p may be reused when it returns.
func (s *Stream) Write(ctx context.Context, ch Channel, p []byte) error { return ErrClosed }

// CloseWrite ends a channel after the data written to it.
func (s *Stream) CloseWrite(ch Channel) error { return ErrClosed }

// Recv returns the next frame in order of arrival. It returns io.EOF after the peer's Close, the *api.Error with which the
// peer reset the stream, [ErrReset] when it reset it without one, and an error that wraps [ErrConnLost] when the connection is gone.
func (s *Stream) Recv(ctx context.Context) (Frame, error) { return Frame{}, ErrClosed }

// Reset ends the stream both ways at once. The peer's Recv returns err; nil tells it no more than [ErrReset].
func (s *Stream) Reset(err *api.Error) {}

// Close ends our side after everything sent. The peer may go on sending, so whoever no longer reads uses Reset.
func (s *Stream) Close() error { return nil }

// Done is closed when the stream is over: reset by either side, the connection lost, or closed by both sides.
func (s *Stream) Done() <-chan struct{} { return nil }
