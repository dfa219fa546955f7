package libdsec

import (
	"context"
	"net"
	"net/http"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
)

// portIdle is how long [Sandbox.HTTPClient] keeps a connection for the next request.
const portIdle = 10 * time.Second

// Dial connects to a TCP port inside the sandbox, on which a program listens at 127.0.0.1, ::1 or all addresses. No port of
// the sandbox is reachable in any other way. The context bounds the dial only.
//
// The connection behaves as one of TCP: it has deadlines, what was written before Close is delivered, and it has a method
// CloseWrite() error that ends one direction. When the program resets it a read fails with [api.CodePortFailed], when the
// sandbox ends with [api.CodeSandboxDied]. Where nobody listens Dial fails with [api.CodePortUnreachable].
func (s *Sandbox) Dial(ctx context.Context, port int) (net.Conn, error) {
	c, err := s.client.dialer.Dial(ctx, s.client.open, aether.Open{Sandbox: s.id}, port)
	if err != nil {
		return nil, s.client.dialError(ctx, err)
	}
	return c, nil
}

// dialError is [Client.streamError] for a connection, which hasn't carried anything yet.
func (c *Client) dialError(ctx context.Context, err error) error {
	err = c.streamError(ctx, err)
	if api.IsCode(err, api.CodeUnavailable) {
		api.AsError(err).Hint = "nothing was sent; dial again"
	}
	return err
}

// HTTPClient is an HTTP client whose every request goes to a port inside the sandbox, whatever host its URL names; use
// http://localhost. It sends none of this client's credentials. Redirects aren't followed: they may lead elsewhere.
// Call CloseIdleConnections when it is no longer needed: a connection keeps the sandbox from being idle.
func (s *Sandbox) HTTPClient(port int) *http.Client {
	return &http.Client{CheckRedirect: refuseRedirect, Transport: &http.Transport{
		DialContext:         func(ctx context.Context, _, _ string) (net.Conn, error) { return s.Dial(ctx, port) },
		DisableCompression:  true,
		MaxIdleConnsPerHost: 64,
		IdleConnTimeout:     portIdle,
		ReadBufferSize:      httpBuffer,
		WriteBufferSize:     httpBuffer,
	}}
}

// httpBuffer fits a frame.
const httpBuffer = 64 << 10
