package apiserver

import (
	"context"
	"net/http"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
)

// readyTime is how long the edge may take to answer before this server counts as not ready.
const readyTime = time.Second

// health says that the process lives and serves.
func (s *Server) health(c *call, _ *http.Request) error {
	c.Header().Set("Content-Type", "text/plain; charset=utf-8")
	c.send(http.StatusOK, []byte("ok\n"))
	return nil
}

// ready says that the edge answers, on a connection that requests use.
func (s *Server) ready(c *call, r *http.Request) error {
	ctx, cancel := context.WithTimeout(r.Context(), readyTime)
	defer cancel()
	if _, err := s.ask(ctx, c, aether.Open{Method: "node.get", Project: api.DefaultProject, RequestID: c.id}); err != nil {
		e := api.Errorf(api.CodeUnavailable, "the edge doesn't answer: %v", err)
		e.RetryMS = readyTime.Milliseconds()
		return e
	}
	c.Header().Set("Content-Type", "text/plain; charset=utf-8")
	c.send(http.StatusOK, []byte("ready\n"))
	return nil
}

// scrape answers with the metrics. Gathering needs no request of the edge's.
func (s *Server) scrape(c *call, r *http.Request) error {
	s.metrics.Handler.ServeHTTP(c, r)
	return nil
}
