package edge

import (
	"context"
	"errors"
	"fmt"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/edge/instance"
	"github.com/dsec-io/dsec/internal/edge/spec"
)

// startProcess is the id of the process that a spec's command starts.
const startProcess = "start"

// processRandom is how many random characters of five bits a process id has.
const processRandom = 12

// exec runs a command: it completes what the client left open, opens the stream to the aether, sees the start through,
// and then only relays.
//
// A command runs once or not at all. The edge repeats by itself only when nothing was sent; not_started is answered only
// when nothing can have run. A connection that breaks between leaves both possible, and the client is told just that.
func (e *Edge) exec(ctx context.Context, s *aether.Stream, o aether.Open) error {
	var x aether.ExecStart
	if err := x.Unmarshal(o.Body); err != nil {
		return api.Errorf(api.CodeInvalid, "exec: %v", err)
	}
	kind := "quick"
	if x.Keep {
		kind = "kept"
	}
	sb, err := e.find(o.Project, o.Sandbox)
	if err == nil {
		err = e.runCommand(ctx, s, sb, &x)
	}
	if errors.Is(err, errGone) && s.Err() == nil {
		err = nil // both sides had said all: that is the end, and nobody has left
	}
	how := result(err)
	if err != nil && left(s, err) {
		how = "client_left"
	}
	e.met.execs.WithLabelValues(kind, how).Inc()
	return err
}

func (e *Edge) runCommand(ctx context.Context, s *aether.Stream, sb *sandbox, x *aether.ExecStart) error {
	defer sb.active.Begin(uptime)()
	down, f, now, err := e.beginExec(ctx, s, sb, x)
	if err != nil {
		return e.answerLoss(ctx, s, err)
	}
	defer now.visit.End()
	box := now.box
	started := f.Channel == aether.Message && f.Type == aether.MsgStarted
	if started && x.Keep {
		now.visit.End() // it may go on after a pause
		e.tell(sb, "exec_started", "", execData(x.ID, x.Tag))
		e.awaitKept(sb, box, x.ID)
	}
	if f.Channel != aether.Message {
		f.Release()
		down.Reset(nil)
		return api.Errorf(api.CodeInternal, "the aether sent data before it said that the command started")
	}
	// A short command's whole story has come at once, and goes on at once.
	err = s.Forward(ctx, down, f.Type, f.Data)
	f.Release()
	if err != nil {
		down.Reset(nil)
		return err
	}
	return e.follow(ctx, s, down, &run{sb: sb, box: box, x: x})
}

// beginExec has the command run, and returns with the aether's first word about it; x is complete then. A pause that
// comes between has it begin again.
func (e *Edge) beginExec(ctx context.Context, s *aether.Stream, sb *sandbox, x *aether.ExecStart) (*aether.Stream, aether.Frame, settled, error) {
	asked := *x
	for {
		down, now, err := e.openExec(ctx, s, sb, x)
		if err != nil {
			return nil, aether.Frame{}, now, err
		}
		f, err := down.Recv(ctx)
		if err == nil {
			return down, f, now, nil
		}
		down.Reset(nil)
		now.visit.End()
		if api.IsCode(err, api.CodeFrozen) && sb.pausedSince(now) {
			*x = asked
			continue
		}
		if unsaid(&asked) {
			err = noShell(err, x)
		}
		return nil, f, now, lostBeforeStart(ctx, now.box, err)
	}
}

// openExec opens the stream that runs the command; x is complete then.
func (e *Edge) openExec(ctx context.Context, s *aether.Stream, sb *sandbox, x *aether.ExecStart) (*aether.Stream, settled, error) {
	o := s.Open()
	for again := false; ; again = true {
		now, err := e.running(ctx, sb, o.Method)
		if err != nil {
			return nil, now, err
		}
		call := *x
		if err := complete(&call, now); err != nil {
			now.visit.End()
			return nil, now, err
		}
		down, err := now.box.Open(ctx, aether.Open{
			Method: o.Method, Sandbox: sb.id, Project: sb.project, RequestID: o.RequestID, Trace: o.Trace,
			Body: call.AppendTo(nil), Closed: o.Closed,
		})
		if err == nil {
			*x = call
			return down, now, nil
		}
		now.visit.End()
		// Nothing was sent, so the repeat can't run the command twice.
		if again || ctx.Err() != nil {
			return nil, now, notStarted(ctx, now.box, err)
		}
	}
}

// complete checks a command and fills in what its sandbox gives it.
func complete(x *aether.ExecStart, now settled) error {
	if unsaid(x) && x.Session == "" {
		for _, word := range now.image {
			x.Argv = append(x.Argv, []byte(word))
		}
	}
	if err := spec.CheckExec(x); err != nil {
		return err
	}
	if x.ID == "" {
		x.ID = "p" + instance.Random(processRandom)
	}
	if x.MaxOutput == 0 {
		x.MaxOutput = api.DefaultMaxOutput
	}
	// A session has a user and a working directory of its own.
	if x.User == "" && x.Session == "" {
		x.User = now.spec.User
	}
	if len(x.Cwd) == 0 && x.Session == "" {
		x.Cwd, x.CwdCreate = []byte(now.spec.Workdir), true
	}
	x.Env = now.env.With(x.Env)
	return nil
}

// unsaid tells whether a request leaves the command to the image.
func unsaid(x *aether.ExecStart) bool { return len(x.Argv) == 0 && len(x.Shell) == 0 }

// noShell is err, or what it means when the command is the shell that nobody asked for.
func noShell(err error, x *aether.ExecStart) error {
	if !api.IsCode(err, api.CodeCommandNotFound) || len(x.Argv) != 1 || string(x.Argv[0]) != spec.Shell {
		return err
	}
	e := api.Errorf(api.CodeNoShell, "the image says no command and has no %s", spec.Shell)
	e.Hint = "say what to run"
	return e
}

func execData(id, tag string) map[string]any {
	data := map[string]any{"process": id}
	if tag != "" {
		data["tag"] = tag
	}
	return data
}

// notStarted is the error of a stream that couldn't be opened: nothing was sent, so nothing ran.
func notStarted(ctx context.Context, box Box, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case ended(box):
		return api.Errorf(api.CodeSandboxDied, "the sandbox ended before the command started")
	}
	if e, ok := errors.AsType[*api.Error](err); ok {
		return e
	}
	e := api.Errorf(api.CodeNotStarted, "the sandbox's aether can't be reached: %v", err)
	e.RetryMS, e.Hint = retryStateMS, "nothing ran, so try again"
	return e
}

// lostError says that the connection to an aether broke while a command may have been running.
type lostError struct{ cause error }

func (l *lostError) Error() string { return l.cause.Error() }

func (l *lostError) Unwrap() error { return l.cause }

// lostBeforeStart is the error of a stream that ended before the aether said whether the command started.
func lostBeforeStart(ctx context.Context, box Box, err error) error {
	gone := api.IsCode(err, api.CodeNotFound) // the aether has been told of its end already
	if _, typed := errors.AsType[*api.Error](err); typed && !gone {
		return err // the aether itself says that it didn't start
	}
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case gone || ended(box):
		return api.Errorf(api.CodeSandboxDied, "the sandbox ended before the command was known to have started")
	}
	return &lostError{fmt.Errorf("the aether was lost before it said whether the command started: %w", err)}
}

func ended(box Box) bool {
	select {
	case <-box.Done():
		return true
	default:
		return false
	}
}
