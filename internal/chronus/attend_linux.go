package chronus

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/chronus/journal"
	"github.com/dsec-io/dsec/internal/keeper"
)

// When a short command is looked at. At each time it becomes a process if a pipe of it is nearly full, after the last in
// any case.
func quickTimes() [3]time.Duration {
	return [...]time.Duration{2 * time.Millisecond, 5 * time.Millisecond, 15 * time.Millisecond}
}

const (
	nearlyFull = 48 << 10               // of a pipe of 64 KiB
	eofGrace   = 20 * time.Millisecond  // see quickEnd
	shortest   = 100 * time.Millisecond // a command with a time-out below this is a process from the start
)

// errTold ends what listens to a caller who has been told everything.
var errTold = errors.New("the end has been told")

// attend serves the stream of a command that has just started until its end is told or the caller is gone.
func (x *execution) attend(ctx context.Context, st *aether.Stream, p *process) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var in sync.WaitGroup
	defer in.Wait()
	defer cancel(errTold)
	listen := func() { in.Go(func() { p.listen(ctx, st) }) }
	if x.req.Stdin || x.req.TTY {
		p.takeInput(st)
	}
	if !x.req.Keep {
		if x.req.Stdin {
			listen()
		}
		done, err := p.quick(ctx, st)
		if done || err != nil {
			return err
		}
	}
	st.Hold()
	_ = st.Send(ctx, aether.MsgStarted, p.started())
	st.Flush()
	if x.req.Keep || !x.req.Stdin {
		listen()
	}
	f := &follower{p: p, st: st, bounded: !x.req.Keep && x.req.MaxOutput > 0}
	if err := f.run(ctx); err != nil && !x.req.Keep {
		p.cancel() // the caller has gone
	}
	cancel(errTold)
	p.unblock(&in)
	if !x.req.Keep {
		p.release()
	}
	return nil
}

// attach serves one more stream of a process.
func (p *process) attach(ctx context.Context, st *aether.Stream, f *follower) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var in sync.WaitGroup
	in.Go(func() { _ = p.hear(ctx, st) })
	st.Hold()
	_ = st.Send(ctx, aether.MsgStarted, p.started())
	st.Flush()
	_ = f.run(ctx) // an error is the end of the stream
	cancel(errTold)
	p.unblock(&in)
	return nil
}

// unblock waits for the goroutine that feeds the command, which may be waiting for the command to read.
func (p *process) unblock(in *sync.WaitGroup) {
	if p.stdin != nil {
		p.stdin.Hurry(true)
		defer p.stdin.Hurry(false)
	}
	in.Wait()
}

func (p *process) started() []byte {
	m := aether.Started{ID: p.meta.ID, PIDInside: int32(p.Inside), StartedAtUnixNano: p.meta.Started}
	return m.AppendTo(nil)
}

// takeInput makes st the one whose input counts. The one before is told.
func (p *process) takeInput(st *aether.Stream) {
	p.mu.Lock()
	old := p.owner
	p.owner = st
	p.mu.Unlock()
	if old != nil && old != st {
		old.Reset(api.Errorf(api.CodeConflict, "another caller has taken the process's input"))
	}
}

// listen handles what the caller sends. A caller that has closed its side in order goes on listening; one that is gone
// has cancelled a command that isn't to be kept.
func (p *process) listen(ctx context.Context, st *aether.Stream) {
	err := p.hear(ctx, st)
	if ctx.Err() == nil && !errors.Is(err, io.EOF) && !p.meta.Keep {
		p.cancel()
	}
}

// hear handles input, signals and sizes until the stream ends or ctx does.
func (p *process) hear(ctx context.Context, st *aether.Stream) error {
	var ack aether.Ack
	for {
		f, err := st.Recv(ctx)
		if err != nil {
			return err
		}
		switch {
		case f.Channel == aether.Message && f.Type == aether.MsgAck: // all input that came before has been taken, or won't be
			_ = st.Send(ctx, aether.MsgAck, ack.AppendTo(nil)) // a caller that has gone needs none
		default:
			ack.Dropped = !p.receive(ctx, st, &f) || ack.Dropped
		}
		f.Release()
	}
}

// receive handles a frame, and tells whether its input, if it is input, has been taken.
func (p *process) receive(ctx context.Context, st *aether.Stream, f *aether.Frame) (taken bool) {
	taken = true
	p.mu.Lock()
	mine := p.owner == st
	p.mu.Unlock()
	switch f.Channel { //nolint:exhaustive // a caller sends nothing else that means something
	case aether.Stdin:
		if p.stdin == nil || !mine {
			return false
		}
		if len(f.Data) > 0 {
			taken = p.stdin.Write(ctx, f.Data)
		}
		if f.End {
			p.stdin.Close(ctx)
		}
	case aether.Message:
		switch f.Type {
		case aether.MsgSignal:
			var m aether.Signal
			if m.Unmarshal(f.Data) == nil {
				_ = p.deliver(&m) // it has ended: the caller learns that anyway
			}
		case aether.MsgResize:
			var m aether.Resize
			if m.Unmarshal(f.Data) == nil {
				_ = p.resize(&m)
			}
		}
	}
	return taken
}

// quick waits for a short command's end and answers. done is false when it has to become a process, which it is then.
func (p *process) quick(ctx context.Context, st *aether.Stream) (done bool, err error) {
	if p.File == nil {
		raw, err := keeper.WaitPIDFD(p.FD, true)
		if !errors.Is(err, keeper.ErrRunning) {
			return p.quickEnd(ctx, st, raw, err)
		}
		p.Await()
	}
	began := time.Now()
	conn, err := p.File.SyscallConn()
	if err != nil {
		return false, err
	}
	if !hasty(p.meta.TimeoutMS) {
		times := quickTimes()
		for i, d := range times {
			_ = p.File.SetReadDeadline(began.Add(d))
			var raw int32
			var waitErr error
			err := conn.Read(func(fd uintptr) bool {
				raw, waitErr = keeper.WaitPIDFD(int(fd), true)
				return !errors.Is(waitErr, keeper.ErrRunning)
			})
			if err == nil {
				return p.quickEnd(ctx, st, raw, waitErr)
			}
			if !errors.Is(err, os.ErrDeadlineExceeded) || i == len(times)-1 || p.pipesFull() {
				break
			}
		}
		_ = p.File.SetReadDeadline(time.Time{})
	}
	return false, p.promote([2][]byte{})
}

// hasty tells whether a time-out is so short that the command has to be a process from the start.
func hasty(timeoutMS int64) bool {
	return timeoutMS != 0 && time.Duration(timeoutMS)*time.Millisecond < shortest
}

// linger is how long the start may wait for the command's end: as long as nobody would look at it anyway.
func (x *execution) linger() time.Duration {
	if x.req.Keep || x.req.Stdin || hasty(x.req.TimeoutMS) {
		return 0
	}
	return quickTimes()[0]
}

// promote makes a running or just ended command a process.
func (p *process) promote(prefix [2][]byte) error {
	journals, err := p.newJournals()
	if err == nil {
		err = p.keep(journals, prefix)
	}
	if err != nil {
		closeJournals(journals)
		p.abandon()
		return api.Errorf(api.CodeInternal, "started, but can't be kept, and so was killed: %v", err)
	}
	p.run()
	return nil
}

func (p *process) pipesFull() bool {
	for _, fd := range p.raw[:p.outs] {
		if n, err := unix.IoctlGetInt(fd, unix.TIOCINQ); err == nil && n >= nearlyFull {
			return true
		}
	}
	return false
}

// quickEnd answers for a command that has ended and been reaped. When a background child still holds an output, the
// command becomes a process that has ended, so that what the child writes isn't lost and nobody waits for it.
func (p *process) quickEnd(ctx context.Context, st *aether.Stream, raw int32, waitErr error) (bool, error) {
	p.mu.Lock()
	p.reaped = true
	p.mu.Unlock()
	lost := ""
	if waitErr != nil {
		lost = "wait for the command: " + waitErr.Error()
	}
	p.conclude(raw, lost)
	p.notify() // who has interrupted it waits for its end
	out := p.shard.outputs.Get().(*[2][]byte)
	defer p.shard.outputs.Put(out)
	eof := true
	for i := range out {
		var ended bool
		out[i], ended = p.readToEnd(i, out[i][:0])
		eof = eof && ended
	}
	if !eof {
		p.Await()
		return false, p.promote(*out)
	}
	for i := range p.raw {
		_ = unix.Close(p.raw[i])
		p.raw[i] = -1
	}
	p.Close()
	return true, p.answer(ctx, st, *out)
}

// readToEnd reads what the pipe of an ended command holds. Another command's helper may hold the pipe's other end for
// the moment between its birth and its first steps, so without a left-over process the end is waited for a little.
func (p *process) readToEnd(i int, b []byte) ([]byte, bool) {
	const limit = 2 * journal.MaxPipe
	var eof bool
	var err error
	for end := time.Now().Add(eofGrace); ; {
		if b, eof, err = journal.ReadAvailable(p.raw[i], b, limit); eof || err != nil {
			return b, eof
		}
		left := time.Until(end)
		if p.result.LeftProcesses || left <= 0 {
			return b, false
		}
		poll := []unix.PollFd{{Fd: int32(p.raw[i]), Events: unix.POLLIN}}
		_, _ = unix.Poll(poll, int(left/time.Millisecond)+1)
	}
}

// answer sends a short command's whole story in one go.
func (p *process) answer(ctx context.Context, st *aether.Stream, out [2][]byte) error {
	r := p.result
	r.StdoutTotal, r.StderrTotal = int64(len(out[0])), int64(len(out[1]))
	keep := p.meta.MaxOutput
	if keep <= 0 {
		keep = journal.DefaultKeep
	}
	st.Hold()
	_ = st.Send(ctx, aether.MsgStarted, p.started())
	for i, b := range out {
		ch := channels()[i]
		if n := int64(len(b)); n > keep {
			r.Truncated = true
			head, tail := keep/2, keep-keep/2
			_ = st.Write(ctx, ch, b[:head])
			gap := aether.Gap{Channel: uint8(ch), Offset: head, Length: n - keep}
			_ = st.Send(ctx, aether.MsgGap, gap.AppendTo(nil))
			b = b[n-tail:]
		}
		if len(b) > 0 {
			_ = st.Write(ctx, ch, b)
		}
	}
	_ = st.Send(ctx, aether.MsgExited, r.AppendTo(nil))
	return st.Close()
}

func channels() [2]aether.Channel { return [...]aether.Channel{aether.Stdout, aether.Stderr} }

// release is for the end of a call whose process isn't to be kept: it is forgotten, unless a background child holds an
// output. Then it stays until that has ended.
func (p *process) release() {
	p.mu.Lock()
	p.drop = true
	over := p.result != nil
	p.mu.Unlock()
	if over && p.outputsEnded() {
		p.wg.Wait()
		p.forget()
	}
}
