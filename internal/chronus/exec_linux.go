package chronus

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/chronus/input"
	"github.com/dsec-io/dsec/internal/chronus/journal"
	"github.com/dsec-io/dsec/internal/chronus/launch"
	"github.com/dsec-io/dsec/internal/chronus/record"
	"github.com/dsec-io/dsec/internal/chronus/request"
	"github.com/dsec-io/dsec/internal/keeper"
)

// execution is one "exec" on its way.
type execution struct {
	shard   *Shard
	box     *box
	req     aether.ExecStart
	session *session
	cmd     launch.Command
	state   int // memfd of a session's or a long script; -1: none
	stdinW  int // our end of stdin; -1: none
	outR    [2]int
	master  int // of the terminal; -1: none
}

// serveExec is method "exec".
func (s *Shard) serveExec(ctx context.Context, st *aether.Stream) error {
	x := &execution{shard: s, state: -1, stdinW: -1, outR: [2]int{-1, -1}, master: -1}
	x.cmd.FDs = [launch.SlotSize]int{-1, -1, -1, -1}
	open := st.Open()
	if err := x.req.Unmarshal(open.Body); err != nil {
		return api.Errorf(api.CodeInvalid, "exec: %v", err)
	}
	var err error
	if x.box, err = s.box(open.Sandbox); err != nil {
		return err
	}
	if err := request.Check(&x.req); err != nil {
		return err
	}
	if x.box.paused() { // else it might wait for its turn behind what stands still
		return errPaused()
	}
	err = x.box.reserve(x.req.ID, x.req.Keep)
	if api.IsCode(err, api.CodeTooMany) {
		s.sweep() // of records that may go, before anybody is refused
		err = x.box.reserve(x.req.ID, x.req.Keep)
	}
	if err != nil {
		return err
	}
	defer x.box.free(x.req.ID)
	if x.req.Session != "" {
		if x.session, err = x.box.session(x.req.Session); err != nil {
			return err
		}
		if err := x.session.acquire(ctx, st); err != nil {
			return err
		}
	}
	var p *process
	err = x.box.enter(st.Done(), func() (err error) {
		p, err = x.start()
		return err
	})
	if err != nil {
		if x.session != nil {
			x.session.release()
		}
		return err
	}
	return x.attend(ctx, st, p)
}

// start brings the command to life. On error nothing of it is left.
func (x *execution) start() (_ *process, err error) {
	defer x.cmd.CloseEnds()
	defer x.closeOurs() // what the process hasn't taken over
	c := &x.cmd
	c.Box, c.Group, c.Linger = x.box.target(), x.req.ID, x.linger()
	if c.Who, err = x.box.accountOf(x.req.User); err != nil {
		return nil, err
	}
	if err := x.plan(); err != nil {
		return nil, err
	}
	if err := x.openStdio(); err != nil {
		return nil, err
	}
	p := &process{shard: x.shard, box: x.box, own: true, outputs: outputs{outs: 2, raw: [2]int{-1, -1}}, turn: turn{state: -1}, meta: meta{
		Box: x.box.Name, ID: x.req.ID, Argv: record.Short(x.req.Argv), Tag: x.req.Tag, Session: x.req.Session, TTY: x.req.TTY,
		Keep: x.req.Keep, Lossless: x.req.Lossless, Log: x.req.Log, MaxOutput: x.req.MaxOutput, TimeoutMS: x.req.TimeoutMS,
	}}
	if len(x.req.Shell) > 0 {
		p.meta.Argv = record.Short([][]byte{[]byte(shellPath), []byte("-c"), x.req.Shell})
	}
	if x.req.TTY {
		p.outs = 1
	}
	var journals [2]*journal.Journal
	if x.req.Keep {
		if journals, err = p.newJournals(); err != nil {
			return nil, err
		}
	}
	p.meta.Started, p.meta.Began = time.Now().UnixNano(), int64(x.box.gate.Now())
	if p.Child, err = x.shard.launcher.Spawn(c); err != nil {
		closeJournals(journals)
		if c.Left != "" {
			x.box.leave(c.Left)
		}
		return nil, x.shellError(err)
	}
	p.meta.PID, p.meta.Inside, p.meta.Group, p.meta.OOMKills = p.PID, p.Inside, c.Group, c.OOMKills
	return p, x.adopt(p, journals)
}

// adopt makes a born command a process. Only here can an error come after something has run.
func (x *execution) adopt(p *process, journals [2]*journal.Journal) error {
	p.raw = x.outR
	if x.master >= 0 {
		p.raw[0] = x.master
	}
	x.outR, x.master = [2]int{-1, -1}, -1
	if x.session != nil {
		p.session, p.state, x.session, x.state = x.session, x.state, nil, -1
		if p.session.begun(p) {
			p.kill(cause{cancelled: true})
		}
	}
	var err error
	switch {
	case x.req.TTY:
		p.stdin = input.OfTerminal(p.inputOf())
	case x.stdinW >= 0:
		p.stdin, err = input.New(p.inputOf(), x.stdinW, false)
		x.stdinW = -1
	}
	if err == nil && x.req.Keep {
		if err = p.keep(journals, [2][]byte{}); err == nil {
			p.run()
		}
	}
	if err != nil {
		p.abandon()
		return api.Errorf(api.CodeInternal, "started, but can't be kept, and so was killed: %v", err)
	}
	return nil
}

// abandon kills and reaps a command that can't become a process.
func (p *process) abandon() {
	p.kill(cause{cancelled: true})
	_ = unix.PidfdSendSignal(p.FD, unix.SIGKILL, nil, 0)
	for {
		poll := []unix.PollFd{{Fd: int32(p.FD), Events: unix.POLLIN}}
		_, _ = unix.Poll(poll, 100)
		if _, err := keeper.WaitPIDFD(p.FD, true); !errors.Is(err, keeper.ErrRunning) {
			break
		}
	}
	p.removeGroup(true)
	p.endSession()
	p.unput()
	if p.stdin != nil {
		p.stdin.Finish()
	}
	for i := range p.outs {
		if p.raw[i] >= 0 {
			_ = unix.Close(p.raw[i])
		}
		if p.src[i] != nil {
			p.src[i].Shut()
			p.src[i].Free()
		}
		if p.out[i] != nil {
			p.out[i].Close()
		}
	}
	p.Close()
}

func (p *process) newJournals() ([2]*journal.Journal, error) {
	var js [2]*journal.Journal
	for i := range p.outs {
		j, err := journal.New(p.journalOptions())
		if err != nil {
			closeJournals(js)
			return js, api.Errorf(api.CodeNotStarted, "%v", err)
		}
		js[i] = j
	}
	return js, nil
}

func (p *process) journalOptions() journal.Options {
	return journal.Options{Keep: p.meta.MaxOutput, Lossless: p.meta.Lossless}
}

func closeJournals(js [2]*journal.Journal) {
	for _, j := range js {
		if j != nil {
			j.Close()
		}
	}
}

// openStdio makes the pipes or the terminal. x.cmd.FDs are the command's ends.
func (x *execution) openStdio() (err error) {
	if x.req.TTY {
		return x.openTerminal()
	}
	x.outR, x.stdinW, err = x.cmd.Pipes(x.req.Stdin)
	return err
}

func (x *execution) closeOurs() {
	for _, fd := range []int{x.outR[0], x.outR[1], x.stdinW, x.master, x.state} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// shellError turns "no /bin/sh" into its own error when the shell wasn't the caller's choice.
func (x *execution) shellError(err error) error {
	implied := len(x.req.Shell) > 0 || x.session != nil
	if implied && (api.IsCode(err, api.CodeCommandNotFound) || api.IsCode(err, api.CodeCommandNotExecutable)) {
		e := api.Errorf(api.CodeNoShell, "the sandbox has no %s", shellPath)
		e.Hint = "run a program by argv"
		return e
	}
	return err
}
