package sandboxcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/cmd/dsec/cli"
	"github.com/dsec-io/dsec/cmd/dsec/show"
	"github.com/dsec-io/dsec/libdsec"
)

// hangupGrace is how long a remote command has between the hangup it's told of and its end.
const hangupGrace = 2 * time.Second

// connector starts a command on a terminal, or attaches to one.
type connector func(context.Context, libdsec.StartOptions) (*libdsec.Process, error)

// interactive runs a command on a remote terminal that stands in for ours.
func (a app) interactive(ctx context.Context, sb *libdsec.Sandbox, cmd libdsec.Cmd, ex *execFlags) error {
	if t := a.Getenv("TERM"); t != "" && cmd.Env["TERM"] == "" {
		env := map[string]string{"TERM": t}
		maps.Copy(env, cmd.Env)
		cmd.Env = env
	}
	return a.onTerminal(ctx, ex, func(ctx context.Context, o libdsec.StartOptions) (*libdsec.Process, error) {
		return a.startOrShell(ctx, sb, cmd, o)
	})
}

// onTerminal connects our terminal with a remote one until the command there ends. Whichever way it returns, our
// terminal is as it was.
func (a app) onTerminal(ctx context.Context, ex *execFlags, connect connector) error {
	t := newTerminalSession(a, ex)
	defer t.raw.restore()
	ctx, t.cancel = context.WithCancelCause(ctx)
	defer t.cancel(nil)
	defer a.Signals.Route(func(s os.Signal) { t.hangup(ctx, s) })()

	p, err := connect(ctx, libdsec.StartOptions{
		StdinPipe: ex.stdin, TTY: &t.started, Lossless: true,
		Handlers: libdsec.Handlers{OnStdout: t.print, OnStderr: t.print, OnGap: a.reportGap},
	})
	if err != nil {
		return err
	}
	t.process = p
	close(t.connected)
	return t.serve(ctx)
}

// terminalSession is our end of a remote terminal.
type terminalSession struct {
	app     app
	in      *os.File // our terminal; nil when stdin isn't one or isn't connected
	sizeFD  int      // the terminal whose size counts; -1: none
	raw     rawTerminal
	keys    []byte
	cancel  context.CancelCauseFunc
	started api.Size         // the size that the remote terminal was started with
	process *libdsec.Process // set before connected is closed

	connected chan struct{} // closed when there's a process
	ready     chan struct{} // closed when output may be shown

	left atomic.Pointer[error] // why we leave before the command ends: detached, or interrupted
}

func newTerminalSession(a app, ex *execFlags) *terminalSession {
	t := &terminalSession{app: a, sizeFD: -1, keys: ex.keys, connected: make(chan struct{}), ready: make(chan struct{})}
	if fd, ok := cli.Terminal(a.Stdin); ok {
		t.sizeFD = fd
		if ex.stdin {
			t.in, _ = a.Stdin.(*os.File)
			t.raw.fd = fd
		}
	}
	if fd, ok := cli.Terminal(a.Stdout); ok {
		t.sizeFD = fd
	}
	t.started = t.size()
	return t
}

func (t *terminalSession) size() api.Size { return sizeOf(t.sizeFD) }

// print shows output, once our terminal leaves it alone.
func (t *terminalSession) print(b []byte) error {
	<-t.ready
	_, err := t.app.Stdout.Write(b)
	return err
}

// serve is the session itself.
func (t *terminalSession) serve(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	stop, err := t.begin(ctx, &wg)
	close(t.ready) // also when it failed: then the output of a command that is being killed is waited for
	if err != nil {
		t.cancel(err)
	}
	st, err := t.process.Wait(context.WithoutCancel(ctx))
	stop()
	wg.Wait()
	t.raw.restore()
	if left := t.left.Load(); left != nil {
		if errors.Is(*left, cli.ErrDetached) {
			fmt.Fprintf(t.app.Stderr, "\r\ndetached: process %s goes on\n", show.Line(t.process.ID()))
		}
		return *left
	}
	return t.app.finish(st, err)
}

// begin sets raw mode and starts what runs beside the output. The returned function ends that.
func (t *terminalSession) begin(ctx context.Context, wg *sync.WaitGroup) (stop func(), err error) {
	done := make(chan struct{})
	stop = func() { close(done) }
	events := make(chan os.Signal, 8) // a burst of size changes may be dropped: the last one is asked for anyway
	signal.Notify(events, syscall.SIGWINCH, syscall.SIGCONT, syscall.SIGTSTP, syscall.SIGQUIT, syscall.SIGPIPE)
	wg.Go(func() {
		defer t.raw.rescue()
		defer signal.Stop(events)
		t.watch(ctx, events, done)
	})
	if t.in == nil {
		return stop, nil
	}
	if err := t.raw.enter(); err != nil {
		return stop, err
	}
	in, err := newInterruptible(t.in)
	if err != nil {
		return stop, fmt.Errorf("read the terminal: %w", err)
	}
	wg.Go(func() {
		defer t.raw.rescue()
		defer in.close()
		t.send(ctx, in)
	})
	return func() { close(done); in.stop() }, nil
}

// watch follows our terminal's size, and our being stopped and continued.
func (t *terminalSession) watch(ctx context.Context, events <-chan os.Signal, done <-chan struct{}) {
	last := t.started
	resize := func() {
		if size := t.size(); size != last && t.process.Resize(ctx, size) == nil {
			last = size
		}
	}
	resize() // it may have changed before we listened
	for {
		select {
		case <-done:
			return
		case s := <-events:
			switch s {
			case syscall.SIGTSTP:
				t.suspend()
			case syscall.SIGQUIT:
				t.hangup(ctx, s)
				continue
			case syscall.SIGPIPE:
				continue // caught so that it doesn't end us with a raw terminal; the write's error does the rest
			case syscall.SIGCONT:
				_ = t.raw.again() // a terminal that is gone shows in reads
			}
			resize()
		}
	}
}

// suspend stops us as the sender of a SIGTSTP wanted. (Ctrl-Z doesn't come here: it goes to the remote.)
func (t *terminalSession) suspend() {
	t.raw.restore()
	_ = syscall.Kill(syscall.Getpid(), syscall.SIGSTOP) // to ourselves
	if t.in != nil {
		_ = t.raw.enter() // a terminal that is gone shows in reads
	}
}

// send passes on what is typed, until told to stop.
func (t *terminalSession) send(ctx context.Context, in io.Reader) {
	filter := detachFilter{keys: t.keys}
	buf := make([]byte, 4096)
	for {
		n, err := in.Read(buf)
		if err != nil {
			if !errors.Is(err, errStopReading) {
				t.hangup(ctx, syscall.SIGHUP) // our terminal is gone
			}
			return
		}
		pass, detach := filter.feed(buf[:n])
		if len(pass) > 0 {
			if _, err := t.process.Stdin().Write(pass); err != nil {
				return // the process has ended, or Wait says what happened
			}
		}
		if detach {
			t.left.Store(new(cli.ErrDetached))
			_ = t.process.Close() // letting go can't go wrong
			return
		}
	}
}

// hangup tells the remote command that its terminal goes, and ends it if that doesn't.
func (t *terminalSession) hangup(ctx context.Context, s os.Signal) {
	var reason error = &cli.InterruptedError{Signal: s}
	if !t.left.CompareAndSwap(nil, &reason) {
		return
	}
	select {
	case <-t.connected:
		forward(context.WithoutCancel(ctx), t.process, syscall.SIGHUP)
		time.AfterFunc(hangupGrace, func() { t.cancel(reason) })
	default:
		t.cancel(reason)
	}
}
