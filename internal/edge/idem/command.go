package idem

import (
	"context"
	"errors"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/budget"
)

// command runs a command, once. It goes on without its callers for a while (see [Limits]), so that a repeat finds it;
// its input is taken whole before it starts, so that no part of one is taken for all of it.
func (v *Server) command(ctx context.Context, s *aether.Stream, o aether.Open, x *aether.ExecStart) error {
	hold := v.Keys.memory.Open(o.Project)
	var input []byte
	if x.Stdin && !o.Closed {
		var err error
		if input, err = collect(ctx, s, hold); err != nil {
			hold.Close()
			return err
		}
	}
	o.Body = x.AppendTo(nil)
	r, ours, err := v.Keys.claim(call{project: o.Project, key: o.Key, kind: kindCommand, digest: digestOf(&o, o.Body, input)})
	if err != nil || !ours {
		hold.Close() // the first one's is used
		input = nil
	}
	if err != nil {
		return err
	}
	// The first caller follows from the start, so that nothing of an answer that isn't kept is dropped before it comes.
	me := r.join()
	defer r.leave(me)
	if ours {
		v.start(r, func(ctx context.Context) { //nolint:contextcheck // it outlives its caller
			defer hold.Close()
			v.carryOut(ctx, r, o, input)
		})
	} else if err := r.load(); err != nil {
		return err
	}
	return give(ctx, s, following{r, me, ours})
}

// collect takes a command's whole input, whose memory is hold's.
func collect(ctx context.Context, s *aether.Stream, hold *budget.Hold) ([]byte, error) {
	var input []byte
	for comes := true; comes; {
		f, err := s.Recv(ctx)
		if err != nil {
			return nil, err
		}
		if f.Channel == aether.Stdin {
			if need := len(input) + len(f.Data); need > cap(input) {
				grown := max(need, 2*cap(input))
				if !hold.Grow(int64(grown - cap(input))) {
					f.Release()
					return nil, errNoMemory()
				}
				input = append(make([]byte, 0, grown), input...)
			}
			input = append(input, f.Data...)
			comes = !f.End
		}
		f.Release()
		if len(input) > maxInput {
			return nil, api.FieldError(api.CodeTooLarge, "stdin", "send the input to a file, or leave the key out",
				"a command under a key can have %d bytes of input", maxInput)
		}
	}
	return input, nil
}

// carryOut is the work of a command.
func (v *Server) carryOut(ctx context.Context, r *Run, o aether.Open, input []byte) {
	o.Closed = false // signals may follow
	inner, err := v.open(ctx, o)
	if err != nil {
		r.free(err)
		return
	}
	defer inner.Reset(nil)
	r.work(inner, func() { inner.Reset(nil) }) // which has its whole tree killed
	ctx, cancel := context.WithCancelCause(ctx)
	fed := make(chan struct{})
	go func() {
		defer close(fed)
		// A failure shows where frames are received, or means that the command no longer reads, which it may.
		if len(input) == 0 || inner.Write(ctx, aether.Stdin, input) == nil {
			_ = inner.CloseWrite(aether.Stdin)
		}
	}()
	defer func() { cancel(nil); <-fed }()
	began := false
	for {
		f, err := inner.Recv(ctx)
		if errors.Is(err, aether.ErrClosed) {
			r.lose(errLost("its callers left it, so it was ended"))
			return
		}
		if err != nil {
			v.broken(r, err, began)
			return
		}
		mine := taken(&f)
		began = true
		if mine.Channel == aether.Message && mine.Type == aether.MsgExited {
			r.finish(mine)
			return
		}
		if err := r.put(ctx, mine); err != nil {
			v.broken(r, err, true)
			return
		}
	}
}

// process starts a process that outlives its request, once. What its callers then see comes from the process's own
// journal; the first one has its input.
func (v *Server) process(ctx context.Context, s *aether.Stream, o aether.Open, x *aether.ExecStart) error {
	want := call{project: o.Project, key: o.Key, kind: kindProcess, ref: v.NewID()}
	want.digest = digestOf(&o, x.AppendTo(nil), nil)
	r, ours, err := v.Keys.claim(want)
	if err != nil {
		return err
	}
	if ours {
		x.ID = r.ref
		o.Body = x.AppendTo(nil)
		v.start(r, func(ctx context.Context) { v.launch(ctx, r, o) }) //nolint:contextcheck // it outlives its caller
	}
	me := r.join()
	defer r.leave(me)
	if !ours {
		if err := r.load(); err != nil {
			return err
		}
	}
	var began []Frame
	if err := r.follow(ctx, me, func(f Frame) error { began = append(began, f); return nil }); err != nil {
		return err
	}
	a := aether.Attach{ID: r.ref, Stdin: ours && x.Stdin}
	return v.attach(ctx, s, aether.Open{
		Method: "attach", Sandbox: o.Sandbox, Project: o.Project, RequestID: o.RequestID, Trace: o.Trace, Body: a.AppendTo(nil),
	}, began, ours)
}

// launch is the work of starting a process.
func (v *Server) launch(ctx context.Context, r *Run, o aether.Open) {
	o.Closed = false
	inner, err := v.open(ctx, o)
	if err != nil {
		r.free(err)
		return
	}
	defer inner.Reset(nil) // the process goes on
	f, err := inner.Recv(ctx)
	if err != nil {
		v.broken(r, err, false)
		return
	}
	mine := taken(&f)
	if mine.Channel == aether.Message && mine.Type == aether.MsgStarted {
		r.finish(mine)
		return
	}
	r.lose(errLost("the sandbox's aether was lost before it said whether the process started"))
}

// attach follows a process that was started under a key. Began is what its start was answered with; there is none when
// the node ended before it was known, and then the aether says whether it runs.
func (v *Server) attach(ctx context.Context, s *aether.Stream, o aether.Open, began []Frame, ours bool) error {
	if err := mark(ctx, s, ours); err != nil {
		return err
	}
	for _, f := range began {
		if err := s.Send(ctx, f.Type, f.Data); err != nil {
			return err
		}
	}
	s.Flush()
	down, err := v.open(ctx, o)
	if err != nil {
		return err
	}
	f, err := down.Recv(ctx)
	if err != nil {
		down.Reset(nil)
		if api.IsCode(err, api.CodeNoSuchProcess) && len(began) == 0 {
			return errLost("the node ended when the process was to start, and it isn't known now")
		}
		return err
	}
	mine := taken(&f)
	if mine.Channel != aether.Message || mine.Type != aether.MsgStarted || len(began) == 0 {
		if err := s.Send(ctx, mine.Type, mine.Data); err != nil {
			down.Reset(nil)
			return err
		}
	}
	return aether.RelayTo(ctx, s, down, func(*aether.Frame) {})
}
