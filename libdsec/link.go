package libdsec

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
)

// link keeps the client's one Aether connection: made when first needed, made again when it has broken. Everybody who
// needs it while it is being made waits for the same attempt's end.
type link struct {
	dial func(context.Context) (io.ReadWriteCloser, error)

	mu     sync.Mutex // guards conn, dialing and closed
	conn   *aether.Conn
	dialed chan struct{} // closed when the attempt that runs now has ended; nil when none runs
	closed bool
}

var errClientClosed = errors.New("the client is closed")

// get returns a living connection.
func (l *link) get(ctx context.Context) (*aether.Conn, error) {
	for {
		l.mu.Lock()
		switch {
		case l.closed:
			l.mu.Unlock()
			return nil, errClientClosed
		case l.conn != nil && l.conn.Err() == nil:
			conn := l.conn
			l.mu.Unlock()
			return conn, nil
		case l.dialed == nil:
			l.dialed = make(chan struct{})
			l.mu.Unlock()
			return l.connect(ctx)
		}
		wait := l.dialed
		l.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// connect makes the connection. Its error is the caller's alone: whoever waited tries again with a context of its own.
func (l *link) connect(ctx context.Context) (*aether.Conn, error) {
	conn, err := l.hello(ctx)
	l.mu.Lock()
	close(l.dialed)
	l.dialed = nil
	old := l.conn
	l.conn = conn
	closed := l.closed
	l.mu.Unlock()
	if old != nil {
		err = errors.Join(err, ignoreLost(old.Close()))
	}
	if closed && conn != nil {
		return nil, errors.Join(errClientClosed, conn.Close())
	}
	return conn, err
}

func (l *link) hello(ctx context.Context) (*aether.Conn, error) {
	rw, err := l.dial(ctx)
	if err != nil {
		return nil, err
	}
	conn, err := aether.Client(rw, aether.Options{Name: defaultUserAgent, MaxData: aether.MaxDataElse})
	if err != nil {
		e := api.Errorf(api.CodeUnavailable, "the server doesn't speak the aether protocol: %v", err)
		return nil, &unsentError{e}
	}
	return conn, nil
}

func (l *link) close() error {
	l.mu.Lock()
	conn := l.conn
	l.conn, l.closed = nil, true
	l.mu.Unlock()
	if conn == nil {
		return nil
	}
	return ignoreLost(conn.Close())
}

// ignoreLost drops the report that a connection which is being closed was broken before.
func ignoreLost(err error) error {
	if errors.Is(err, aether.ErrConnLost) || errors.Is(err, aether.ErrClosed) {
		return nil
	}
	return err
}

// upgrade makes the HTTP connection and asks for the Aether protocol on it. It gives up when ctx ends, but ctx's end
// doesn't end the connection once it's made; an answer that comes too late is closed.
func (c *Client) upgrade(ctx context.Context) (io.ReadWriteCloser, error) {
	reqCtx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	req, err := http.NewRequestWithContext(reqCtx, http.MethodGet, c.base.String()+"/v1/aether", nil)
	if err != nil {
		cancel(nil)
		return nil, api.Errorf(api.CodeInvalid, "%v", err)
	}
	c.sign(req)
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "aether")
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	resp, err := c.http.Do(req)
	stop()
	if err != nil {
		cancel(nil)
		err = c.broken(ctx, req.Method, req.URL.Path, err)
		if e, ok := errors.AsType[*api.Error](err); ok {
			return nil, &unsentError{e} // an upgrade carries no command, so none ran
		}
		return nil, err
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		defer cancel(nil)
		defer resp.Body.Close()
		return nil, problem(resp)
	}
	rw, ok := resp.Body.(io.ReadWriteCloser)
	if !ok || ctx.Err() != nil {
		cancel(nil)
		resp.Body.Close()
		if ok {
			return nil, context.Cause(ctx)
		}
		return nil, api.Errorf(api.CodeInternal, "the HTTP client can't hand over an upgraded connection")
	}
	return &upgraded{rw, cancel}, nil
}

// upgraded is the connection after the upgrade; closing it also releases its request's context.
type upgraded struct {
	io.ReadWriteCloser
	cancel context.CancelCauseFunc
}

func (u *upgraded) Close() error {
	err := u.ReadWriteCloser.Close()
	u.cancel(nil)
	return err
}

// open opens a stream, on a new connection when the old one has broken. An error of it proves that nothing was sent.
func (c *Client) open(ctx context.Context, o aether.Open) (*aether.Stream, error) {
	pause := firstPause
	for try := 1; ; try++ {
		s, err := c.openOnce(ctx, o)
		if err == nil {
			return s, nil
		}
		if context.Cause(ctx) != nil {
			return nil, context.Cause(ctx)
		}
		if try == sendTries || !nothingRan(err, http.MethodGet) {
			return nil, err
		}
		if err := rest(ctx, waitFor(err, pause)); err != nil {
			return nil, err
		}
		pause *= 2
	}
}

func (c *Client) openOnce(ctx context.Context, o aether.Open) (*aether.Stream, error) {
	conn, err := c.link.get(ctx)
	if err != nil {
		return nil, err
	}
	if o.Key != "" && conn.Peer().Features&aether.FeatureKeys == 0 {
		return nil, api.FieldError(api.CodeUnsupportedConstraint, headerKey, "use a newer server", "this server would run a repeated request again")
	}
	s, err := conn.Open(ctx, o)
	switch {
	case err == nil:
		return s, nil
	case errors.Is(err, aether.ErrConnLost), errors.Is(err, aether.ErrClosed):
		return nil, &unsentError{api.Errorf(api.CodeUnavailable, "connection to %s lost: %v", c.settings.Endpoint, err)}
	case errors.Is(err, aether.ErrTooLarge):
		e := api.Errorf(api.CodeTooLarge, "%v", err)
		e.Hint = "send large data as stdin"
		return nil, e
	case errors.Is(err, aether.ErrTooMany):
		return nil, api.Errorf(api.CodeTooMany, "%v", err)
	}
	return nil, err
}

// unary is a call with one answer over the Aether connection.
func (c *Client) unary(ctx context.Context, o aether.Open) ([]byte, error) {
	s, err := c.open(ctx, o)
	if err != nil {
		return nil, err
	}
	defer s.Reset(nil)
	for {
		f, err := s.Recv(ctx)
		if err != nil {
			return nil, c.streamError(ctx, err)
		}
		if f.Channel == aether.Message && f.Type == aether.MsgReply {
			body := append([]byte(nil), f.Data...)
			f.Release()
			return body, nil
		}
		f.Release()
	}
}

// streamError turns what ended a stream into what callers meet: the server's own error, the context's cause, or an
// unavailable error that leaves open what happened.
func (c *Client) streamError(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if _, ok := errors.AsType[*api.Error](err); ok {
		return err
	}
	e := api.Errorf(api.CodeUnavailable, "connection to %s lost: %v", c.settings.Endpoint, err)
	e.Hint = "it isn't known how far the command came"
	return e
}
