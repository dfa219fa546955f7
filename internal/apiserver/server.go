package apiserver

import (
	"log/slog"
	"net/http"
)

// Config is what a [Server] is made of.
type Config struct {
	EdgeSocket string   // the edge's unix socket
	TokenFile  string   // see [AddToken]
	Hosts      []string // Host headers (without port) that are ours, beside loopback names
	Logger     *slog.Logger
}

// Server answers the REST interface. It is safe for concurrent use; Close ends its connections to the edge.
type Server struct {
	cfg Config
	mux *http.ServeMux
}

// New makes a Server. The edge need not be there yet.
func New(cfg Config) (*Server, error) {
	return &Server{cfg: cfg, mux: http.NewServeMux()}, nil
}

// ServeHTTP implements [http.Handler].
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// Close ends the connections to the edge and waits for what ran on them.
func (s *Server) Close() error { return nil }
