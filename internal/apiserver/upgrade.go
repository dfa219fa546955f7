package apiserver

import (
	"bufio"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/apiserver/edgelink"
	"github.com/dsec-io/dsec/internal/apiserver/iamface"
	"github.com/dsec-io/dsec/internal/apiserver/lifetime"
	"github.com/dsec-io/dsec/internal/budget"
)

// Bounds on connections that were upgraded.
const (
	maxUpgraded       = 1024 // at one time on this server
	streamsPerUpgrade = 512  // at one time on one connection
	helloTime         = 5 * time.Second

	// maxPlaces bounds the requests and streams of all clients, each of which takes some 30 KB of memory here and at the
	// edge, and a stream of those that the edge takes. A project gets half of them.
	maxPlaces    = 65_536
	farewellTime = time.Second // between the end of a token and that of its connection
)

// upgrade turns an HTTP connection into one of the aether protocol. Each of its streams is relayed to the edge with the
// project of the token that the request carried, whatever the stream itself says.
func (s *Server) upgrade(c *call, r *http.Request) error {
	if _, err := query(r); err != nil {
		return err
	}
	if !hasToken(r.Header.Values("Connection"), "upgrade") || !hasToken(r.Header.Values("Upgrade"), "aether") {
		e := api.FieldError(api.CodeInvalid, "Upgrade", "send Connection: Upgrade and Upgrade: aether", "this route only upgrades to the aether protocol")
		return e
	}
	place := s.upgrades.Open(c.principal.Project)
	if !place.Grow(1) {
		return budget.Full("this server takes %d aether connections, and half as many of one project", maxUpgraded)
	}
	defer place.Close()
	rw, buffered, err := http.NewResponseController(c.ResponseWriter).Hijack()
	if err != nil {
		return api.Errorf(api.CodeInvalid, "this connection can't be upgraded: %v", err)
	}
	s.background.Add(1) // the HTTP server no longer waits for us
	defer s.background.Done()
	c.status = http.StatusSwitchingProtocols
	s.metrics.Upgrades.Inc()
	defer s.metrics.Upgrades.Dec()
	s.serveAether(r.Context(), c, rw, buffered.Reader)
	return nil
}

// hasToken tells whether a list header names a token.
func hasToken(values []string, token string) bool {
	for _, v := range values {
		for part := range strings.SplitSeq(v, ",") {
			if strings.EqualFold(strings.TrimSpace(part), token) {
				return true
			}
		}
	}
	return false
}

const switching = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: aether\r\n" + headerRequestID + ": "

// serveAether serves a connection until either side ends it, or valid does.
func (s *Server) serveAether(valid context.Context, c *call, rw net.Conn, buffered *bufio.Reader) {
	_ = rw.SetDeadline(time.Time{}) // the server's limits were for HTTP
	if _, err := rw.Write([]byte(switching + c.id + "\r\n\r\n")); err != nil {
		_ = rw.Close()
		return
	}
	conn, err := aether.Server(&upgradedConn{Conn: rw, r: buffered}, aether.Options{
		Name: edgelink.PeerName, MaxData: aether.MaxDataAether, MaxStreams: streamsPerUpgrade, Features: aether.FeatureKeys, HelloTimeout: helloTime, Panic: s.panicked,
	})
	if err != nil {
		return // it didn't speak the protocol; the connection has been closed
	}
	ctx, cancel := context.WithCancelCause(lifetime.Until(s.stop))
	defer cancel(nil)
	// When the token isn't valid any more, the streams end at once and are told why; the connection gives them time for it.
	defer context.AfterFunc(valid, func() { time.AfterFunc(farewellTime, func() { cancel(context.Cause(valid)) }) })()
	_ = conn.Serve(ctx, func(ctx context.Context, in *aether.Stream) { s.relay(ctx, valid, c, in) }) //nolint:contextcheck // it outlives the request; its end is what was waited for
	_ = conn.Close()
}

// upgradedConn reads what the HTTP server had read ahead before what follows.
type upgradedConn struct {
	net.Conn
	r *bufio.Reader
}

func (u *upgradedConn) Read(p []byte) (int, error) {
	if u.r.Buffered() > 0 {
		return u.r.Read(p)
	}
	return u.Conn.Read(p)
}

// relay passes one stream on to the edge, if its method is one that clients may ask for and the principal may.
func (s *Server) relay(ctx, valid context.Context, c *call, in *aether.Stream) {
	o := in.Open()
	o.Project, o.FDs = c.principal.Project, nil
	o.RequestID = requestID(o.RequestID)
	need, known := s.face.Method(o.Method)
	err := over(valid)
	switch {
	case err != nil:
	case known:
		err = need.Allow(c.principal)
	default:
		err = api.Errorf(api.CodeNotImplemented, "there is no method %q here", clip(o.Method))
	}
	place := s.places.Open(o.Project)
	defer place.Close()
	if err == nil && !place.Grow(1) {
		err = noPlace()
	}
	if err == nil {
		err = s.relayTo(ctx, valid, o, in)
	} else {
		in.Reset(asProblem(err))
	}
	s.face.Record(iamface.Ended{
		Need: need, Principal: c.principal, RequestID: o.RequestID, Client: c.client, Code: codeOf(err),
		Resource: func() string { return iamface.Sandbox(o.Sandbox) },
	})
}

func noPlace() *api.Error {
	return budget.Full("this server takes %d requests and streams at once, and half as many of one project", maxPlaces)
}

// over is why a request's token isn't valid any more; nil while it is.
func over(valid context.Context) error {
	if why, ok := errors.AsType[*api.Error](context.Cause(valid)); ok {
		return why
	}
	return nil
}

// codeOf is the code that the audit log has for the end of a stream. A client may leave at any time.
func codeOf(err error) string {
	switch e, typed := errors.AsType[*api.Error](err); {
	case typed:
		return string(e.Code)
	case errors.Is(err, aether.ErrConnLost):
		return "broken_off"
	}
	return ""
}

// relayTo relays a stream until it ends, or its token isn't valid any more.
func (s *Server) relayTo(ctx, valid context.Context, o aether.Open, in *aether.Stream) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	hold := s.memory.Open(o.Project)
	defer hold.Close()
	if n := len(o.Body); n > keptBuffer && !hold.Grow(int64(n)) { // the stream holds it until its end
		err := noMemory()
		in.Reset(asProblem(err))
		return err
	}
	defer context.AfterFunc(valid, func() { cancel(context.Cause(valid)) })() // the relay tells both ends
	out, err := s.edge.Open(ctx, o)
	if err != nil {
		in.Reset(asProblem(err))
		return err
	}
	err = aether.Relay(ctx, in, out) // both ends have been told
	if why := over(valid); why != nil {
		return why
	}
	return err
}

// panicked logs a handler's panic; the stream it served is reset and nothing else.
func (s *Server) panicked(v any, stack []byte) {
	s.log.LogAttrs(lifetime.Until(s.stop), slog.LevelError, "stream handler panicked", slog.Any(keyErr, v), slog.String("stack", string(stack)))
}
