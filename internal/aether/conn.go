package aether

import "context"

// Conn is one connection with its streams.
type Conn struct{}

// Client says HELLO over rw as the side that dialled and returns the connection. It owns rw from here on, also on error.
func Client(rw Transport, o Options) (*Conn, error) { return nil, ErrHello }

// Server says HELLO over rw as the side that accepted and returns the connection. It owns rw from here on, also on error.
func Server(rw Transport, o Options) (*Conn, error) { return nil, ErrHello }

// Peer is what the other side said in HELLO.
func (c *Conn) Peer() Hello { return Hello{} }

// Open starts a stream. It never waits for an answer.
func (c *Conn) Open(ctx context.Context, o Open) (*Stream, error) { return nil, ErrClosed }

// Serve runs handler in a goroutine per stream that the peer opens. It returns when the connection has ended and every
// handler has returned; the end of ctx closes the connection. A stream whose handler has returned is closed and what
// still arrives on it is dropped. ctx is handed to the handlers.
func (c *Conn) Serve(ctx context.Context, handler func(context.Context, *Stream)) error { return nil }

// Close ends the connection at once and waits for its goroutines. Streams get ErrConnLost.
func (c *Conn) Close() error { return nil }

// Done is closed when the connection has ended.
func (c *Conn) Done() <-chan struct{} { return nil }

// Err is why the connection ended; nil while it lives. It wraps [ErrConnLost].
func (c *Conn) Err() error { return nil }
