package ports

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/aether/tunnel"
)

// copySize is of the buffers by which bodies are copied. It is a multiple of what a frame holds.
const copySize = 128 << 10

// Proxy passes requests on to ports.
type Proxy struct {
	dialer tunnel.Dialer
	bufs   bufferPool
	log    *slog.Logger
}

// New makes a Proxy.
func New(log *slog.Logger) *Proxy { return &Proxy{log: log} }

// Close waits for what programs haven't taken yet of requests that are over, for as long as grace.
func (p *Proxy) Close(grace time.Duration) { p.dialer.Close(grace) }

// Request is a request on its way to a port.
type Request struct {
	Target
	Open      tunnel.Open // opens a stream for whoever sent the request
	RequestID string
}

// exchange is one request and its answer.
type exchange struct {
	proxy   *Proxy
	target  Target
	port    int
	inside  string      // host and port as the program may know itself
	outside string      // and as the client knows the API
	id      string      // of the request
	trailer http.Header // of the request; its values come after the body
	err     error       // why there is no answer
}

// Serve passes a request on and sends the answer. An error means that nothing was sent. An answer that breaks off panics
// with [http.ErrAbortHandler], as the server expects it.
func (p *Proxy) Serve(w http.ResponseWriter, r *http.Request, q Request) error {
	port, err := q.number()
	if err != nil {
		return err
	}
	if strings.EqualFold(r.Header.Get("Service-Worker"), "script") {
		return api.FieldError(api.CodeForbidden, "Service-Worker", "", "a sandbox's program can't have a service worker on this origin: it would see every request to the API")
	}
	conn, err := p.dialer.Dial(r.Context(), q.Open, aether.Open{Sandbox: q.Sandbox, RequestID: q.RequestID}, port)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // it never fails
	x := &exchange{
		proxy: p, target: q.Target, port: port, inside: net.JoinHostPort("localhost", strconv.Itoa(port)), outside: r.Host, id: q.RequestID, trailer: r.Trailer,
	}
	return x.run(w, r, patient{conn})
}

// patient is a connection to a program that may stop reading before it has said everything: what it is sent then is dropped
// instead of failing, which would end the other direction too.
type patient struct{ *tunnel.Conn }

// Write implements [net.Conn].
func (p patient) Write(b []byte) (int, error) {
	n, err := p.Conn.Write(b)
	if errors.Is(err, tunnel.ErrDeaf) {
		return len(b), nil
	}
	return n, err
}

// run is the exchange over conn.
func (x *exchange) run(w http.ResponseWriter, r *http.Request, conn net.Conn) error {
	rc := http.NewResponseController(w)
	_ = rc.EnableFullDuplex() // not supported: then the body is read first
	transport := &http.Transport{
		DialContext:            once(conn),
		DisableKeepAlives:      true, // the connection is this request's
		DisableCompression:     true, // what the client accepts is the program's to know
		ExpectContinueTimeout:  continueTime,
		MaxResponseHeaderBytes: maxHeader,
		ReadBufferSize:         copySize / 2,
		WriteBufferSize:        copySize / 2,
		Protocols:              new(http.Protocols),
	}
	transport.Protocols.SetHTTP1(true)
	drop(x.trailer, secrets())
	body := &body{ReadCloser: r.Body, trailer: x.trailer}
	in := r.Clone(r.Context())
	in.Body = body
	a := &answer{ResponseWriter: w, header: http.Header{}}
	defer body.finish(rc)
	proxy := &httputil.ReverseProxy{
		Rewrite: x.rewrite, Transport: transport, FlushInterval: -1, BufferPool: &x.proxy.bufs,
		ErrorLog: slog.NewLogLogger(x.proxy.log.Handler(), slog.LevelDebug),
		ModifyResponse: func(res *http.Response) error {
			if res.StatusCode < http.StatusOK && res.StatusCode != http.StatusSwitchingProtocols {
				return fmt.Errorf("its status is %d", res.StatusCode) // to the server it would be no answer yet
			}
			x.outward(res.Header)
			return nil
		},
		ErrorHandler: func(_ http.ResponseWriter, _ *http.Request, err error) { x.err = err },
	}
	proxy.ServeHTTP(a, in)
	if x.err != nil {
		return x.failure(r.Context())
	}
	a.trailers()
	return nil
}

const (
	continueTime = 5 * time.Second // after it a body is sent unasked
	maxHeader    = 1 << 20
)

// failure is what is told when there is no answer.
func (x *exchange) failure(ctx context.Context) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if e, ok := errors.AsType[*api.Error](x.err); ok {
		return e
	}
	hint := "is it an HTTP server? other protocols are reached by `dsec sandbox port-forward`"
	if errors.Is(x.err, io.EOF) || errors.Is(x.err, io.ErrUnexpectedEOF) {
		return api.FieldError(api.CodePortFailed, "port", hint, "the program behind port %d closed the connection without an answer", x.port)
	}
	return api.FieldError(api.CodePortFailed, "port", hint, "port %d didn't answer as an HTTP server does: %v", x.port, x.err)
}

// rewrite makes the request that the program gets.
func (x *exchange) rewrite(p *httputil.ProxyRequest) {
	out, in := p.Out, p.In
	raw := x.target.path()
	out.URL = &url.URL{Scheme: "http", Host: x.inside, Path: raw, RawPath: raw, RawQuery: in.URL.RawQuery, ForceQuery: in.URL.ForceQuery}
	if plain, err := url.PathUnescape(raw); err == nil {
		out.URL.Path = plain
	}
	out.Host = x.inside
	out.Trailer = x.trailer
	forward := in.Header.Values(ForwardAuthorization)
	drop(out.Header, secrets())
	if len(forward) > 0 {
		out.Header["Authorization"] = forward
	}
	p.SetXForwarded()
	out.Header.Set("X-Forwarded-Prefix", x.target.prefix)
	out.Header.Set("X-Request-Id", x.id)
	// The origin was found to be the API's own, or there is none. The program knows itself by another name.
	if out.Header.Get("Origin") != "" {
		out.Header.Set("Origin", "http://"+x.inside)
	}
	if referer := x.inward(out.Header.Get("Referer")); referer != "" {
		out.Header.Set("Referer", referer)
	} else {
		out.Header.Del("Referer")
	}
}

// once is a dial function that hands out one connection.
func once(conn net.Conn) func(context.Context, string, string) (net.Conn, error) {
	var used sync.Once
	return func(context.Context, string, string) (c net.Conn, err error) {
		err = errors.New("the connection is used up")
		used.Do(func() { c, err = conn, nil })
		return c, err
	}
}

// bufferPool implements [httputil.BufferPool].
type bufferPool struct{ pool sync.Pool }

// Get implements [httputil.BufferPool].
func (b *bufferPool) Get() []byte {
	if v, ok := b.pool.Get().(*[copySize]byte); ok {
		return v[:]
	}
	return make([]byte, copySize)
}

// Put implements [httputil.BufferPool].
func (b *bufferPool) Put(p []byte) {
	if len(p) == copySize {
		b.pool.Put((*[copySize]byte)(p))
	}
}
