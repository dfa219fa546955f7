package aether

import "context"

// Relay copies between two streams, both ways, until both directions have ended. Frames keep their payload checksum.
// A reset of one stream resets the other with the same error; the end of ctx resets both.
func Relay(ctx context.Context, a, b *Stream) error { return ErrClosed }

// Unary opens a stream, waits for its one [MsgReply] and returns the body.
func Unary(ctx context.Context, c *Conn, o Open) ([]byte, error) { return nil, ErrClosed }
