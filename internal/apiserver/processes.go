package apiserver

import (
	"context"
	"net/http"
	"strings"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
)

// startProcess starts a process that goes on when the request has ended. The answer is the process, or, where asked for,
// its stream from the first byte.
func (s *Server) startProcess(c *call, r *http.Request) error {
	id, err := sandboxID(r)
	if err != nil {
		return err
	}
	q, err := query(r, "stream")
	if err != nil {
		return err
	}
	live, err := q.flag("stream")
	if err != nil {
		return err
	}
	req, err := decode(c, r, s.decoders.start, largeBody)
	if err == nil {
		err = req.Validate()
	}
	if err != nil {
		return err
	}
	m := processStart(&req)
	ctx := r.Context()
	st, err := s.open(ctx, c, aether.Open{Method: "exec", Sandbox: id, Body: m.AppendTo(nil)})
	if err != nil {
		return err
	}
	f, replay, err := c.awaitStart(ctx, st)
	if err != nil {
		return err
	}
	var in *feeding
	if data := input(&req.ExecRequest); !replay && m.Stdin && (len(data) > 0 || !req.StdinOpen) {
		in = s.feedProcess(st, data, !req.StdinOpen) //nolint:contextcheck // it outlives the request
		in.hold, c.hold = c.hold, nil
	}
	defer s.letGo(st, in) //nolint:contextcheck // it outlives the request
	if live || accepts(r, mediaNDJSON) {
		return c.streamLines(ctx, st, f, translator{})
	}
	p, err := startedProcess(&f, &req)
	f.Release()
	if err != nil {
		return err
	}
	c.Header().Set("Location", "/v1/sandboxes/"+id+"/processes/"+p.ID)
	return c.json(http.StatusCreated, p)
}

// awaitStart waits for the word that a process has started, and whether that was for an earlier request with the same key:
// then it had its input, too. An error has ended the stream.
func (c *call) awaitStart(ctx context.Context, st *aether.Stream) (f aether.Frame, replay bool, err error) {
	f, err = first(ctx, st)
	if err == nil && c.isReplay(&f) {
		f.Release()
		replay = true
		f, err = first(ctx, st)
	}
	if err != nil {
		st.Reset(nil)
	}
	return f, replay, err
}

// startedProcess is the process that a stream's first frame tells of.
func startedProcess(f *aether.Frame, req *api.StartRequest) (*api.Process, error) {
	var m aether.Started
	if f.Channel != aether.Message || f.Type != aether.MsgStarted {
		return nil, api.Errorf(api.CodeUnavailable, "the sandbox didn't say whether the process started")
	}
	if err := m.Unmarshal(f.Data); err != nil {
		return nil, err
	}
	p := &api.Process{
		ID: m.ID, Argv: append([]string{}, req.Argv...), Tag: req.Tag, Session: req.Session, TTY: req.TTY != nil,
		PID: int(m.PIDInside), Running: true, StartedAt: unixNano(m.StartedAtUnixNano),
	}
	if req.Shell != "" {
		p.Argv = []string{"/bin/sh", "-c", req.Shell}
	}
	return p, nil
}

// accepts tells whether the client names a media type that it wants. It is no negotiation: the types that we have are
// either the default or asked for by name.
func accepts(r *http.Request, media string) bool {
	for _, line := range r.Header.Values("Accept") {
		for part := range strings.SplitSeq(line, ",") {
			name, _, _ := strings.Cut(part, ";")
			if strings.EqualFold(strings.TrimSpace(name), media) {
				return true
			}
		}
	}
	return false
}

func (s *Server) getProcess(c *call, r *http.Request) error {
	id, pid, err := plainProcess(r)
	if err != nil {
		return err
	}
	return s.read(c, r, aether.Open{Method: "process", Sandbox: id, Body: []byte(pid)})
}

// plainProcess is the sandbox and process of a request that takes no parameters.
func plainProcess(r *http.Request) (id, pid string, err error) {
	if _, err := query(r); err != nil {
		return "", "", err
	}
	return inSandbox(r, "pid", api.CodeNoSuchProcess)
}

// killProcess kills the whole tree. A process that has ended is what was asked for.
func (s *Server) killProcess(c *call, r *http.Request) error {
	id, pid, err := plainProcess(r)
	if err != nil {
		return err
	}
	return s.sendSignal(c, r, id, aether.Signal{ID: pid, Signal: sigkill, Tree: true})
}

const sigkill = 9

func (s *Server) signal(c *call, r *http.Request) error {
	id, pid, err := plainProcess(r)
	if err != nil {
		return err
	}
	req, err := decode(c, r, s.decoders.signal, smallBody)
	if err != nil {
		return err
	}
	n, err := signalNumber(req.Signal)
	if err != nil {
		return err
	}
	return s.sendSignal(c, r, id, aether.Signal{ID: pid, Signal: int32(n), Tree: req.Tree})
}

func signalNumber(name string) (int, error) {
	n, ok := api.SignalNumber(name)
	if !ok {
		return 0, api.FieldError(api.CodeInvalid, "signal", `name one, like "SIGTERM"`, "%q is no signal", clip(name))
	}
	return n, nil
}

func (s *Server) sendSignal(c *call, r *http.Request, id string, m aether.Signal) error {
	return s.command(c, r, aether.Open{Method: "signal", Sandbox: id, Body: m.AppendTo(nil)})
}

func (s *Server) resize(c *call, r *http.Request) error {
	id, pid, err := plainProcess(r)
	if err != nil {
		return err
	}
	size, err := decode(c, r, s.decoders.resize, smallBody)
	if err == nil {
		err = size.Validate()
	}
	if err != nil {
		return err
	}
	m := aether.Resize{ID: pid, Rows: uint32(size.Rows), Cols: uint32(size.Cols)}
	return s.command(c, r, aether.Open{Method: "resize", Sandbox: id, Body: m.AppendTo(nil)})
}

// command has the sandbox do something that has no answer of its own.
func (s *Server) command(c *call, r *http.Request, o aether.Open) error {
	ctx, cancel := bounded(r, unaryTime)
	defer cancel()
	if _, err := s.unary(ctx, c, o); err != nil {
		return err
	}
	c.WriteHeader(http.StatusNoContent)
	return nil
}
