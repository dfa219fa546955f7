package apiserver

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/aether/unixfd"
)

const (
	dialTime     = 2 * time.Second
	firstBackoff = 50 * time.Millisecond
	lastBackoff  = time.Second
)

// errServerClosed is why nothing reaches the edge any more.
var errServerClosed = errors.New("the API server is shutting down")

// pool holds a few connections to the edge's socket and deals streams out to them in turn. A connection is made when it
// is first needed, and made again when it has ended.
type pool struct {
	links []*link
	turn  atomic.Uint32
}

func newPool(socket string, n int) *pool {
	p := &pool{links: make([]*link, n)}
	for i := range p.links {
		p.links[i] = &link{socket: socket}
	}
	return p
}

// open opens a stream to the edge. A refusal means that nothing was sent.
func (p *pool) open(ctx context.Context, o aether.Open) (*aether.Stream, error) {
	var err error
	for range 2 { // a connection may end between being picked and being used
		var conn *aether.Conn
		var s *aether.Stream
		if conn, err = p.conn(ctx); err != nil {
			return nil, err
		}
		if s, err = conn.Open(ctx, o); err == nil {
			return s, nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if errors.Is(err, aether.ErrTooLarge) {
			return nil, api.Errorf(api.CodeTooLarge, "the request is over the %d bytes that one message to the edge may have", aether.MaxMessage)
		}
	}
	if errors.Is(err, aether.ErrTooMany) {
		e := api.Errorf(api.CodeTooMany, "too many requests are open at once on this server")
		e.RetryMS = firstBackoff.Milliseconds()
		return nil, e
	}
	return nil, unreachable(err, firstBackoff.Milliseconds())
}

// conn picks a living connection.
func (p *pool) conn(ctx context.Context) (*aether.Conn, error) {
	l := p.links[int(p.turn.Add(1))%len(p.links)]
	if c := l.live.Load(); c != nil && alive(c) {
		return c, nil
	}
	return l.dial(ctx)
}

func alive(c *aether.Conn) bool {
	select {
	case <-c.Done():
		return false
	default:
		return true
	}
}

func (p *pool) close() {
	for _, l := range p.links {
		l.close()
	}
}

// link is one connection and how it is made again.
type link struct {
	socket string
	live   atomic.Pointer[aether.Conn]

	mu      sync.Mutex // guards the rest; held while dialling, so that all who need the connection wait for one dial
	closed  bool
	backoff time.Duration // after the last failure; 0: none
	retryAt time.Time
	lastErr error
}

func (l *link) dial(ctx context.Context) (*aether.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := l.live.Load(); c != nil && alive(c) {
		return c, nil
	}
	if l.closed {
		return nil, unreachable(errServerClosed, lastBackoff.Milliseconds())
	}
	if wait := time.Until(l.retryAt); wait > 0 {
		return nil, unreachable(l.lastErr, wait.Milliseconds()+1)
	}
	// The connection is everybody's, so the dial doesn't end with the request that happened to need it first.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), dialTime)
	defer cancel()
	c, err := dialEdge(ctx, l.socket)
	if err != nil {
		l.backoff = min(max(2*l.backoff, firstBackoff), lastBackoff)
		l.retryAt, l.lastErr = time.Now().Add(l.backoff), err
		return nil, unreachable(err, l.backoff.Milliseconds())
	}
	l.backoff, l.retryAt, l.lastErr = 0, time.Time{}, nil
	if old := l.live.Swap(c); old != nil {
		_ = old.Close() // it has ended; this waits for its goroutines
	}
	return c, nil
}

func dialEdge(ctx context.Context, socket string) (*aether.Conn, error) {
	t, err := unixfd.Dial(ctx, socket, unixfd.Options{})
	if err != nil {
		return nil, fmt.Errorf("dial edge: %w", err)
	}
	return aether.Client(t, aether.Options{Name: peerName, HelloTimeout: dialTime})
}

// peerName is what the API server calls itself in HELLO.
const peerName = "apiserver"

func (l *link) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if c := l.live.Swap(nil); c != nil {
		_ = c.Close() // nothing is left to be told
	}
}

// unary asks the edge one question for a caller.
func (s *Server) unary(ctx context.Context, c *call, o aether.Open) ([]byte, error) {
	o.Project, o.RequestID = c.principal.Project, c.id
	return s.ask(ctx, o)
}

func (s *Server) ask(ctx context.Context, o aether.Open) ([]byte, error) {
	st, err := s.edge.open(ctx, o)
	if err != nil {
		return nil, err
	}
	for {
		f, err := st.Recv(ctx)
		if err != nil {
			st.Reset(nil)
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return nil, err
		}
		if f.Channel == aether.Message && f.Type == aether.MsgReply {
			body := append([]byte(nil), f.Data...)
			f.Release()
			_ = st.Close() // the answer is here; how the stream ends doesn't matter
			return body, nil
		}
		f.Release()
	}
}

// open opens a stream to the edge for a caller.
func (s *Server) open(ctx context.Context, c *call, o aether.Open) (*aether.Stream, error) {
	o.Project, o.RequestID = c.principal.Project, c.id
	return s.edge.open(ctx, o)
}
