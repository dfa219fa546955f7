package chronus

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/chronus/input"
	"github.com/dsec-io/dsec/internal/chronus/journal"
	"github.com/dsec-io/dsec/internal/chronus/launch"
	"github.com/dsec-io/dsec/internal/chronus/record"
	"github.com/dsec-io/dsec/internal/keeper"
)

// Keys of what the keeper holds.
const (
	boxKey     = "box/"
	pauseKey   = "pause/"
	orphanKey  = "orphan"
	draftKey   = "draft/"
	processKey = "exec/"
	sessionKey = "session/"
)

// meta is what another shard has to know to go on with a process.
type meta = record.Process

func (p *process) key() string { return processKey + p.box.Name + "/" + p.meta.ID }

// keep makes p known and gives the keeper what it needs to survive this shard. prefix is output that has been read
// already. journals may have been made before, so that nothing can fail and little time passes after a birth.
func (p *process) keep(journals [2]*journal.Journal, prefix [2][]byte) error {
	p.stop, p.told = make(chan struct{}), make(chan int32, 1)
	p.out = journals
	for i := range p.outs {
		src, err := journal.NewSource(p.raw[i])
		if err != nil {
			return fmt.Errorf("output %d: %w", i, err)
		}
		p.src[i], p.raw[i] = src, -1
		if p.meta.TTY {
			if err := src.AddPipe(); err != nil {
				return err
			}
		}
		if err := p.out[i].Store(prefix[i]); err != nil {
			return err
		}
	}
	p.put()
	return p.box.add(p)
}

// run starts what a kept process needs; result tells that it has ended already.
func (p *process) run() {
	for i := range p.outs {
		if src, j := p.src[i], p.out[i]; src != nil {
			p.wg.Go(func() {
				journal.Pump(src, j, p.stop, p.notify)
				p.afterOutput()
			})
		} else {
			j.End()
		}
	}
	if p.result != nil {
		for i := range p.outs {
			p.out[i].SetOver()
			if p.src[i] != nil {
				p.src[i].Settle()
			}
		}
		p.notify()
		return
	}
	p.startTimer()
	p.wg.Go(func() {
		p.wait()
		p.afterOutput()
	})
}

// afterOutput gives back what is no longer needed once the command has ended and its outputs have.
func (p *process) afterOutput() {
	if !p.outputsEnded() {
		return
	}
	p.mu.Lock()
	if p.result == nil || p.files || p.gone {
		p.mu.Unlock()
		return
	}
	p.files = true
	p.mu.Unlock()
	p.put() // without them, so that the keeper closes its copies too
	p.closing(func() {
		for i := range p.outs {
			if p.src[i] != nil {
				p.src[i].Shut()
				p.src[i].Free()
			}
			p.out[i].Trim()
		}
		p.Close()
	})
	p.notify()
	p.mu.Lock()
	drop := p.drop
	p.mu.Unlock()
	if drop {
		p.shard.sweepSoon()
	}
}

// outputsEnded tells whether every writer of the outputs has gone.
func (p *process) outputsEnded() bool {
	for _, j := range p.out[:p.outs] {
		if !j.Ended() {
			return false
		}
	}
	return true
}

// item is p as the keeper holds it.
func (p *process) item() keeper.Item {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.meta
	m.Result, m.FDs = p.result, nil
	m.Cause = [3]bool{p.cause.timedOut, p.cause.cancelled, p.cause.oom}
	if !p.ended.IsZero() {
		m.Ended = p.ended.UnixNano()
	}
	it := keeper.Item{Key: p.key(), Wait: keeper.NoWait}
	add := func(name string, fd int) {
		if fd >= 0 {
			m.FDs = append(m.FDs, name)
			it.FDs = append(it.FDs, fd)
		}
	}
	if !p.files {
		if p.result == nil {
			it.Wait = 0
			add(record.PID, p.FD)
			if p.stdin != nil {
				add(record.Stdin, p.stdin.Number())
			}
			add(record.State, p.state)
		}
		for i := range p.outs {
			if s := p.src[i]; s != nil {
				r, w := s.Pipe()
				add(record.Numbered(record.Source, i), s.FD())
				add(record.MidR, r)
				add(record.MidW, w)
			}
		}
	}
	for i := range p.outs {
		if !p.files || p.out[i].Total() > 0 { // nothing more comes into an empty one
			add(record.Numbered(record.Journal, i), p.out[i].FD())
		}
	}
	it.Blob, _ = json.Marshal(&m) // plain data: can't fail
	return it
}

// put gives the keeper p as it is now. Without a keeper the process goes on unprotected, and is put again when there is
// a new one.
func (p *process) put() {
	p.putMu.Lock()
	defer p.putMu.Unlock()
	it := p.item()
	p.shard.kept.Add(int64(len(it.FDs) - p.kept))
	p.kept = len(it.FDs)
	if err := p.shard.keeper().Put(it); err != nil {
		p.shard.log.Warn("process not kept", slog.String("sandbox", p.box.Name), slog.String("process", p.meta.ID), slog.Any("err", err))
	}
}

// unput makes the keeper forget p.
func (p *process) unput() {
	p.putMu.Lock()
	defer p.putMu.Unlock()
	p.shard.del(p.key())
	p.shard.kept.Add(-int64(p.kept))
	p.kept = 0
}

// closing runs f, which closes descriptors, while none of their numbers is on its way to the keeper.
func (p *process) closing(f func()) {
	p.putMu.Lock()
	defer p.putMu.Unlock()
	f()
}

// inputOf is p for its input.
func (p *process) inputOf() input.Command {
	return input.Command{
		Keep: p.meta.Keep, Closing: p.closing, Put: p.put,
		Terminal: func() *os.File { return p.src[0].File() },
	}
}

// fdsOfOne is how many descriptors a process has in the keeper at most.
const fdsOfOne = 8

// reserve takes an id for a command that is about to start. free gives it back when the command is over, or is listed.
func (b *box) reserve(id string, keep bool) error {
	kept := b.shard.kept.Load()
	b.mu.Lock()
	defer b.mu.Unlock()
	// Records of ended processes must not be in the way of new ones.
	if kept > b.shard.budget*3/4 || len(b.procs) > maxEnded {
		b.shard.sweepSoon()
	}
	_, taken := b.reserved[id]
	switch {
	case b.gone:
		return api.Errorf(api.CodeSandboxDied, "the sandbox has ended")
	case taken || b.procs[id] != nil:
		return api.Errorf(api.CodeConflict, "process %s exists", id)
	case keep && len(b.procs) >= maxProcesses:
		return api.Errorf(api.CodeTooMany, "the sandbox has %d processes that are kept; forget some", len(b.procs))
	case keep && kept+fdsOfOne > b.shard.budget:
		return api.Errorf(api.CodeTooMany, "the sandboxes of this project on this node have as many kept processes as can be kept")
	}
	b.reserved[id] = struct{}{}
	return nil
}

func (b *box) free(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.reserved, id)
}

// add puts p, whose id is reserved, into the box's list.
func (b *box) add(p *process) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.gone {
		return api.Errorf(api.CodeSandboxDied, "the sandbox has ended")
	}
	b.procs[p.meta.ID] = p
	return nil
}

func (b *box) process(id string) (*process, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p := b.procs[id]; p != nil {
		return p, nil
	}
	return nil, api.Errorf(api.CodeNoSuchProcess, "no process %q, or its record has expired", id)
}

// forget gives up everything about p. It is over, or its sandbox is.
func (p *process) forget() {
	p.mu.Lock()
	if p.gone {
		p.mu.Unlock()
		return
	}
	p.gone = true
	if p.timer != nil {
		p.timer.Stop()
	}
	files := p.files
	readers := slices.Collect(maps.Keys(p.followers))
	p.mu.Unlock()
	p.box.mu.Lock()
	if p.box.procs[p.meta.ID] == p {
		delete(p.box.procs, p.meta.ID)
	}
	p.box.mu.Unlock()
	close(p.stop)
	p.unput()
	if p.stdin != nil {
		p.stdin.Finish()
	}
	if !files {
		p.closing(func() {
			for _, s := range p.src[:p.outs] {
				if s != nil {
					s.Shut()
				}
			}
			p.Close()
		})
	}
	p.notify()
	for _, f := range readers {
		f.removed() // it may be waiting for its caller to read
	}
	p.following.Wait()
	p.wg.Wait()
	for i := range p.outs {
		if s := p.src[i]; s != nil {
			s.Free()
		}
		p.out[i].Close()
	}
}

// restore makes a process of what an earlier shard has put.
func (s *Shard) restore(b *box, it *keeper.Item) (*process, error) {
	p := &process{
		shard: s, box: b, outputs: outputs{outs: 2, raw: [2]int{-1, -1}}, turn: turn{state: -1}, Child: launch.Child{FD: -1},
		stop: make(chan struct{}), told: make(chan int32, 1),
	}
	if err := json.Unmarshal(it.Blob, &p.meta); err != nil {
		return nil, fmt.Errorf("read record: %w", err)
	}
	m := &p.meta
	if m.TTY {
		p.outs = 1
	}
	p.PID, p.Inside = m.PID, m.Inside
	p.result, p.cause = m.Result, cause{m.Cause[0], m.Cause[1], m.Cause[2]}
	if m.Ended != 0 {
		p.ended = time.Unix(0, m.Ended)
	}
	if now := b.gate.Now(); m.Began == 0 { // of an earlier version
		m.Began, m.Over = int64(now-time.Since(time.Unix(0, m.Started))), int64(now)
	}
	if len(m.FDs) != len(it.FDs) {
		return nil, fmt.Errorf("%d descriptors, %d names", len(it.FDs), len(m.FDs))
	}
	byName := make(map[string]int)
	for i, name := range m.FDs {
		byName[name] = it.FDs[i]
	}
	take := func(name string) int {
		if fd, ok := byName[name]; ok {
			return fd
		}
		return -1
	}
	if err := p.restoreFiles(take); err != nil {
		return nil, err
	}
	if it.Status != nil {
		p.told <- *it.Status
	}
	return p, nil
}

func (p *process) restoreFiles(take func(string) int) error {
	for i := range p.outs {
		var err error
		if fd := take(record.Numbered(record.Journal, i)); fd >= 0 {
			p.out[i], err = journal.Restore(fd, p.journalOptions())
		} else {
			p.out[i], err = journal.New(p.journalOptions())
		}
		if err != nil {
			return err
		}
		src := take(record.Numbered(record.Source, i))
		if src < 0 {
			continue
		}
		if p.src[i], err = journal.NewSource(src); err != nil {
			return err
		}
		p.src[i].SetPipe(take(record.MidR), take(record.MidW))
	}
	if p.result != nil {
		p.files = p.src[0] == nil && (p.outs == 1 || p.src[1] == nil)
		return nil
	}
	if p.FD = take(record.PID); p.FD < 0 {
		return errors.New("no pidfd")
	}
	p.File = os.NewFile(uintptr(p.FD), "pidfd")
	p.state = take(record.State)
	if p.meta.TTY {
		p.stdin = input.OfTerminal(p.inputOf())
	} else if fd := take(record.Stdin); fd >= 0 {
		var err error
		if p.stdin, err = input.New(p.inputOf(), fd, true); err != nil {
			return err
		}
	}
	return nil
}
