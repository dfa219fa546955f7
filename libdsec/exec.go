package libdsec

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
)

const (
	// DefaultMaxOutput is how much of each output [Sandbox.Exec] keeps when [Cmd.MaxOutput] is zero.
	DefaultMaxOutput = 1 << 20
	// stdinChunk is how much of a caller's reader is taken at a time.
	stdinChunk = 64 << 10
)

// Cmd says what to run. Exactly one of Argv and Shell is given; neither means what the image runs by default, where the
// server knows that.
type Cmd struct {
	Argv    []string          // found on PATH as execvp does
	Shell   string            // a script for the sandbox's /bin/sh
	Env     map[string]string // added to the sandbox's
	Cwd     string            // default: the sandbox's workdir
	User    string            // default: the sandbox's
	Session string            // run in this session
	Stdin   io.Reader         // nil: end of file at once
	Timeout time.Duration     // the whole tree is killed after it; 0: no limit
	// MaxOutput is how many bytes of each output are kept, the first and the last half; more is counted and dropped
	// where it's produced. 0 means [DefaultMaxOutput] for Exec and no limit for Start.
	MaxOutput int64
}

// Result is how a command ended, and what it printed.
type Result struct {
	api.ExitStatus
	Stdout []byte
	Stderr []byte
}

// Exec runs a command and waits for its end. A command that ended is a result, however it ended; an error is a command
// that didn't start, or one of whose end nothing is known. When ctx ends first the whole tree of the command is killed,
// and Exec returns the cause together with the output so far.
func (s *Sandbox) Exec(ctx context.Context, cmd Cmd) (*Result, error) {
	start := cmd.message()
	if start.MaxOutput == 0 {
		start.MaxOutput = DefaultMaxOutput
	}
	pause := firstPause
	for try := 1; ; try++ {
		started, res, err := s.execOnce(ctx, start, cmd.Stdin)
		if err == nil || started || try == sendTries || isUnsent(err) || !nothingRan(err, http.MethodPost) {
			return res, err
		}
		if err := rest(ctx, waitFor(err, pause)); err != nil {
			return nil, err
		}
		pause *= 2
	}
}

// execOnce runs the command once. Stdin isn't touched before the command has started, so that a try which started
// nothing can be followed by another.
func (s *Sandbox) execOnce(ctx context.Context, start aether.ExecStart, stdin io.Reader) (started bool, _ *Result, _ error) {
	stream, err := s.client.open(ctx, s.openExec(start))
	if err != nil {
		return false, nil, err
	}
	// Ends our side whichever way this returns; for a command that still runs it means: kill it.
	defer stream.Reset(nil)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	res := new(Result)
	for {
		f, err := stream.Recv(ctx)
		if err != nil {
			err = s.client.streamError(ctx, err)
			if !started {
				return false, nil, err
			}
			res.Cancelled = context.Cause(ctx) != nil
			return true, res, err
		}
		switch {
		case f.Channel == aether.Stdout:
			res.Stdout = append(res.Stdout, f.Data...)
		case f.Channel == aether.Stderr:
			res.Stderr = append(res.Stderr, f.Data...)
		case f.Type == aether.MsgStarted && !started:
			started = true
			if stdin != nil {
				go pumpStdin(ctx, cancel, stream, stdin)
			}
		case f.Type == aether.MsgExited:
			res.ExitStatus, err = exitStatus(f.Data)
			f.Release()
			return true, res, err
		}
		f.Release()
	}
}

// pumpStdin copies from the caller's reader until it ends or the stream does. Nobody waits for it: a reader can't be
// interrupted, and the command's end doesn't depend on it.
func pumpStdin(ctx context.Context, cancel context.CancelCauseFunc, stream *aether.Stream, r io.Reader) {
	buf := make([]byte, stdinChunk)
	for {
		n, err := r.Read(buf)
		if n > 0 && stream.Write(ctx, aether.Stdin, buf[:n]) != nil {
			return // the stream's end is reported where frames are received
		}
		switch {
		case errors.Is(err, io.EOF):
			_ = stream.CloseWrite(aether.Stdin) // as above
			return
		case err != nil:
			cancel(fmt.Errorf("read stdin: %w", err)) // half an input must not look like all of it
			return
		}
	}
}

func (s *Sandbox) openExec(start aether.ExecStart) aether.Open {
	return aether.Open{Method: "exec", Sandbox: s.id, Body: start.AppendTo(nil)}
}

// message is the command in the wire's terms.
func (c *Cmd) message() aether.ExecStart {
	m := aether.ExecStart{
		Shell: []byte(c.Shell), Cwd: []byte(c.Cwd), User: c.User, Session: c.Session,
		Stdin: c.Stdin != nil, MaxOutput: c.MaxOutput, TimeoutMS: milliseconds(c.Timeout),
	}
	for _, a := range c.Argv {
		m.Argv = append(m.Argv, []byte(a))
	}
	for k, v := range c.Env {
		m.Env = append(m.Env, []byte(k+"="+v))
	}
	slices.SortFunc(m.Env, slices.Compare)
	return m
}

// milliseconds rounds up, so that a tiny limit isn't none.
func milliseconds(d time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}

// exitStatus decodes the message that ends a process.
func exitStatus(body []byte) (api.ExitStatus, error) {
	var e aether.Exited
	if err := e.Unmarshal(body); err != nil {
		return api.ExitStatus{}, api.Errorf(api.CodeInternal, "exit status: %v", err)
	}
	st := api.ExitStatus{
		TimedOut: e.TimedOut, OOMKilled: e.OOMKilled, Cancelled: e.Cancelled, InfraError: e.InfraError,
		StdinClosedEarly: e.StdinClosedEarly, StdoutTotal: e.StdoutTotal, StderrTotal: e.StderrTotal,
		Truncated: e.Truncated, LeftProcesses: e.LeftProcesses,
		StartedAt: time.Unix(0, e.StartedAtUnixNano), DurationMS: float64(e.DurationNano) / 1e6,
	}
	if e.HasCode {
		st.ExitCode = new(int(e.Code))
	}
	if e.Signal != 0 {
		st.Signal = api.SignalName(int(e.Signal))
	}
	if e.TimeoutMS != 0 {
		st.TimeoutMS = new(e.TimeoutMS)
	}
	return st, nil
}
