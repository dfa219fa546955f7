// Package edgelink holds an API server's connections to its edge, and carries uploads over them.
//
// A Pool is safe for concurrent use. An Upload belongs to its request.
package edgelink

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

// ErrClosed is why nothing reaches the edge any more.
var ErrClosed = errors.New("the API server is shutting down")

// Pool holds a few connections to the edge's socket and deals streams out to them in turn. A connection is made when it
// is first needed, and made again when it has ended.
type Pool struct {
	links []*link
	turn  atomic.Uint32
}

// New makes a pool of n connections to a socket.
func New(socket string, n int) *Pool {
	p := &Pool{links: make([]*link, n)}
	for i := range p.links {
		p.links[i] = &link{socket: socket}
	}
	return p
}

// Open opens a stream to the edge. A refusal means that nothing was sent.
func (p *Pool) Open(ctx context.Context, o aether.Open) (*aether.Stream, error) {
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
	return nil, Unreachable(err, firstBackoff.Milliseconds())
}

// conn picks a living connection.
func (p *Pool) conn(ctx context.Context) (*aether.Conn, error) {
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

// Close ends the connections.
func (p *Pool) Close() {
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
		return nil, Unreachable(ErrClosed, lastBackoff.Milliseconds())
	}
	if wait := time.Until(l.retryAt); wait > 0 {
		return nil, Unreachable(l.lastErr, wait.Milliseconds()+1)
	}
	// The connection is everybody's, so the dial doesn't end with the request that happened to need it first.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), dialTime)
	defer cancel()
	c, err := dialEdge(ctx, l.socket)
	if err != nil {
		l.backoff = min(max(2*l.backoff, firstBackoff), lastBackoff)
		l.retryAt, l.lastErr = time.Now().Add(l.backoff), err
		return nil, Unreachable(err, l.backoff.Milliseconds())
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
	return aether.Client(t, aether.Options{Name: PeerName, HelloTimeout: dialTime})
}

// PeerName is what the API server calls itself in HELLO.
const PeerName = "apiserver"

func (l *link) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if c := l.live.Swap(nil); c != nil {
		_ = c.Close() // nothing is left to be told
	}
}

// Unreachable is the answer when the edge can't be reached: nothing was sent, so a repeat is safe.
func Unreachable(err error, retryMS int64) *api.Error {
	e := api.Errorf(api.CodeUnavailable, "the edge can't be reached: %v", err)
	e.Hint = "nothing was done; repeat the request"
	e.RetryMS = retryMS
	return e
}
