package edge

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
)

// How hard the edge tries to find a command again whose aether was lost. A new aether is there within milliseconds.
const (
	attachTries   = 5
	attachPause   = 50 * time.Millisecond
	attachTimeout = 10 * time.Second
	killTimeout   = 5 * time.Second
)

// run is a started command and how much of it its client has been told.
type run struct {
	sb      *sandbox
	box     Box
	x       *aether.ExecStart
	out     [2]int64 // offsets of what comes next on stdout and stderr
	exited  bool
	adopted bool // it is followed by an attach by now: the end of that stream doesn't end it
}

// see notes what passes to the client.
func (r *run) see(f *aether.Frame) {
	switch {
	case f.Channel == aether.Stdout || f.Channel == aether.Stderr:
		r.out[f.Channel-aether.Stdout] += int64(len(f.Data))
	case f.Type == aether.MsgExited:
		r.exited = true
	case f.Type == aether.MsgGap:
		var g aether.Gap
		if ch := aether.Channel(0); g.Unmarshal(f.Data) == nil {
			if ch = aether.Channel(g.Channel); ch == aether.Stdout || ch == aether.Stderr {
				r.out[ch-aether.Stdout] = g.Offset + g.Length
			}
		}
	}
}

// follow relays a started command until its end. When its aether is lost, the next one has the command's output: the
// edge attaches there from where the client's stands, and the client notices nothing. That can't be done for a command
// with an input of bytes, some of which may have been lost; its client is told of the loss as its end, and so it is when
// the next aether doesn't know the command.
func (e *Edge) follow(ctx context.Context, s, down *aether.Stream, r *run) error {
	for {
		err := aether.RelayTo(ctx, s, down, r.see)
		switch {
		case err == nil && r.adopted && !r.x.Keep:
			e.dismiss(ctx, r)
			return nil
		case err == nil:
			return nil
		case !serverLost(s, down):
			if r.adopted && !r.x.Keep && !r.exited {
				e.killRun(ctx, r)
			}
			return err
		case r.exited:
			return s.Close() // all was told; only the end of the stream is missing
		}
		err = fmt.Errorf("the aether was lost while the command ran: %w", err)
		if r.x.Stdin && !r.x.TTY {
			return e.answerLoss(ctx, s, &lostError{err})
		}
		next, aerr := e.attachAgain(ctx, s, r)
		if aerr != nil {
			return e.answerLoss(ctx, s, &lostError{fmt.Errorf("%w; then: %w", err, aerr)})
		}
		down, r.adopted = next, true
	}
}

// serverLost tells whether a relay ended for the loss of the aether alone.
func serverLost(s, down *aether.Stream) bool {
	return errors.Is(down.Err(), aether.ErrConnLost) && s.Err() == nil
}

func (e *Edge) attachAgain(ctx context.Context, s *aether.Stream, r *run) (*aether.Stream, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, attachTimeout, errors.New("no new aether in time"))
	defer cancel()
	for try := 1; ; try++ {
		down, err := e.tryAttach(ctx, s, r)
		if err == nil || try == attachTries || ended(r.box) || errors.Is(err, errKnown) {
			return down, err
		}
		select {
		case <-time.After(attachPause):
		case <-ctx.Done():
			return nil, errors.Join(err, context.Cause(ctx))
		}
	}
}

// errKnown marks an answer of the new aether itself, which a repeat wouldn't change.
var errKnown = errors.New("the new aether says")

func (e *Edge) tryAttach(ctx context.Context, s *aether.Stream, r *run) (*aether.Stream, error) {
	o := s.Open()
	a := aether.Attach{ID: r.x.ID, StdoutOffset: r.out[0], StderrOffset: r.out[1], Stdin: r.x.TTY}
	down, err := r.box.Open(ctx, aether.Open{
		Method: "attach", Sandbox: r.sb.id, Project: r.sb.project, RequestID: o.RequestID, Trace: o.Trace, Body: a.AppendTo(nil),
	})
	if err != nil {
		return nil, err
	}
	f, err := down.Recv(ctx)
	if err == nil {
		defer f.Release()
		if f.Channel == aether.Message && f.Type == aether.MsgStarted {
			return down, nil // the client has one
		}
		r.see(&f)
		if err = pass(ctx, s, &f); err == nil {
			return down, nil
		}
	}
	down.Reset(nil)
	if _, typed := errors.AsType[*api.Error](err); typed {
		return nil, fmt.Errorf("%w: %w", errKnown, err)
	}
	return nil, err
}

// pass sends a frame on.
func pass(ctx context.Context, s *aether.Stream, f *aether.Frame) error {
	var err error
	switch {
	case f.Channel == aether.Message:
		err = s.Send(ctx, f.Type, f.Data)
	case len(f.Data) > 0:
		err = s.Write(ctx, f.Channel, f.Data)
	}
	if err == nil && f.End && f.Channel != aether.Message {
		err = s.CloseWrite(f.Channel)
	}
	return err
}

// killRun ends a command whose client has cancelled it. The aether does that by itself for its own exec streams; one that
// is only attached to goes on.
func (e *Edge) killRun(ctx context.Context, r *run) {
	m := aether.Signal{ID: r.x.ID, Signal: int32(unix.SIGKILL), Tree: true}
	e.tellAether(ctx, r, "signal", m.AppendTo(nil))
	e.dismiss(ctx, r)
}

// dismiss has the aether forget a command that wasn't meant to be kept.
func (e *Edge) dismiss(ctx context.Context, r *run) {
	e.tellAether(ctx, r, "forget", []byte(r.x.ID))
}

// tellAether makes a call about a command whose client may have gone already.
func (e *Edge) tellAether(ctx context.Context, r *run, method string, body []byte) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTimeout)
	defer cancel()
	if _, err := ask(ctx, r.box, aether.Open{Method: method, Sandbox: r.sb.id, Project: r.sb.project, Body: body}); err != nil {
		e.log.Debug("command not ended after its aether was lost", r.sb.attr())
	}
}

// answerLoss turns the loss of an aether into what is known of the command; any other error stays.
func (e *Edge) answerLoss(ctx context.Context, s *aether.Stream, err error) error {
	lost, ok := errors.AsType[*lostError](err)
	if !ok {
		return err
	}
	x := aether.Exited{InfraError: lost.Error()}
	if err := s.Send(ctx, aether.MsgExited, x.AppendTo(nil)); err != nil {
		return err
	}
	return s.Close()
}

// relay copies between a client and an aether until both are done, frames untouched. A lost aether is told as such: what
// was asked for can be asked for again.
// Arrived is called at each frame from the aether.
func (e *Edge) relay(ctx context.Context, s, down *aether.Stream, arrived func()) error {
	exited := false
	err := aether.RelayTo(ctx, s, down, func(f *aether.Frame) {
		exited = exited || f.Type == aether.MsgExited
		arrived()
	})
	switch {
	case err == nil || !serverLost(s, down):
		return err
	case exited:
		return s.Close()
	}
	lost := api.Errorf(api.CodeUnavailable, "the sandbox's aether was lost: %v", err)
	lost.RetryMS, lost.Hint = retryStateMS, "the sandbox goes on without it: attach to a process again from where you are, connect to a port anew"
	return lost
}
