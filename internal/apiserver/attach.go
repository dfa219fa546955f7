package apiserver

import (
	"context"
	"encoding/base64"
	"math"
	"net/http"
	"time"

	"github.com/coder/websocket"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/apiserver/lifetime"
)

const (
	maxInputMessage = 1 << 20          // one message of a WebSocket client
	livenessTime    = 30 * time.Second // between pings to it
)

// attach follows a process from given offsets, over a WebSocket where the client asks for one, else as NDJSON.
func (s *Server) attach(c *call, r *http.Request) error {
	id, pid, err := inSandbox(r, "pid", api.CodeNoSuchProcess)
	if err != nil {
		return err
	}
	q, err := query(r, "stdout_offset", "stderr_offset")
	if err != nil {
		return err
	}
	live := hasToken(r.Header.Values("Upgrade"), "websocket")
	if err := wantHandshake(r); live && err != nil {
		return err
	}
	m := aether.Attach{ID: pid}
	if m.StdoutOffset, err = q.number("stdout_offset", 0, 0, math.MaxInt64); err != nil {
		return err
	}
	if m.StderrOffset, err = q.number("stderr_offset", 0, 0, math.MaxInt64); err != nil {
		return err
	}
	st, err := s.open(r.Context(), c, aether.Open{Method: "attach", Sandbox: id, Body: m.AppendTo(nil)})
	if err != nil {
		return err
	}
	defer st.Reset(nil) // the process goes on
	f, err := first(r.Context(), st)
	if err != nil {
		return repeatable(err)
	}
	t := translator{stdout: m.StdoutOffset, stderr: m.StderrOffset}
	if live {
		return s.serveWebSocket(c, r, &session{c: c, id: id, pid: pid, st: st, t: t, valid: r.Context()}, f) //nolint:contextcheck // see there
	}
	return c.streamLines(r.Context(), st, f, t)
}

// wantHandshake checks what the WebSocket library would answer in words of its own.
func wantHandshake(r *http.Request) error {
	key, err := base64.StdEncoding.DecodeString(r.Header.Get("Sec-WebSocket-Key"))
	switch {
	case !hasToken(r.Header.Values("Connection"), "upgrade"):
		return api.FieldError(api.CodeInvalid, "Connection", "send Connection: Upgrade", "it doesn't name the upgrade")
	case r.Header.Get("Sec-WebSocket-Version") != "13":
		return api.FieldError(api.CodeInvalid, "Sec-WebSocket-Version", "send 13", "%q isn't supported", clip(r.Header.Get("Sec-WebSocket-Version")))
	case err != nil || len(key) != 16 || len(r.Header.Values("Sec-WebSocket-Key")) != 1:
		return api.FieldError(api.CodeInvalid, "Sec-WebSocket-Key", "send 16 bytes as base64", "it isn't a key")
	}
	return nil
}

// session is one WebSocket client of one process. The handler's goroutine sends, another receives.
type session struct {
	c       *call
	id, pid string
	st      *aether.Stream
	t       translator
	valid   context.Context //nolint:containedctx // it ends with the token
	ws      *websocket.Conn
	input   *inputStream // the receiving goroutine's; nil until the client sends input
}

func (s *Server) serveWebSocket(c *call, r *http.Request, v *session, f aether.Frame) error {
	ws, err := websocket.Accept(c, r, &websocket.AcceptOptions{InsecureSkipVerify: true}) // Origin has been checked for every route
	if err != nil {
		f.Release()
		return nil //nolint:nilerr // Accept has answered
	}
	s.background.Add(1) // the HTTP server no longer waits for us
	defer s.background.Done()
	v.ws = ws
	ws.SetReadLimit(maxInputMessage)
	// The HTTP server gives up a connection that is taken from it, so the session lives as long as its peer and this server.
	ctx, cancel := context.WithCancelCause(lifetime.Until(s.stop))
	// A token that isn't valid any more ends it, too. The client is told why, if it listens.
	defer context.AfterFunc(v.valid, func() {
		if why := over(v.valid); why != nil { //nolint:contextcheck // it is the request that ctx outlives
			told, done := context.WithTimeout(ctx, farewellTime)
			_ = ws.Write(told, websocket.MessageText, c.errorEvent(nil, why))
			done()
			cancel(why)
		}
	})()
	received := make(chan struct{})
	go func() {
		defer close(received)
		cancel(v.receive(ctx, s))
	}()
	pinged := make(chan struct{})
	go func() {
		defer close(pinged)
		v.ping(ctx)
	}()
	v.send(ctx, f)
	cancel(nil)
	_ = ws.CloseNow() // after a close handshake, or where there is none to be had
	<-received
	<-pinged
	return nil
}

// ping keeps proxies from closing a silent connection and finds out when the peer has gone without a word.
func (v *session) ping(ctx context.Context) {
	t := time.NewTicker(livenessTime)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			limited, cancel := context.WithTimeout(ctx, livenessTime)
			err := v.ws.Ping(limited)
			cancel()
			if err != nil {
				_ = v.ws.CloseNow() // both other goroutines see it
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// send passes the process's stream on until the process or the client has ended.
func (v *session) send(ctx context.Context, f aether.Frame) {
	buf := v.c.server.buffer()
	defer func() { v.c.server.recycle(buf) }()
	for {
		line, err := v.t.appendFrame((*buf)[:0], &f)
		f.Release()
		*buf = line
		if err == nil && len(line) > 0 && v.message(ctx, line) != nil {
			return
		}
		if v.t.exited {
			_ = v.ws.Close(websocket.StatusNormalClosure, "the process has ended")
			return
		}
		if err == nil {
			f, err = v.st.Recv(ctx)
		}
		if err != nil {
			if ctx.Err() == nil {
				_ = v.message(ctx, v.c.errorEvent((*buf)[:0], err)) // the close says it too
			}
			_ = v.ws.Close(websocket.StatusInternalError, "the stream was lost")
			return
		}
	}
}

func (v *session) message(ctx context.Context, line []byte) error {
	ctx, cancel := context.WithTimeout(ctx, stallTime)
	defer cancel()
	return v.ws.Write(ctx, websocket.MessageText, line)
}

// receive takes the client's messages until it has gone, and returns why. A message that can't be carried out is
// answered with an error event; the connection goes on.
func (v *session) receive(ctx context.Context, s *Server) error {
	defer func() {
		if v.input != nil {
			v.input.close()
		}
	}()
	for {
		_, data, err := v.ws.Read(ctx)
		if err != nil {
			return err
		}
		msg, err := s.decoders.input.Decode(data)
		if err == nil {
			err = over(v.valid) //nolint:contextcheck // as in serveWebSocket
		}
		if err == nil {
			err = v.carryOut(ctx, s, &msg)
		}
		if err != nil {
			if err := v.message(ctx, v.c.errorEvent(nil, err)); err != nil {
				return err
			}
		}
	}
}

func (v *session) carryOut(ctx context.Context, s *Server, msg *api.ProcessInput) error {
	switch msg.Type {
	case "stdin", "stdin_close":
		in, err := v.openInput(ctx, s)
		if err != nil {
			return err
		}
		if msg.Type == "stdin_close" {
			return in.st.CloseWrite(aether.Stdin)
		}
		if err := in.st.Write(ctx, aether.Stdin, msg.Data); err != nil {
			return in.why(err)
		}
		return nil
	case "signal":
		n, err := signalNumber(msg.Signal)
		if err != nil {
			return err
		}
		m := aether.Signal{ID: v.pid, Signal: int32(n), Tree: msg.Tree}
		_, err = s.unary(ctx, v.c, aether.Open{Method: "signal", Sandbox: v.id, Body: m.AppendTo(nil)})
		return err
	case "resize":
		if err := (api.Size{Rows: msg.Rows, Cols: msg.Cols}).Validate(); err != nil {
			return err
		}
		m := aether.Resize{ID: v.pid, Rows: uint32(msg.Rows), Cols: uint32(msg.Cols)}
		_, err := s.unary(ctx, v.c, aether.Open{Method: "resize", Sandbox: v.id, Body: m.AppendTo(nil)})
		return err
	}
	return api.FieldError(api.CodeInvalid, "type", "stdin, stdin_close, signal and resize are known", "%q is no message", clip(msg.Type))
}

// openInput takes the process's input when the client first sends some, so that a client which only watches takes it
// from nobody.
func (v *session) openInput(ctx context.Context, s *Server) (*inputStream, error) {
	if v.input != nil {
		return v.input, nil
	}
	in, err := s.openInput(ctx, v.c, v.id, v.pid)
	if err != nil {
		return nil, err
	}
	v.input = in
	return in, nil
}
