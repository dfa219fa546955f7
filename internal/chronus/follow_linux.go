package chronus

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/chronus/journal"
)

// follower sends a process's output, from given offsets on, to one stream, and its end.
type follower struct {
	p        *process
	st       *aether.Stream
	off      [2]int64
	fromNow  bool // instead of off: where the outputs are
	noFollow bool // end after what the process has written so far
	bounded  bool // send what is kept of the whole, not everything: the first part as it comes, the last at the end

	cursor    [2]*journal.Cursor
	truncated bool
	buf       []byte
	end       *aether.Exited // once known
	upTo      [2]int64       // with noFollow: how far the outputs were
	limit     [2]int64       // with end: what belongs to it; a background child may go on writing
}

const followChunk = 64 << 10

// begin keeps the journals open until finish; false: the process has been removed.
func (f *follower) begin() bool {
	p := f.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gone {
		return false
	}
	if p.followers == nil {
		p.followers = make(map[*follower]struct{})
	}
	p.followers[f] = struct{}{}
	p.following.Add(1)
	return true
}

func (f *follower) finish() {
	f.p.mu.Lock()
	delete(f.p.followers, f)
	f.p.mu.Unlock()
	f.p.following.Done()
}

// removed tells a caller that the process it reads from is no longer known.
func (f *follower) removed() { f.st.Reset(f.p.removed()) }

// run returns nil after the end has been told, and an error when the stream ended before.
func (f *follower) run(ctx context.Context) error {
	p := f.p
	if !f.begin() {
		f.removed()
		return context.Canceled
	}
	defer f.finish()
	for i, j := range p.out[:p.outs] {
		if f.fromNow {
			f.off[i] = j.Total()
		}
		if !f.bounded {
			c := j.Attach(f.off[i])
			defer j.Detach(c)
			f.cursor[i] = c
		}
	}
	bufp := p.shard.chunks.Get().(*[]byte)
	defer p.shard.chunks.Put(bufp)
	f.buf = *bufp
	if f.noFollow {
		f.upTo = p.written(ctx)
	}
	for {
		changed := p.watch()
		if f.end == nil { // before looking at the outputs: what follows sees all that came before the end
			f.end = p.finished()
			f.limit = f.limits()
		}
		sent := false
		for i := range p.outs {
			n, err := f.send(ctx, i)
			if err != nil {
				return err
			}
			sent = sent || n
		}
		switch {
		case sent:
			continue
		case f.end != nil:
			return f.tellEnd(ctx)
		case f.noFollow:
			return f.st.Close()
		}
		if err := f.wait(ctx, changed); err != nil {
			return err
		}
	}
}

// wait waits for a change, and returns an error when the stream is over.
func (f *follower) wait(ctx context.Context, changed <-chan struct{}) error {
	select {
	case <-changed:
		return nil
	case <-f.p.stop:
		f.removed()
		return context.Canceled
	case <-f.st.Done():
		return aether.ErrReset
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// settleTime bounds how long written waits for a pump: a process may write without end, or be held back by a reader.
const settleTime = 50 * time.Millisecond

// written returns how far the outputs are once what the process had written by now is stored.
func (p *process) written(ctx context.Context) (totals [2]int64) {
	patience := time.NewTimer(settleTime)
	defer patience.Stop()
	for changed := p.watch(); p.pending(); changed = p.watch() {
		select {
		case <-changed:
			continue
		case <-patience.C:
		case <-p.stop:
		case <-ctx.Done():
		}
		break
	}
	for i, j := range p.out[:p.outs] {
		totals[i] = j.Total()
	}
	return totals
}

// pending tells whether a pipe holds output that isn't stored yet.
func (p *process) pending() bool {
	for _, s := range p.src[:p.outs] {
		if s == nil {
			continue
		}
		if s.Pending() {
			return true
		}
	}
	return false
}

// limits is how far the outputs may be sent now.
func (f *follower) limits() [2]int64 {
	if f.end != nil {
		return [...]int64{f.end.StdoutTotal, f.end.StderrTotal}
	}
	if f.noFollow {
		return f.upTo
	}
	if !f.bounded {
		return [...]int64{math.MaxInt64, math.MaxInt64}
	}
	head, _ := f.p.out[0].Kept()
	return [...]int64{head, head}
}

// send sends the next piece of output i. It tells whether there was one.
func (f *follower) send(ctx context.Context, i int) (bool, error) {
	j := f.p.out[i]
	room := f.limit[i] - f.off[i]
	if room <= 0 {
		return false, nil
	}
	if head, tail := j.Kept(); f.bounded && f.end != nil && f.off[i] == head {
		if skip := room - tail; skip > 0 {
			return true, f.gap(ctx, i, skip)
		}
	}
	n, gap, err := j.ReadAt(f.buf[:min(int64(len(f.buf)), room)], f.off[i])
	if err != nil {
		f.st.Reset(api.Errorf(api.CodeInternal, "%v", err))
		return false, err
	}
	if gap > 0 {
		return true, f.gap(ctx, i, min(gap, room))
	}
	if n == 0 {
		return false, nil
	}
	if err := f.st.Write(ctx, channels()[i], f.buf[:n]); err != nil {
		return false, err
	}
	f.moved(i, int64(n))
	return true, nil
}

func (f *follower) moved(i int, n int64) {
	f.off[i] += n
	if f.cursor[i] != nil {
		f.p.out[i].Move(f.cursor[i], f.off[i])
	}
}

func (f *follower) gap(ctx context.Context, i int, n int64) error {
	m := aether.Gap{Channel: uint8(channels()[i]), Offset: f.off[i], Length: n}
	if err := f.st.Send(ctx, aether.MsgGap, m.AppendTo(nil)); err != nil {
		return fmt.Errorf("tell a gap: %w", err)
	}
	f.truncated = true
	f.moved(i, n)
	return nil
}

func (f *follower) tellEnd(ctx context.Context) error {
	end := f.end
	end.Truncated = f.truncated
	f.st.Hold()
	if err := f.st.Send(ctx, aether.MsgExited, end.AppendTo(nil)); err != nil {
		return err
	}
	return f.st.Close()
}
