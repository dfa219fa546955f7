package libdsec

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
)

// follow receives until the process has ended or was let go of, on as many connections as it takes.
func (p *Process) follow(ctx context.Context) {
	defer p.cancel(nil)
	p.end(p.receive(ctx))
}

func (p *Process) receive(ctx context.Context) (api.ExitStatus, error) {
	stream := p.currentStream()
	for {
		status, err := p.drain(ctx, stream)
		if err == nil {
			_ = stream.Close() // the server has ended its side; a reset would look as if we had left
			return status, nil
		}
		if cause := context.Cause(ctx); cause != nil {
			return p.giveUp(ctx, stream, cause)
		}
		stream.Reset(nil)
		if stream, err = p.reconnect(ctx, err); err != nil {
			if cause := context.Cause(ctx); cause != nil {
				return p.giveUp(ctx, nil, cause)
			}
			return api.ExitStatus{}, err
		}
	}
}

// drain takes what comes on one stream. It returns nil when the process has ended.
func (p *Process) drain(ctx context.Context, stream *aether.Stream) (api.ExitStatus, error) {
	for {
		f, err := stream.Recv(ctx)
		if err != nil {
			return api.ExitStatus{}, err
		}
		switch {
		case f.Channel == aether.Stdout:
			p.stdout.put(f)
			continue
		case f.Channel == aether.Stderr:
			p.stderr.put(f)
			continue
		case f.Type == aether.MsgExited:
			status, err := exitStatus(f.Data)
			f.Release()
			if err != nil {
				status.InfraError = err.Error()
			}
			return status, nil
		case f.Type == aether.MsgGap:
			err = p.gap(f.Data)
		}
		f.Release()
		if err != nil {
			p.cancel(err)
			return api.ExitStatus{}, err
		}
	}
}

// gap notes lost output. The handler is told in its turn, after the output from before the gap.
func (p *Process) gap(body []byte) error {
	g, err := readGap(body)
	if err != nil {
		return err
	}
	out, handled := p.stdout, p.handlers.OnStdout != nil
	if g.Stream == "stderr" {
		out, handled = p.stderr, p.handlers.OnStderr != nil
	}
	out.skip(g.Offset + g.Length)
	p.mu.Lock()
	if len(p.gaps) < keepGaps {
		p.gaps = append(p.gaps, g)
	}
	p.mu.Unlock()
	switch {
	case p.handlers.OnGap == nil:
		return nil
	case handled:
		out.putGap(bytes.Clone(body))
		return nil
	}
	return p.tellGap(g) // a reader has no turn
}

func (p *Process) tellGap(g Gap) error {
	p.handling.Lock()
	defer p.handling.Unlock()
	return p.handlers.OnGap(g)
}

func readGap(body []byte) (Gap, error) {
	var m aether.Gap
	if err := m.Unmarshal(body); err != nil {
		return Gap{}, err
	}
	g := Gap{Stream: "stdout", Offset: m.Offset, Length: m.Length}
	if aether.Channel(m.Channel) == aether.Stderr {
		g.Stream = "stderr"
	}
	return g, nil
}

// giveUp is what follows the end of the process's context: unless it may go on without us, it's killed and its end
// awaited for a while. Stream is nil when the connection is gone too.
func (p *Process) giveUp(ctx context.Context, stream *aether.Stream, cause error) (api.ExitStatus, error) {
	if stream != nil {
		defer stream.Reset(nil)
	}
	if p.detach || errors.Is(cause, errLetGo) {
		return api.ExitStatus{}, cause
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killGrace)
	defer cancel()
	status := api.ExitStatus{}
	err := p.Kill(ctx)
	if api.IsCode(err, api.CodeNoSuchProcess) {
		err = nil // it had ended
	}
	if err == nil && stream != nil {
		status, err = p.drain(ctx, stream)
	}
	status.Cancelled = true
	if err != nil {
		return status, errors.Join(cause, err)
	}
	return status, cause
}

// reconnect attaches again, from where each output stands, until that works, the reason is final, or the time is up.
func (p *Process) reconnect(ctx context.Context, cause error) (*aether.Stream, error) {
	client := p.sandbox.client
	cause = client.streamError(ctx, cause)
	if p.handlers.NoReconnect || !transient(cause) {
		return nil, cause
	}
	limited, cancel := context.WithTimeoutCause(ctx, reconnectFor, cause)
	defer cancel()
	for pause := firstPause; ; pause = min(2*pause, reconnectPause) {
		at := position{stdout: p.stdout.position(), stderr: p.stderr.position()}
		stream, _, err := p.sandbox.begin(limited, p.openAttach(at, p.wantsStdin(), false))
		if err == nil {
			p.setStream(stream)
			p.stdin.moved()
			return stream, nil
		}
		if context.Cause(limited) == nil && !transient(err) {
			return nil, err
		}
		if err := rest(limited, pause); err != nil {
			return nil, err
		}
	}
}

// transient tells whether a process may be reachable again after err.
func transient(err error) bool {
	return api.IsCode(err, api.CodeUnavailable) || api.IsCode(err, api.CodeNotStarted) || api.IsCode(err, api.CodeTooMany)
}

func (p *Process) wantsStdin() bool {
	if p.stdin == nil {
		return false
	}
	p.stdin.mu.Lock()
	defer p.stdin.mu.Unlock()
	return !p.stdin.closed
}

// stdinPipe is a process's stdin.
//
// What was written when a connection broke may or may not have arrived, and nobody can tell. A person at a terminal
// sees what came of it; a program's input must not have a hole, so there the pipe is broken from then on.
type stdinPipe struct {
	process *Process

	writing sync.Mutex // held during a write: data of two writers doesn't mix

	mu     sync.Mutex // guards everything below
	wrote  bool
	closed bool
	err    error
}

var errStdinLost = errors.New("the connection broke while stdin was being sent: it isn't known how much arrived")

func newStdinPipe(p *Process) *stdinPipe { return &stdinPipe{process: p} }

// Write implements [io.Writer]; it waits while the process doesn't read.
func (w *stdinPipe) Write(b []byte) (int, error) {
	w.writing.Lock()
	defer w.writing.Unlock()
	w.mu.Lock()
	err := w.err
	if w.closed {
		err = io.ErrClosedPipe
	}
	w.wrote = true
	w.mu.Unlock()
	if err != nil {
		return 0, err
	}
	// The stream ends with the process, so nothing else has to end the write.
	err = w.process.currentStream().Write(context.Background(), aether.Stdin, b)
	return w.outcome(len(b), err)
}

// outcome says what a write to a stream means for the writer.
func (w *stdinPipe) outcome(n int, err error) (int, error) {
	switch {
	case err == nil:
		return n, nil
	case w.process.ended():
		return 0, io.ErrClosedPipe
	case errors.Is(err, aether.ErrConnLost) && !w.process.handlers.NoReconnect:
		if w.process.tty {
			return n, nil
		}
		w.fail(errStdinLost)
		return 0, errStdinLost
	}
	return 0, io.ErrClosedPipe
}

// Close implements [io.Closer]: the end of file follows what was written.
func (w *stdinPipe) Close() error {
	w.writing.Lock()
	defer w.writing.Unlock()
	w.mu.Lock()
	err, closed := w.err, w.closed
	w.closed = true
	w.mu.Unlock()
	if err != nil || closed {
		return err
	}
	if _, err := w.outcome(0, w.process.currentStream().CloseWrite(aether.Stdin)); err != nil && !errors.Is(err, io.ErrClosedPipe) {
		return err
	}
	return nil
}

// moved says that there is a new connection.
func (w *stdinPipe) moved() {
	if w == nil || w.process.tty {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.wrote && !w.closed && w.err == nil {
		w.err = errStdinLost
	}
}

func (w *stdinPipe) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = err
	}
}

func (p *Process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// feed copies a caller's reader to stdin. An input that breaks off ends the process, because it would look complete.
func (p *Process) feed(r io.Reader) {
	_, err := io.CopyBuffer(writerOnly{p.stdin}, readerOnly{r}, make([]byte, stdinChunk))
	switch {
	case err == nil:
		_ = p.stdin.Close() // a process that is gone needs no end of file; a lost one says so in Wait
	case !errors.Is(err, io.ErrClosedPipe):
		p.cancel(err)
	}
}

// writerOnly and readerOnly hide what would make io.CopyBuffer ignore the buffer.
type (
	writerOnly struct{ io.Writer }
	readerOnly struct{ io.Reader }
)
