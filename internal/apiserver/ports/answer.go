package ports

import (
	"bufio"
	"io"
	"maps"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dsec-io/dsec/internal/apiserver/edgelink"
)

// answer is the response writer that the proxy writes to. Headers are collected aside until the answer's own come: those of
// interim answers are the program's, unfiltered, and go nowhere.
type answer struct {
	http.ResponseWriter
	header http.Header
	sent   bool
}

// Header implements [http.ResponseWriter]. After the answer's headers were sent it is the map for trailers.
func (a *answer) Header() http.Header {
	if a.sent {
		return a.ResponseWriter.Header()
	}
	return a.header
}

// WriteHeader implements [http.ResponseWriter].
func (a *answer) WriteHeader(status int) {
	if status < http.StatusOK {
		return // the server itself says 100 when the program wants the body and it is read
	}
	if !a.sent {
		a.sent = true
		maps.Copy(a.ResponseWriter.Header(), a.header)
	}
	a.ResponseWriter.WriteHeader(status)
}

// Unwrap lets [http.ResponseController] flush.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// trailers takes out of the trailers what may not be in the headers.
func (a *answer) trailers() {
	h := a.ResponseWriter.Header()
	for _, name := range sweeping() {
		if name != "X-Request-Id" {
			h.Del(name)
		}
		h.Del(http.TrailerPrefix + name)
	}
}

// Hijack implements [http.Hijacker], for connections that change their protocol. What the client had sent ahead is read
// first.
func (a *answer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(a.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	_ = conn.SetDeadline(time.Time{}) // the server's limits were for HTTP
	return &switched{Conn: conn, ahead: rw.Reader}, rw, nil
}

// switched is a client's connection after the change of its protocol.
type switched struct {
	net.Conn
	ahead *bufio.Reader
}

// Read implements [net.Conn].
func (s *switched) Read(p []byte) (int, error) {
	if n := s.ahead.Buffered(); n > 0 {
		return s.ahead.Read(p[:min(n, len(p))])
	}
	return s.Conn.Read(p)
}

// CloseWrite ends the direction towards the client.
func (s *switched) CloseWrite() error {
	if c, ok := s.Conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return nil // it ends with the connection
}

// body is a request's body. Whoever was given it may go on reading when the exchange is over; finish makes that stop.
type body struct {
	io.ReadCloser
	trailer http.Header // its values come at the end
	ended   atomic.Bool // by its end, or an error

	mu     sync.Mutex // guards closed, and is held during a read
	closed bool
}

// Read implements [io.Reader].
func (b *body) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return 0, http.ErrBodyReadAfterClose
	}
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		drop(b.trailer, secrets())
		b.ended.Store(true)
	}
	return n, err
}

// Close does nothing: the server closes the body when the request is over.
func (b *body) Close() error { return nil }

// finish takes the body back. An answer that overtakes its request reaches the client only while the rest of the request
// is still taken.
func (b *body) finish(rc *http.ResponseController) {
	if b.ended.Load() || b.ReadCloser == http.NoBody {
		return
	}
	_ = rc.SetReadDeadline(time.Now().Add(overtakeTime)) // taken over or not supported: nobody reads
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	if !b.ended.Load() {
		edgelink.Discard(rc, b.ReadCloser)
	}
}

// overtakeTime is how long a read of a body that is no longer wanted may go on.
const overtakeTime = time.Second
