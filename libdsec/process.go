package libdsec

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
)

const (
	// killGrace is how long a process that is being killed has to report its end.
	killGrace = 10 * time.Second
	// reconnectFor is how long a broken connection is tried to be made again.
	reconnectFor = 2 * time.Minute
	// reconnectPause bounds the pause between two tries.
	reconnectPause = time.Second
	// keepGaps bounds the list of gaps; the server's totals tell the rest.
	keepGaps = 1024
)

// StartOptions say how a started process is connected.
type StartOptions struct {
	StdinPipe bool      // [Process.Stdin] is a pipe to it; not together with [Cmd.Stdin]
	TTY       *api.Size // run on a terminal of this size; its output is all Stdout. Say TERM in Env
	Lossless  bool      // the process waits for its reader instead of output being dropped
	Detach    bool      // goes on when the context of Start ends, or when this program does
	Tag       string    // a name of the caller's own, shown in the process list
	Handlers
}

// AttachOptions say how to attach.
type AttachOptions struct {
	StdoutOffset int64 // the first byte wanted of each output
	StderrOffset int64
	FromNow      bool // only what comes from now on; where that is isn't known, so a broken connection is the end
	Stdin        bool // take over stdin and terminal; whoever had them before is told
	Handlers
}

// Handlers receive a process's output as it comes, one call at a time. The bytes are valid during the call only. An
// error ends the process as the end of its context would, and comes out of [Process.Wait]. An output with a handler has
// no reader.
type Handlers struct {
	OnStdout func([]byte) error
	OnStderr func([]byte) error
	// OnGap is told of output that isn't there any more; later output follows. Nil: see [Process.Gaps].
	OnGap func(Gap) error
	// NoReconnect makes a broken connection the end, where otherwise the process's stream goes on from where it was.
	NoReconnect bool
}

// Gap is a piece of output that was lost: never silently.
type Gap struct {
	Stream string // stdout or stderr
	Offset int64
	Length int64
}

// Process is a started command. It ends by itself; [Process.Close] lets go of it earlier.
//
// An output with neither handler nor reader is dropped once [Process.Wait] is called. Both outputs travel in one stream: a
// reader that stops reading holds up the other one too. The process doesn't notice (what's too old becomes a gap) unless
// it is lossless: then it waits.
type Process struct {
	sandbox  *Sandbox
	handlers Handlers
	attached bool // by Attach: its context never kills
	detach   bool
	tty      bool
	stdout   *flow
	stderr   *flow
	stdin    *stdinPipe
	cancel   context.CancelCauseFunc
	started  time.Time
	id       string
	pid      int

	done     chan struct{}  // closed at the end; status and err are set then
	wg       sync.WaitGroup // follow
	delivery sync.WaitGroup // goroutines that call handlers
	handling sync.Mutex     // held during a handler's call

	mu     sync.Mutex // guards everything below
	stream *aether.Stream
	gaps   []Gap
	status api.ExitStatus
	err    error
}

// ID names the process in its sandbox.
func (p *Process) ID() string { return p.id }

// PID is the process's number inside the sandbox; 0 when it isn't known.
func (p *Process) PID() int { return p.pid }

// StartedAt is when it started; zero for one that was attached to.
func (p *Process) StartedAt() time.Time { return p.started }

// Stdout reads its output. It ends with io.EOF when the output is complete, or with what broke the stream.
func (p *Process) Stdout() io.Reader { return p.stdout.claim() }

// Stderr reads its error output; a process on a terminal has none.
func (p *Process) Stderr() io.Reader { return p.stderr.claim() }

// Stdin writes to the process. Closing it is the end of file, after everything written. It is nil unless the process was
// started with StdinPipe, or attached to with Stdin.
func (p *Process) Stdin() io.WriteCloser {
	if p.stdin == nil {
		return nil
	}
	return p.stdin
}

// Gaps are the pieces of output that were lost so far.
func (p *Process) Gaps() []Gap {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]Gap(nil), p.gaps...)
}

// Done is closed when the process has ended and its output is complete, or when it was lost.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait waits for the end. Output that nobody reads or handles is dropped from here on. How the process ended is the
// status; an error says that its end isn't known, or that a context ended it. The end of ctx here only ends the waiting.
func (p *Process) Wait(ctx context.Context) (api.ExitStatus, error) {
	p.stdout.discardUnclaimed()
	p.stderr.discardUnclaimed()
	select {
	case <-p.done:
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.status, p.err
	case <-ctx.Done():
		return api.ExitStatus{}, context.Cause(ctx)
	}
}

// Signal sends a signal ("SIGTERM") to the process alone.
func (p *Process) Signal(ctx context.Context, name string) error {
	return p.sandbox.Signal(ctx, p.id, name, false)
}

// SignalTree sends a signal to the process and everything it started.
func (p *Process) SignalTree(ctx context.Context, name string) error {
	return p.sandbox.Signal(ctx, p.id, name, true)
}

// Kill ends the process with everything it started.
func (p *Process) Kill(ctx context.Context) error {
	return p.sandbox.Signal(ctx, p.id, "SIGKILL", true)
}

// Resize changes the size of its terminal.
func (p *Process) Resize(ctx context.Context, size api.Size) error {
	m := aether.Resize{ID: p.id, Rows: uint32(size.Rows), Cols: uint32(size.Cols)}
	_, err := p.sandbox.client.unary(ctx, aether.Open{Method: "resize", Sandbox: p.sandbox.id, Body: m.AppendTo(nil)})
	return err
}

// errLetGo ends a Process that was closed.
var errLetGo = errors.New("the process was let go of")

// Close stops following the process, which goes on if it hasn't ended, and waits until no handler runs any more. It must
// not be called from a handler.
func (p *Process) Close() error {
	p.cancel(errLetGo)
	p.wg.Wait()
	p.stdout.abandon(errLetGo)
	p.stderr.abandon(errLetGo)
	return nil
}

// Signal sends a signal to a process by id; to its whole tree if so wanted.
func (s *Sandbox) Signal(ctx context.Context, process, name string, tree bool) error {
	n, ok := api.SignalNumber(name)
	if !ok {
		return api.FieldError(api.CodeInvalid, "signal", "SIGTERM, SIGINT, SIGKILL…", "no signal %q", name)
	}
	m := aether.Signal{ID: process, Signal: int32(n), Tree: tree}
	_, err := s.client.unary(ctx, aether.Open{Method: "signal", Sandbox: s.id, Body: m.AppendTo(nil)})
	return err
}

func (p *Process) setStream(s *aether.Stream) {
	p.mu.Lock()
	p.stream = s
	p.mu.Unlock()
}

func (p *Process) currentStream() *aether.Stream {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stream
}

// end records the end, once follow is done with everything else.
func (p *Process) end(status api.ExitStatus, err error) {
	p.mu.Lock()
	p.status, p.err = status, err
	p.mu.Unlock()
	flowEnd := err
	if flowEnd == nil {
		flowEnd = io.EOF
	}
	p.stdout.finish(flowEnd)
	p.stderr.finish(flowEnd)
	p.delivery.Wait() // the output is complete before the end is reported
	close(p.done)
}
