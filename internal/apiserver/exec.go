package apiserver

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/apiserver/encode"
)

// exec runs one command and answers with its output and how it ended.
//
// Until the command has started, a failure is a problem document. From then on the answer is 200 with what there is,
// because the command may have had effects: what of ours failed is told in infra_error. The client's leaving cancels:
// the stream is reset, and the edge has the whole tree killed.
func (s *Server) exec(c *call, r *http.Request) error {
	id, err := plainSandbox(r)
	if err != nil {
		return err
	}
	req, err := decode(c, r, s.decoders.exec, largeBody)
	if err == nil {
		err = req.Validate()
	}
	if err != nil {
		return err
	}
	out := &output{c: c, limit: api.DefaultMaxOutput, stdout: s.buffer(), stderr: s.buffer()}
	defer func() { s.recycle(out.stdout); s.recycle(out.stderr) }()
	if req.MaxOutputBytes != nil {
		out.limit = *req.MaxOutputBytes
	}
	status, err := s.runCommand(r.Context(), c, id, &req, out)
	if err != nil {
		return err
	}
	status.Truncated = status.Truncated || out.dropped
	return c.result(&status, *out.stdout, *out.stderr)
}

// result sends a command's result. A large one is encoded piece by piece as it is sent: as a whole it could be six times
// the size of the output.
func (c *call) result(e *api.ExitStatus, stdout, stderr []byte) error {
	buf := c.server.buffer()
	defer c.server.recycle(buf)
	size := len(stdout) + len(stderr)
	if size <= smallAnswer {
		*buf = append(encode.AppendResult((*buf)[:0], e, stdout, stderr), '\n')
		err := c.raw(http.StatusOK, *buf)
		_ = http.NewResponseController(c.ResponseWriter).Flush() // now: the client needn't wait for the log
		return err
	}
	h := c.Header()
	h.Set("Content-Type", "application/json")
	h.Set("X-Content-Type-Options", "nosniff")
	c.within(size)
	c.WriteHeader(http.StatusOK)
	*buf = encode.AppendStatus(append((*buf)[:0], '{'), e)
	_, err := c.Write(*buf)
	for _, part := range []struct {
		name string
		data []byte
	}{{"stdout", stdout}, {"stderr", stderr}} {
		if err == nil {
			err = encode.WriteOutput(c, buf, part.name, part.data)
		}
	}
	if err == nil {
		_, _ = c.Write([]byte("}\n")) // the client has gone: nobody to tell
	}
	return nil //nolint:nilerr // as above
}

// runCommand opens the exec stream, feeds it, and collects until the end.
func (s *Server) runCommand(ctx context.Context, c *call, id string, req *api.ExecRequest, out *output) (api.ExitStatus, error) {
	m := execStart(req)
	buf := s.buffer()
	body := m.AppendTo((*buf)[:0])
	st, err := s.open(ctx, c, aether.Open{Method: "exec", Sandbox: id, Body: body, Closed: !m.Stdin})
	*buf = body
	s.recycle(buf) // Open has encoded it
	if err != nil {
		return api.ExitStatus{}, err
	}
	ended := false
	defer func() {
		if ended {
			_ = st.Close() // the other side has said all it had
		} else {
			st.Reset(nil)
		}
	}()
	if m.Stdin {
		wait := feed(ctx, st, input(req))
		defer wait()
	}
	for {
		f, err := st.Recv(ctx)
		if err != nil {
			return s.interrupted(ctx, c, out, err)
		}
		c.isReplay(&f)
		exited, err := out.take(&f)
		f.Release()
		if err != nil {
			return s.interrupted(ctx, c, out, err)
		}
		if exited != nil {
			ended = true
			return exitStatus(exited), nil
		}
	}
}

// interrupted is how a command ends for us whose exit was never reported.
func (s *Server) interrupted(ctx context.Context, c *call, out *output, err error) (api.ExitStatus, error) {
	if ctx.Err() != nil {
		return api.ExitStatus{}, context.Cause(ctx) // the client has gone
	}
	if e, typed := errors.AsType[*api.Error](err); typed && !out.started {
		return api.ExitStatus{}, e // a refusal: nothing ran
	}
	// An end without a word may come before or after the start. To say "not started" could make a client run it twice.
	status := api.ExitStatus{
		InfraError: "the connection to the command was lost: " + err.Error(), StartedAt: out.startedAt,
		StdoutTotal: int64(len(*out.stdout)), StderrTotal: int64(len(*out.stderr)), Truncated: true,
	}
	if !out.started {
		status.InfraError += "; it isn't known whether it started"
		status.StartedAt = c.started.UTC()
	}
	status.DurationMS = float64(time.Since(status.StartedAt).Microseconds()) / 1e3
	return status, nil
}

// feed writes stdin and ends it. A short input fits into the credit that every stream begins with, so that writing it
// can't wait for the command; a longer one needs a goroutine, because a command may write before it reads. The returned
// function waits for that; call it after the stream has ended.
func feed(ctx context.Context, st *aether.Stream, data []byte) (wait func()) {
	write := func() {
		// A failure shows on the receiving side too, or means that the command no longer reads, which it may.
		if len(data) == 0 || st.Write(ctx, aether.Stdin, data) == nil {
			_ = st.CloseWrite(aether.Stdin)
		}
	}
	if len(data) <= shortInput {
		write()
		return func() {}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		write()
	}()
	return func() {
		st.Reset(nil)
		<-done
	}
}

// shortInput is below the credit that an edge gives at the start.
const shortInput = 64 << 10

// output collects what a command writes. The sandbox's side keeps to the limit; this is for one that doesn't.
type output struct {
	c              *call
	limit          int64 // bytes per stream
	stdout, stderr *[]byte
	started        bool
	startedAt      time.Time
	dropped        bool
	full           bool // there is no memory for more
}

// take takes one frame; the end of the command is returned.
func (o *output) take(f *aether.Frame) (*aether.Exited, error) {
	switch f.Channel {
	case aether.Stdout:
		o.keep(o.stdout, f.Data)
	case aether.Stderr:
		o.keep(o.stderr, f.Data)
	case aether.Message:
		return o.message(f)
	default: // a flow that isn't for us
	}
	return nil, nil //nolint:nilnil // nothing has ended and nothing is wrong
}

func (o *output) message(f *aether.Frame) (*aether.Exited, error) {
	switch f.Type {
	case aether.MsgStarted:
		var m aether.Started
		if err := m.Unmarshal(f.Data); err != nil {
			return nil, err
		}
		o.started, o.startedAt = true, unixNano(m.StartedAtUnixNano)
	case aether.MsgExited:
		m := new(aether.Exited)
		return m, m.Unmarshal(f.Data)
	default: // gaps are in the totals; newer peers may say more
	}
	return nil, nil //nolint:nilnil // as in take
}

func (o *output) keep(buf *[]byte, data []byte) {
	if room := o.limit - int64(len(*buf)); int64(len(data)) > room {
		data, o.dropped = data[:room], true
	}
	need := len(*buf) + len(data)
	if need > cap(*buf) {
		grown := max(need, int(min(int64(2*cap(*buf)), o.limit)))
		o.full = o.full || o.c.take(grown, cap(*buf)) != nil
		if !o.full {
			*buf = append(make([]byte, 0, grown), *buf...)
		}
	}
	if o.full {
		o.dropped = o.dropped || len(data) > 0
		return
	}
	*buf = append(*buf, data...)
}
