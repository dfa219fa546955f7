package libdsec

import (
	"context"
	"crypto/rand"
	"net/http"
	"strings"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
)

// processRandom is how many random characters of five bits a process id has.
const processRandom = 16

// Start starts a command and returns when it runs. Its output can be read, or handled as it comes; attaching to it by
// id works from elsewhere too. Unless it is detached, the end of ctx kills the whole tree of it.
func (s *Sandbox) Start(ctx context.Context, cmd Cmd, o StartOptions) (*Process, error) {
	if cmd.Stdin != nil && o.StdinPipe {
		return nil, api.FieldError(api.CodeInvalid, "stdin", "", "a process has either a reader or a pipe as its stdin")
	}
	if cmd.Stdin != nil && cmd.Key != "" {
		return nil, api.FieldError(api.CodeUnsupportedConstraint, "stdin", "use a pipe", "a process under a key can't be given a reader: a repeat couldn't tell how far it was read")
	}
	m := cmd.message()
	m.Stdin = m.Stdin || o.StdinPipe
	m.ID = "p" + strings.ToLower(rand.Text()[:processRandom])
	m.Keep, m.Lossless, m.Tag = true, o.Lossless, o.Tag
	if o.TTY != nil {
		m.TTY, m.Rows, m.Cols = true, uint32(o.TTY.Rows), uint32(o.TTY.Cols)
	}
	p := &Process{sandbox: s, handlers: o.Handlers, detach: o.Detach, tty: m.TTY, id: m.ID}
	start := func() (*aether.Stream, aether.Started, error) {
		return s.startStream(ctx, m, p.openAttach(position{}, m.Stdin, false))
	}
	if cmd.Key != "" {
		start = func() (*aether.Stream, aether.Started, error) {
			return s.startKeyed(ctx, s.openExec(m, cmd.Key), m.Stdin)
		}
	}
	stream, began, err := start()
	if err != nil {
		return nil, err
	}
	p.id, p.pid, p.started = began.ID, int(began.PIDInside), time.Unix(0, began.StartedAtUnixNano)
	if m.Stdin {
		p.stdin = newStdinPipe(p)
	}
	p.run(ctx, stream, position{})
	if cmd.Stdin != nil {
		go p.feed(cmd.Stdin) // a reader can't be interrupted, so nobody waits for it
	}
	return p, nil
}

// startStream opens the stream and waits until the command runs. Only a failure that proves that nothing ran is followed
// by another try. After one that leaves it open the process is looked for by the id that it was given here.
func (s *Sandbox) startStream(ctx context.Context, m aether.ExecStart, at aether.Open) (*aether.Stream, aether.Started, error) {
	pause := firstPause
	for try := 1; ; try++ {
		stream, began, err := s.begin(ctx, s.openExec(m, ""))
		switch {
		case err == nil:
			return stream, began, nil
		case isUnsent(err):
			return nil, began, err // that has been tried several times
		case try < sendTries && nothingRan(err, http.MethodPost):
		case transient(err):
			if stream, began, again := s.begin(ctx, at); again == nil {
				return stream, began, nil
			}
			return nil, began, err
		default:
			return nil, began, err
		}
		if err := rest(ctx, waitFor(err, pause)); err != nil {
			return nil, aether.Started{}, err
		}
		pause *= 2
	}
}

// begin opens a stream and takes its first message, which says that a process is at the other end.
func (s *Sandbox) begin(ctx context.Context, o aether.Open) (*aether.Stream, aether.Started, error) {
	stream, began, _, err := s.beginOnce(ctx, o)
	return stream, began, err
}

// beginOnce also tells whether the process was started by an earlier request with the same key.
func (s *Sandbox) beginOnce(ctx context.Context, o aether.Open) (_ *aether.Stream, began aether.Started, replayed bool, _ error) {
	stream, err := s.client.open(ctx, o)
	if err != nil {
		return nil, began, false, err
	}
	f, err := stream.Recv(ctx)
	if err == nil && f.Channel == aether.Message && f.Type == aether.MsgReplayed {
		replayed = true
		f.Release()
		f, err = stream.Recv(ctx)
	}
	if err != nil {
		stream.Reset(nil)
		return nil, began, replayed, s.client.streamError(ctx, err)
	}
	defer f.Release()
	if x := (aether.Exited{}); f.Channel == aether.Message && f.Type == aether.MsgExited && x.Unmarshal(f.Data) == nil && x.InfraError != "" {
		// It may run all the same; whoever knows its id, or its key, can find out.
		stream.Reset(nil)
		return nil, began, replayed, api.Errorf(api.CodeUnavailable, "whether the process has started isn't known: %s", x.InfraError)
	}
	if f.Channel != aether.Message || f.Type != aether.MsgStarted || began.Unmarshal(f.Data) != nil {
		stream.Reset(nil)
		return nil, began, replayed, api.Errorf(api.CodeInternal, "the server didn't say that the process started")
	}
	return stream, began, replayed, nil
}

// Attach connects to a process that was started before, running or ended, and gives its output from the wanted offsets
// on. The process doesn't end with ctx or with this Process.
func (s *Sandbox) Attach(ctx context.Context, process string, o AttachOptions) (*Process, error) {
	p := &Process{sandbox: s, handlers: o.Handlers, attached: true, detach: true, id: process}
	if o.FromNow {
		p.handlers.NoReconnect = true
	}
	at := position{stdout: o.StdoutOffset, stderr: o.StderrOffset}
	stream, began, err := s.begin(ctx, p.openAttach(at, o.Stdin, o.FromNow))
	if err != nil {
		return nil, err
	}
	p.pid, p.started = int(began.PIDInside), time.Unix(0, began.StartedAtUnixNano)
	if o.Stdin {
		p.stdin = newStdinPipe(p)
	}
	p.run(ctx, stream, at)
	return p, nil
}

// position is where a reader stands in each output.
type position struct{ stdout, stderr int64 }

func (p *Process) openAttach(at position, stdin, fromNow bool) aether.Open {
	m := aether.Attach{ID: p.id, StdoutOffset: at.stdout, StderrOffset: at.stderr, Stdin: stdin, FromNow: fromNow}
	return aether.Open{Method: "attach", Sandbox: p.sandbox.id, Body: m.AppendTo(nil)}
}

// run starts following the process.
func (p *Process) run(ctx context.Context, stream *aether.Stream, at position) {
	p.stdout, p.stderr = newFlow(), newFlow()
	p.stdout.offset, p.stderr.offset = at.stdout, at.stderr
	p.done = make(chan struct{})
	p.stream = stream
	if p.detach && !p.attached {
		ctx = context.WithoutCancel(ctx)
	}
	ctx, p.cancel = context.WithCancelCause(ctx)
	p.deliver(p.stdout, p.handlers.OnStdout)
	p.deliver(p.stderr, p.handlers.OnStderr)
	p.wg.Go(func() { p.follow(ctx) })
}

// deliver calls a handler for each piece of an output.
func (p *Process) deliver(f *flow, handler func([]byte) error) {
	if handler == nil {
		return
	}
	f.claim()
	p.delivery.Go(func() {
		for {
			frame, err := f.next()
			if err != nil {
				return
			}
			err = p.hand(frame.Channel, frame.Data, handler)
			frame.Release()
			if err != nil {
				f.abandon(err)
				p.cancel(err)
				return
			}
		}
	})
}

// hand gives a handler a piece of output, or the news of a gap in it.
func (p *Process) hand(ch aether.Channel, data []byte, handler func([]byte) error) error {
	if ch == aether.Message {
		g, err := readGap(data)
		if err != nil {
			return err
		}
		return p.tellGap(g)
	}
	p.handling.Lock()
	defer p.handling.Unlock()
	return handler(data)
}
