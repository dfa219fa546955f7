package idem

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
)

const (
	// callTime bounds a request that has one answer; what it asks has shorter limits of its own.
	callTime = 2 * time.Minute
	// maxInput is how much input a command under a key may have: all of it is taken before the command starts.
	maxInput = 16 << 20
)

// Maker makes sandboxes.
type Maker interface {
	// Pick returns the id for a sandbox that is going to be made. What it reserves Make uses and Drop gives back.
	Pick(ctx context.Context, project string, spec []byte) string
	Drop(id string)
	// Make makes a sandbox of the project with the given id from the JSON of its spec. An error means that nothing of it
	// is left.
	Make(ctx context.Context, project, id string, spec []byte) error
	// Unmake ends such a sandbox again.
	Unmake(ctx context.Context, project, id string) error
	// Made is the JSON with which its creation was answered, whatever happened to it since.
	Made(project, id string) ([]byte, error)
}

// Server serves streams that carry a key. All fields are required; they don't change.
type Server struct {
	Keys  *Keys
	Maker Maker
	Life  context.Context                             //nolint:containedctx // what runs under a key ends with it, and not with its callers
	Go    func(f func()) bool                         // runs f in a goroutine; not once Life is over
	Dial  func(context.Context) (*aether.Conn, error) // connects to the edge that this serves, as any client does
	NewID func() string                               // an id for a process

	mu   sync.Mutex // guards conn; held while dialling
	conn *aether.Conn
}

// kindOf is how a method's answer is kept. Methods that only read, and those whose body comes as a stream, have none.
func kindOf(method string) (kind, bool) {
	switch method {
	case "sandbox.create":
		return kindCreate, true
	case "exec":
		return kindCommand, true
	case "sandbox.patch", "sandbox.stop", "sandbox.pause", "sandbox.resume", "sandbox.extend",
		"signal", "resize", "forget", "session.create", "session.interrupt", "session.close",
		"file.op", "image.gc", "image.remove":
		return kindCall, true
	}
	return 0, false
}

// Serve serves one stream.
func (v *Server) Serve(ctx context.Context, s *aether.Stream, o aether.Open) error {
	if o.Project == "" {
		return api.Errorf(api.CodeUnauthenticated, "the stream names no project")
	}
	if err := api.CheckKey(o.Key); err != nil {
		return err
	}
	k, ok := kindOf(o.Method)
	if !ok {
		return api.FieldError(api.CodeUnsupportedConstraint, Header, "leave it out", "a request of this kind can't be made to run once: its body is passed on as it comes")
	}
	switch k {
	case kindCreate:
		return v.create(ctx, s, o)
	case kindCall:
		return v.call(ctx, s, o)
	case kindCommand, kindProcess:
	}
	return v.exec(ctx, s, o)
}

// exec serves a command, or a process that outlives its request.
func (v *Server) exec(ctx context.Context, s *aether.Stream, o aether.Open) error {
	var x aether.ExecStart
	if err := x.Unmarshal(o.Body); err != nil {
		return api.Errorf(api.CodeInvalid, "exec: %v", err)
	}
	x.ID = "" // chosen anew for each try
	if x.Keep {
		return v.process(ctx, s, o, &x)
	}
	if x.TTY {
		return api.FieldError(api.CodeUnsupportedConstraint, Header, "leave it out, or start a process", "a command on a terminal can't be made to run once")
	}
	return v.command(ctx, s, o, &x)
}

// digestOf is a hash of what is asked for.
func digestOf(o *aether.Open, body, input []byte) digest {
	h := sha256.New()
	for _, part := range [][]byte{[]byte(o.Method), []byte(o.Sandbox), body, input} {
		fmt.Fprintf(h, "%d:", len(part))
		_, _ = h.Write(part)
	}
	return digest(h.Sum(nil)[:len(digest{})])
}

// start carries a run out apart from its callers.
func (v *Server) start(r *Run, do func(ctx context.Context)) {
	ok := v.Go(func() {
		ctx, cancel := context.WithCancelCause(v.Life)
		defer cancel(nil)
		do(ctx)
	})
	if !ok {
		err := api.Errorf(api.CodeUnavailable, "the edge is shutting down")
		err.RetryMS = 1000
		r.free(err)
	}
}

// mark tells a caller that the answer that follows isn't the first.
func mark(ctx context.Context, s *aether.Stream, ours bool) error {
	if ours {
		return nil
	}
	s.Hold()
	return s.Send(ctx, aether.MsgReplayed, nil)
}

// open opens a stream to the edge itself, as a client without a key would.
func (v *Server) open(ctx context.Context, o aether.Open) (*aether.Stream, error) {
	o.Key, o.FDs, o.Hold = "", nil, false
	conn, err := v.link(ctx)
	if err != nil {
		return nil, err
	}
	return conn.Open(ctx, o)
}

func (v *Server) link(ctx context.Context) (*aether.Conn, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.conn != nil && v.conn.Err() == nil {
		return v.conn, nil
	}
	if v.conn != nil {
		_ = v.conn.Close() // it has ended
	}
	var err error
	v.conn, err = v.Dial(ctx)
	return v.conn, err
}

// Close ends the connection to the edge itself. No run may be under way.
func (v *Server) Close() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.conn == nil {
		return nil
	}
	return v.conn.Close()
}

// call carries out a request that has one answer.
func (v *Server) call(ctx context.Context, s *aether.Stream, o aether.Open) error {
	r, ours, err := v.Keys.claim(call{project: o.Project, key: o.Key, kind: kindCall, digest: digestOf(&o, o.Body, nil)})
	if err != nil {
		return err
	}
	if ours {
		v.start(r, func(ctx context.Context) { //nolint:contextcheck // it outlives its caller
			ctx, cancel := context.WithTimeout(ctx, callTime)
			defer cancel()
			v.ask(ctx, r, o)
		})
	}
	me := r.join()
	defer r.leave(me)
	if !ours {
		if err := r.load(); err != nil {
			return err
		}
	}
	return give(ctx, s, following{r, me, ours})
}

// ask is the work of a request that has one answer.
func (v *Server) ask(ctx context.Context, r *Run, o aether.Open) {
	o.Closed = true
	inner, err := v.open(ctx, o)
	if err != nil {
		r.free(err)
		return
	}
	defer inner.Reset(nil)
	for {
		f, err := inner.Recv(ctx)
		if err != nil {
			v.broken(r, err, false)
			return
		}
		if f.Channel == aether.Message && f.Type == aether.MsgReply {
			reply := taken(&f)
			r.finish(reply)
			return
		}
		f.Release()
	}
}

// broken ends a run whose stream has ended without an answer. A typed refusal says that nothing was done, unless
// something was known to run.
func (v *Server) broken(r *Run, err error, began bool) {
	_, typed := errors.AsType[*api.Error](err)
	switch {
	case typed && !began && v.Life.Err() == nil && !api.IsCode(err, api.CodeInternal) && !api.IsCode(err, api.CodeTimeout):
		r.free(err)
	case errors.Is(err, io.EOF):
		r.lose(errLost("the sandbox's aether said nothing of its end"))
	case typed:
		r.lose(err)
	default:
		r.lose(errLost(err.Error()))
	}
}

// taken copies a frame and lets go of it.
func taken(f *aether.Frame) Frame {
	mine := Frame{Channel: f.Channel, Type: f.Type, End: f.End, Data: append([]byte(nil), f.Data...)}
	f.Release()
	return mine
}

// following is a caller of a run.
type following struct {
	run  *Run
	me   *reader
	ours bool // it is the first
}

// give passes a run's answer on to a caller as it comes, and what the caller says to the run.
func give(ctx context.Context, s *aether.Stream, v following) error {
	if err := mark(ctx, s, v.ours); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var listener sync.WaitGroup
	listener.Go(func() { listen(ctx, s, v.run) })
	defer listener.Wait()
	defer cancel(nil)
	err := v.run.follow(ctx, v.me, func(f Frame) error {
		if f.Channel == aether.Message {
			return s.Send(ctx, f.Type, f.Data)
		}
		if err := s.Write(ctx, f.Channel, f.Data); err != nil || !f.End {
			return err
		}
		return s.CloseWrite(f.Channel)
	})
	if err != nil {
		return err
	}
	return s.Close()
}

// listen passes a caller's signals on.
func listen(ctx context.Context, s *aether.Stream, r *Run) {
	for {
		f, err := s.Recv(ctx)
		if err != nil {
			return
		}
		if f.Channel == aether.Message && f.Type == aether.MsgSignal {
			r.say(ctx, f.Type, f.Data)
		}
		f.Release()
	}
}
