package libdsec

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
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
	// Key is an idempotency key (see [NewKey]): the command runs once, however often it is sent under it, and an answer that
	// is lost is asked for again. A command under a key goes on for a minute when its caller is gone, unless the caller's
	// context ended. Its input, of at most 16 MiB, is sent whole before it starts. "" means none.
	Key string
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
	if cmd.Key != "" {
		return s.execKeyed(ctx, cmd, start)
	}
	var stdin *source
	if cmd.Stdin != nil {
		stdin = &source{r: cmd.Stdin}
	}
	pause := firstPause
	for try := 1; ; try++ {
		started, res, err := s.execOnce(ctx, s.openExec(start, ""), stdin)
		if err == nil || started || try == sendTries || isUnsent(err) || !nothingRan(err, http.MethodPost) {
			return res, err
		}
		if err := rest(ctx, waitFor(err, pause)); err != nil {
			return nil, err
		}
		pause *= 2
	}
}

// execOnce runs the command once.
func (s *Sandbox) execOnce(ctx context.Context, o aether.Open, stdin *source) (started bool, _ *Result, _ error) {
	o.Closed = stdin == nil && o.Key == "" // nothing follows; with a key a signal may
	stream, err := s.client.open(ctx, o)
	if err != nil {
		return false, nil, err
	}
	ended := false
	defer func() {
		if ended {
			_ = stream.Close() // the server has ended its side; a reset would look as if we had left
		} else {
			stream.Reset(nil) // for a command that still runs it means: kill it
		}
	}()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	running := make(chan struct{}) // closed when the command has started
	if stdin != nil {
		go stdin.pump(ctx, cancel, stream, running) // a reader can't be interrupted, so nobody waits for it
	}
	res := new(Result)
	for {
		f, err := stream.Recv(ctx)
		if err != nil {
			err = s.client.streamError(ctx, err)
			if o.Key != "" && context.Cause(ctx) != nil {
				killed(ctx, stream)
			}
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
			close(running)
		case f.Type == aether.MsgExited:
			res.ExitStatus, err = exitStatus(f.Data)
			f.Release()
			ended = true
			return true, res, err
		}
		f.Release()
	}
}

// source is a caller's stdin. Its first piece is kept until the command has started, and nothing more is read before:
// so a try that started nothing can be followed by another, and a short input needs no round trip.
type source struct {
	r     io.Reader
	whole bool // all of it can be sent before the command has started
	once  sync.Once
	head  []byte
	err   error // what came with the head
}

func (s *source) first() ([]byte, error) {
	s.once.Do(func() {
		buf := make([]byte, stdinChunk)
		var n int
		n, s.err = s.r.Read(buf)
		s.head = buf[:n]
	})
	return s.head, s.err
}

// pump copies until the source ends or the stream does, whose end is reported where frames are received.
func (s *source) pump(ctx context.Context, cancel context.CancelCauseFunc, stream *aether.Stream, running <-chan struct{}) {
	b, err := s.first()
	var buf []byte
	for {
		if len(b) > 0 && stream.Write(ctx, aether.Stdin, b) != nil {
			return
		}
		switch {
		case errors.Is(err, io.EOF):
			_ = stream.CloseWrite(aether.Stdin)
			return
		case err != nil:
			cancel(fmt.Errorf("read stdin: %w", err)) // half an input must not look like all of it
			return
		}
		if !s.whole {
			select {
			case <-running:
			case <-ctx.Done():
				return
			}
		}
		if buf == nil {
			buf = make([]byte, stdinChunk) // the head stays as it is
		}
		var n int
		n, err = s.r.Read(buf)
		b = buf[:n]
	}
}

func (s *Sandbox) openExec(start aether.ExecStart, key string) aether.Open {
	return aether.Open{Method: "exec", Sandbox: s.id, Key: key, Body: start.AppendTo(nil)}
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
	if e.OOMKilled {
		st.OOM = &api.OOM{LimitBytes: e.MemoryLimit, PeakBytes: e.MemoryPeak}
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
