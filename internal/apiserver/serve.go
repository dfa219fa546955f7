package apiserver

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/dsec-io/dsec/internal/apiserver/edgelink"
	"github.com/dsec-io/dsec/internal/apiserver/refusal"
)

// Limits of the HTTP server. There is none on how long an answer may take, because some never end; those that do, and
// every body, have limits of their own.
const (
	headerTime = 10 * time.Second
	idleTime   = 2 * time.Minute
	maxHeader  = 64 << 10
	graceTime  = 2 * time.Second // for requests that are open when the server is told to end
)

// Serve serves s on ln until ctx ends. Requests that are open then may finish for a short time; those that haven't are
// cancelled. It owns ln, and closes s.
func Serve(ctx context.Context, ln net.Listener, s *Server) error {
	base, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	srv := &http.Server{
		Handler: s, ReadHeaderTimeout: headerTime, IdleTimeout: idleTime, MaxHeaderBytes: maxHeader,
		BaseContext: func(net.Listener) context.Context { return base },
		ErrorLog:    slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
		Protocols:   new(http.Protocols),
	}
	srv.Protocols.SetHTTP1(true) // connections are upgraded, which HTTP/2 can't
	served := make(chan error, 1)
	go func() { served <- srv.Serve(refusal.Listener{Listener: ln}) }()
	var err error
	select {
	case err = <-served:
	case <-ctx.Done():
		limited, done := context.WithTimeout(base, graceTime)
		_ = srv.Shutdown(limited) // what is left is cancelled next
		done()
		err = <-served
	}
	s.stopOnce.Do(func() { close(s.stop) })
	cancel(edgelink.ErrClosed)
	err = errors.Join(err, s.finish(srv))
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// finish waits for handlers whose requests have been cancelled, then takes their connections away.
func (s *Server) finish(srv *http.Server) error {
	limited, done := context.WithTimeout(context.Background(), graceTime)
	defer done()
	err := srv.Shutdown(limited)
	if errors.Is(err, context.DeadlineExceeded) {
		err = srv.Close()
	}
	return errors.Join(err, s.Close())
}
