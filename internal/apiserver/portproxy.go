package apiserver

import (
	"context"
	"net/http"

	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/apiserver/ports"
)

// routePorts is what requests to ports are counted as. They don't go through the mux, which would clean their paths.
const routePorts = "/v1/sandboxes/{id}/ports/{port}/"

// toPort passes a request on to a program that listens in a sandbox.
func (s *Server) toPort(c *call, r *http.Request, to ports.Target) {
	c.route = routePorts
	r.SetPathValue("id", to.Sandbox)
	s.background.Add(1) // the HTTP server doesn't wait for a connection that changes its protocol
	defer s.background.Done()
	need, _ := s.face.Need(routePorts)
	err := c.allow(need)
	if err == nil {
		_, err = sandboxID(r)
	}
	if err != nil {
		c.fail(r, err)
		return
	}
	err = s.ports.Serve(c, r, ports.Request{
		Target: to, RequestID: c.id,
		Open: func(ctx context.Context, o aether.Open) (*aether.Stream, error) { return s.open(ctx, c, o) },
	})
	if err != nil {
		c.fail(r, err)
		if c.status == statusClientGone {
			panic(http.ErrAbortHandler) // it may only have ended its side, and must not take silence for a 200
		}
		return
	}
	if c.status == 0 {
		c.status = http.StatusSwitchingProtocols
	}
}
