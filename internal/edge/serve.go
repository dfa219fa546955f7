package edge

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/aether/unixfd"
	"github.com/dsec-io/dsec/internal/edge/images"
	"github.com/dsec-io/dsec/internal/edge/pause"
	"github.com/dsec-io/dsec/internal/edge/spec"
)

// handler serves one stream. Its error is told to the client; without one it has ended the stream itself.
type handler func(ctx context.Context, s *aether.Stream, o aether.Open) error

// acceptPause keeps a socket that can't accept from turning in circles.
const acceptPause = 50 * time.Millisecond

// socketMode lets nobody but the edge's user connect; the folder does the same.
const socketMode = 0o600

// errGone is the cause of a context whose client has left.
var errGone = errors.New("the client has gone")

// Listening is closed once [Edge.Run] takes connections: before that the edge can't be reached.
func (e *Edge) Listening() <-chan struct{} { return e.heard }

// lastWords is how long connections have to end by themselves when the edge is told to. Those whose peers have gone take
// no time, but what these said last may not have been read yet: that a sandbox's creator has been told of it, say.
const lastWords = time.Second

// Run serves the edge's socket until ctx ends. Streams that are open a moment later are cut off.
func (e *Edge) Run(ctx context.Context) error {
	// The folder is locked, so a socket that exists is a dead edge's.
	path := e.cfg.Instance.Socket(SocketName)
	ln, err := unixfd.Listen(path, socketMode)
	if err != nil {
		return fmt.Errorf("edge socket: %w", err)
	}
	close(e.heard)
	defer func() { _ = errors.Join(ln.Close(), os.Remove(path)) }() // nobody is left to be told
	handlers := e.handlers()
	var conns sync.WaitGroup
	open, cut := context.WithCancelCause(context.WithoutCancel(ctx))
	defer func() {
		defer time.AfterFunc(lastWords, func() { cut(context.Cause(ctx)) }).Stop()
		conns.Wait()
		cut(nil)
	}()
	for {
		c, err := ln.Accept(ctx, unixfd.Options{})
		if ctx.Err() != nil {
			if err == nil {
				_ = c.Close()
			}
			return nil
		}
		if err != nil {
			// Too few descriptors, most likely. They come back as streams end.
			e.log.Warn("connection not accepted", slog.Any("err", err))
			select {
			case <-time.After(acceptPause):
			case <-ctx.Done():
			}
			continue
		}
		conns.Go(func() { e.serveConn(open, c, handlers) })
	}
}

func (e *Edge) serveConn(ctx context.Context, c *unixfd.Conn, handlers map[string]handler) {
	conn, err := aether.Server(c, aether.Options{
		Name: "edge", MaxData: aether.MaxDataAether, MaxStreams: 65_536, Features: aether.FeatureKeys,
		Panic: func(v any, stack []byte) {
			e.log.Error("a handler panicked", slog.Any("panic", v), slog.String("stack", string(stack)))
		},
	})
	if err != nil {
		e.log.Warn("connection to the edge refused", slog.Any("err", err))
		return
	}
	defer func() {
		if err := conn.Close(); err != nil {
			e.log.Debug("connection to the edge closed", slog.Any("err", err))
		}
	}()
	err = conn.Serve(ctx, func(ctx context.Context, s *aether.Stream) { e.serveStream(ctx, s, handlers) })
	if err != nil && ctx.Err() == nil {
		e.log.Debug("connection to the edge ended", slog.Any("err", err))
	}
}

func (e *Edge) serveStream(ctx context.Context, s *aether.Stream, handlers map[string]handler) {
	o := s.Open()
	h, ok := handlers[o.Method]
	if ok && o.Key != "" {
		h = e.keyed.Serve
	}
	if !ok {
		s.Reset(api.Errorf(api.CodeNotImplemented, "method %q isn't known", spec.Clip(o.Method)))
		return
	}
	ctx, cancel := context.WithCancelCause(ctx)
	s.AfterOver(func() { cancel(errGone) })
	err := h(ctx, s, o)
	cancel(nil)
	if err == nil {
		return
	}
	told := *api.AsError(err)
	told.RequestID = o.RequestID
	what := []any{
		slog.String("method", o.Method), slog.String("sandbox", spec.Clip(o.Sandbox)), slog.String("request", o.RequestID), slog.Any("err", err),
	}
	switch {
	case left(s, err):
		e.log.Debug("client has left", what...)
	case told.Code == api.CodeInternal && e.isClosing():
		e.log.Debug("request cut off", what...)
	case told.Code == api.CodeInternal:
		e.log.Error("request failed", what...)
	}
	s.Reset(&told)
}

// left tells whether a request ended because its client left it: detached, cancelled, or lost its connection. That is
// nobody's fault.
func left(s *aether.Stream, err error) bool {
	at := s.Err()
	return errors.Is(err, errGone) || errors.Is(at, aether.ErrReset) || errors.Is(at, aether.ErrConnLost)
}

// handlers are the methods that the edge's socket has. Everything that isn't here is refused: what only the edge may ask
// of an aether never gets there.
func (e *Edge) handlers() map[string]handler {
	h := map[string]handler{
		"sandbox.create":  e.serveCreate,
		"sandbox.get":     onSandbox(e, func(_ context.Context, sb *sandbox, _ struct{}) (any, error) { return sb.view(), nil }),
		"sandbox.list":    e.serveList,
		"sandbox.patch":   onSandbox(e, func(ctx context.Context, sb *sandbox, p api.Patch) (any, error) { return e.patch(ctx, sb, p) }),
		"sandbox.stop":    onSandbox(e, e.serveStop),
		"sandbox.extend":  onSandbox(e, e.extend),
		"sandbox.pause":   onSandbox(e, e.servePause),
		"sandbox.resume":  onSandbox(e, e.serveResume),
		"sandbox.metrics": onSandbox(e, e.serveUsage),
		"sandbox.events":  e.serveEvents,
		"sandbox.logs":    e.serveLogs,
		"node.get":        e.serveNode,
		"exec":            e.exec,
	}
	for _, m := range []string{
		"attach", "signal", "resize", "processes", "process", "forget",
		"session.create", "session.list", "session.interrupt", "session.close",
		"file.read", "file.write", "file.list", "file.op", "file.tar", "file.untar", "file.watch", "port.dial",
	} {
		h[m] = e.look
		if pause.Wakes(m) {
			h[m] = e.passOn
		}
	}
	of := images.Server{Store: e.cfg.Images, Users: e.imageUsers, Logger: e.log}
	for m, f := range of.Methods() {
		h[m] = f
	}
	return h
}

// imageUsers counts the living sandboxes by the image that they were made from.
func (e *Edge) imageUsers() map[string]int {
	users := map[string]int{}
	for _, sb := range e.all() {
		if v := sb.view(); !v.State.Ended() {
			users[v.Spec.Image]++
		}
	}
	return users
}

// passOn relays a method that the sandbox's aether serves.
func (e *Edge) passOn(ctx context.Context, s *aether.Stream, o aether.Open) error {
	sb, err := e.find(o.Project, o.Sandbox)
	if err != nil {
		return err
	}
	defer sb.active.Begin(uptime)()
	for {
		err := e.visit(ctx, s, sb, o.Body)
		if !errors.Is(err, errPausedMeanwhile) {
			return err
		}
	}
}

// errPausedMeanwhile says that a sandbox was paused before a request got there: nothing was done.
var errPausedMeanwhile = errors.New("the sandbox was paused meanwhile")

// visit passes a request on once to a sandbox that it wakes.
func (e *Edge) visit(ctx context.Context, s *aether.Stream, sb *sandbox, body []byte) error {
	method := s.Open().Method
	now, err := e.running(ctx, sb, method)
	if err != nil {
		return err
	}
	defer now.visit.End()
	if method == "session.create" {
		if body, err = completeSession(body, now); err != nil {
			return err
		}
	}
	return e.relayTo(ctx, s, sb, now, body)
}

// look relays a method that the sandbox's aether answers without the sandbox: it wakes nothing and is no activity.
func (e *Edge) look(ctx context.Context, s *aether.Stream, o aether.Open) error {
	sb, err := e.find(o.Project, o.Sandbox)
	if err != nil {
		return err
	}
	now, err := e.settle(ctx, sb, api.StatePausing, api.StateResuming)
	if err != nil {
		return err
	}
	if now.state.Ended() {
		return wrongState(sb.id, now)
	}
	return e.relayTo(ctx, s, sb, now, o.Body)
}

// relayTo passes a stream on to the aether of a sandbox. A stream that stays open has arrived with the first answer.
func (e *Edge) relayTo(ctx context.Context, s *aether.Stream, sb *sandbox, now settled, body []byte) error {
	o := s.Open()
	down, err := now.box.Open(ctx, aether.Open{
		Method: o.Method, Sandbox: sb.id, Project: sb.project, RequestID: o.RequestID, Trace: o.Trace, Body: body,
	})
	if err != nil {
		return notStarted(ctx, now.box, err)
	}
	arrived := func() {}
	if pause.StaysOpen(o.Method) {
		arrived = now.visit.End
	}
	if pause.Asks(o.Method) {
		f, err := down.Recv(ctx)
		if api.IsCode(err, api.CodeFrozen) && sb.pausedSince(now) {
			down.Reset(nil)
			return errPausedMeanwhile
		}
		if err == nil { // an error comes again
			arrived()
			err = pass(ctx, s, &f)
			f.Release()
			if err != nil {
				down.Reset(nil)
				return err
			}
		}
	}
	return e.relay(ctx, s, down, arrived)
}

// completeSession fills in what a new session gets from its sandbox.
func completeSession(body []byte, now settled) ([]byte, error) {
	var want api.Session
	if len(body) > 0 {
		var err error
		if want, err = api.Decode[api.Session](body); err != nil {
			return nil, err
		}
	}
	want.User, want.Cwd = cmp.Or(want.User, now.spec.User), cmp.Or(want.Cwd, now.spec.Workdir)
	raw, err := json.Marshal(want)
	if err != nil {
		return nil, fmt.Errorf("encode session: %w", err)
	}
	return raw, nil
}

// onSandbox makes a handler of a unary method about one sandbox from its body's type and what it does.
func onSandbox[T any](e *Edge, do func(context.Context, *sandbox, T) (any, error)) handler {
	decode := api.NewDecoder[T]()
	return func(ctx context.Context, s *aether.Stream, o aether.Open) error {
		sb, err := e.find(o.Project, o.Sandbox)
		if err != nil {
			return err
		}
		var body T
		if len(o.Body) > 0 {
			if body, err = decode.Decode(o.Body); err != nil {
				return err
			}
		}
		v, err := do(ctx, sb, body)
		if err != nil {
			return err
		}
		return reply(ctx, s, v)
	}
}

func reply(ctx context.Context, s *aether.Stream, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode reply: %w", err)
	}
	return s.Reply(ctx, raw)
}
