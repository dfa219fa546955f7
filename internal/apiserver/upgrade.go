package apiserver

import (
	"bufio"
	"context"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/apiserver/edgelink"
)

// Bounds on connections that were upgraded.
const (
	maxUpgraded       = 1024 // at one time on this server
	streamsPerUpgrade = 512  // at one time on one connection
	helloTime         = 5 * time.Second
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
	if s.upgraded.Add(1) > maxUpgraded {
		s.upgraded.Add(-1)
		e := api.Errorf(api.CodeTooMany, "%d aether connections are open, as many as this server takes", maxUpgraded)
		e.RetryMS = 1000
		return e
	}
	defer s.upgraded.Add(-1)
	rw, buffered, err := http.NewResponseController(c.ResponseWriter).Hijack()
	if err != nil {
		return api.Errorf(api.CodeInvalid, "this connection can't be upgraded: %v", err)
	}
	s.background.Add(1) // the HTTP server no longer waits for us
	defer s.background.Done()
	c.status = http.StatusSwitchingProtocols
	s.metrics.upgrades.Inc()
	defer s.metrics.upgrades.Dec()
	s.serveAether(c, rw, buffered.Reader)
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

// serveAether serves a connection until either side ends it.
func (s *Server) serveAether(c *call, rw net.Conn, buffered *bufio.Reader) {
	_ = rw.SetDeadline(time.Time{}) // the server's limits were for HTTP
	if _, err := rw.Write([]byte(switching + c.id + "\r\n\r\n")); err != nil {
		_ = rw.Close()
		return
	}
	conn, err := aether.Server(&upgradedConn{Conn: rw, r: buffered}, aether.Options{
		Name: edgelink.PeerName, MaxData: aether.MaxDataAether, MaxStreams: streamsPerUpgrade, HelloTimeout: helloTime, Panic: s.panicked,
	})
	if err != nil {
		return // it didn't speak the protocol; the connection has been closed
	}
	_ = conn.Serve(s.lifetime(), func(ctx context.Context, in *aether.Stream) { s.relay(ctx, c.principal, in) }) // its end is what was waited for
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

// relay passes one stream on to the edge.
func (s *Server) relay(ctx context.Context, p Principal, in *aether.Stream) {
	o := in.Open()
	if !isRelayed(o.Method) {
		in.Reset(api.Errorf(api.CodeNotImplemented, "there is no method %q here", clip(o.Method)))
		return
	}
	o.Project, o.FDs = p.Project, nil
	o.RequestID = requestID(o.RequestID)
	out, err := s.edge.Open(ctx, o)
	if err != nil {
		in.Reset(asProblem(err))
		return
	}
	_ = aether.Relay(ctx, in, out) // both ends have been told
}

// isRelayed lists what a client may ask of the edge. The rest is between edge and shard.
func isRelayed(method string) bool {
	switch method {
	case "exec", "attach", "signal", "resize", "processes", "process", "forget",
		"session.create", "session.list", "session.interrupt", "session.close",
		"file.read", "file.write", "file.list", "file.op", "file.tar", "file.untar", "file.watch", "port.dial",
		"sandbox.create", "sandbox.get", "sandbox.list", "sandbox.patch", "sandbox.stop", "sandbox.events", "sandbox.logs", "sandbox.metrics":
		return true
	}
	return false
}

// panicked logs a handler's panic; the stream it served is reset and nothing else.
func (s *Server) panicked(v any, stack []byte) {
	s.log.LogAttrs(s.lifetime(), slog.LevelError, "stream handler panicked", slog.Any(keyErr, v), slog.String("stack", string(stack)))
}
