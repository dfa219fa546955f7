package apiserver

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/apiserver/edgelink"
	"github.com/dsec-io/dsec/internal/apiserver/guard"
	"github.com/dsec-io/dsec/internal/apiserver/iamface"
	"github.com/dsec-io/dsec/internal/apiserver/metrics"
	"github.com/dsec-io/dsec/internal/apiserver/ports"
	"github.com/dsec-io/dsec/internal/budget"
	"github.com/dsec-io/dsec/internal/iam"
	"github.com/dsec-io/dsec/internal/iam/audit"
)

// Config is what a [Server] is made of. EdgeSocket, Authority and Audit are required.
type Config struct {
	EdgeSocket string               // the edge's unix socket
	Authority  *iam.Authority       // who may do what; its owner's to close, as is the next
	Audit      *audit.Log           // what was decided
	Listen     string               // the address served; its host is a Host header that is ours
	Hosts      []string             // further Host headers (without port) that are ours
	Registry   *prometheus.Registry // what /metrics shows; nil: one of its own
	Logger     *slog.Logger         // nil: nowhere
	EdgeConns  int                  // connections to the edge; default 2
}

// Server answers the REST interface. It is safe for concurrent use; Close ends its connections to the edge.
type Server struct {
	log      *slog.Logger
	mux      *http.ServeMux
	guard    guard.Guard
	face     *iamface.Face
	edge     *edgelink.Pool
	ports    *ports.Proxy
	metrics  *metrics.Metrics
	decoders decoders
	scratch  sync.Pool      // *[]byte, for bodies and answers
	memory   *budget.Budget // of the bodies and answers that are too large for it, by project
	upgrades *budget.Budget // aether connections, by project
	places   *budget.Budget // requests and aether streams that are open, by project

	background sync.WaitGroup // deliveries that outlive their request
	stop       chan struct{}  // closed by Close
	stopOnce   sync.Once
}

// decoders are made once, because making one walks the type.
type decoders struct {
	spec    *api.Decoder[api.Spec]
	exec    *api.Decoder[api.ExecRequest]
	start   *api.Decoder[api.StartRequest]
	session *api.Decoder[api.SessionRequest]
	signal  *api.Decoder[api.SignalRequest]
	resize  *api.Decoder[api.Size]
	input   *api.Decoder[api.ProcessInput]
	pull    *api.Decoder[api.ImagePull]
	push    *api.Decoder[api.ImagePush]
}

// New makes a Server. The edge need not be there yet.
func New(cfg Config) (*Server, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Registry == nil {
		cfg.Registry = prometheus.NewRegistry()
	}
	if cfg.EdgeConns <= 0 {
		cfg.EdgeConns = 2
	}
	m, err := metrics.New(cfg.Registry)
	if err != nil {
		return nil, err
	}
	s := &Server{
		log:     cfg.Logger,
		mux:     http.NewServeMux(),
		guard:   guard.New(cfg.Listen, cfg.Hosts),
		edge:    edgelink.New(cfg.EdgeSocket, cfg.EdgeConns),
		ports:   ports.New(cfg.Logger),
		metrics: m,
		decoders: decoders{
			spec:    api.NewDecoder[api.Spec](),
			exec:    api.NewDecoder[api.ExecRequest](),
			start:   api.NewDecoder[api.StartRequest](),
			session: api.NewDecoder[api.SessionRequest](),
			signal:  api.NewDecoder[api.SignalRequest](),
			resize:  api.NewDecoder[api.Size](),
			input:   api.NewDecoder[api.ProcessInput](),
			pull:    api.NewDecoder[api.ImagePull](),
			push:    api.NewDecoder[api.ImagePush](),
		},
		memory:   budget.New(maxMemory, maxMemory/2),
		upgrades: budget.New(maxUpgraded, maxUpgraded/2),
		places:   budget.New(maxPlaces, maxPlaces/2),
		stop:     make(chan struct{}),
	}
	s.face = iamface.New(iamface.Config{
		Authority: cfg.Authority, Audit: cfg.Audit, Logger: cfg.Logger,
		Ask: func(ctx context.Context, o aether.Open) ([]byte, error) { return s.ask(ctx, &call{}, o) },
	})
	s.routes()
	return s, nil
}

// Close ends the connections to the edge and those that were upgraded, and waits for what ran on them. Requests that
// are still open fail; shut the HTTP server down first, as [Serve] does.
func (s *Server) Close() error {
	s.stopOnce.Do(func() { close(s.stop) })
	s.ports.Close(graceTime)
	s.edge.Close()
	s.background.Wait()
	return nil
}

// ServeHTTP implements [http.Handler].
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := &call{ResponseWriter: w, server: s}
	c.begin(r)
	in, err := s.admit(c, r)
	if err == nil && in.Ctx != r.Context() {
		r = r.WithContext(in.Ctx) //nolint:contextcheck // it was derived from the request's
	}
	defer c.end(r)
	if err != nil {
		c.problem(err)
		return
	}
	defer in.Done()
	if r.ContentLength != 0 { // a body that doesn't come must not keep a request open whose token isn't valid any more
		defer context.AfterFunc(in.Ctx, func() { _ = http.NewResponseController(w).SetReadDeadline(time.Now()) })() //nolint:contextcheck // the end of the token, which the request has no context of
	}
	if to, ok := ports.Match(r); ok {
		s.toPort(c, r, to)
		return
	}
	if !isCanonical(r) {
		c.problem(api.Errorf(api.CodeNotFound, "there is nothing at %s", clip(r.URL.Path)))
		return
	}
	s.mux.ServeHTTP(c, r)
}

// admit decides whether a request may be looked at: is it meant for us, and from somebody we know?
func (s *Server) admit(c *call, r *http.Request) (iam.Admission, *api.Error) {
	if err := s.guard.Check(r); err != nil {
		return iam.Admission{}, err
	}
	if c.public = guard.IsPublic(r); c.public {
		return iam.Admission{Ctx: r.Context(), Done: func() {}}, nil
	}
	in, err := s.face.Admit(r)
	c.principal = in.Principal
	if err != nil {
		if api.IsCode(err, api.CodeUnauthenticated) {
			c.Header().Set("WWW-Authenticate", `Bearer realm="dsec"`)
		}
		return in, asProblem(err)
	}
	c.place = s.places.Open(c.principal.Project)
	if !c.place.Grow(1) {
		in.Done()
		return in, noPlace()
	}
	return in, nil
}
