package chronus

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strconv"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/chronus/launch"
	"github.com/dsec-io/dsec/internal/chronus/pause"
	"github.com/dsec-io/dsec/internal/keeper"
)

func errPaused() *api.Error { return api.Errorf(api.CodeFrozen, "the sandbox is paused") }

// paused tells whether the sandbox stands still.
func (b *box) paused() bool {
	if !b.gate.Paused() {
		return false
	}
	b.gate.Heal(b)
	return b.gate.Paused()
}

// enter is use for whatever makes a child that joins the sandbox: none is there while the sandbox is frozen. Of a paused
// one the caller is told, by [api.CodeFrozen], that nothing has been done.
func (b *box) enter(gone <-chan struct{}, f func() error) error {
	var err error
	for again := true; again; {
		if err = b.gate.Enter(gone, b.ended); err == nil {
			defer b.gate.Leave()
			return b.use(f)
		}
		again = errors.Is(err, pause.ErrPaused) && !b.paused()
	}
	if errors.Is(err, pause.ErrPaused) {
		err = errPaused()
	}
	return b.use(func() error { return err }) // which says so of a box that has ended
}

// postpone puts off the removal of an unfinished file until the sandbox is resumed, if it is paused.
func (b *box) postpone(draft *keeper.Item) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.gate.Paused() {
		return false
	}
	b.drafts = append(b.drafts, *draft)
	return true
}

// The box is the gate's group.

// Freeze stops everything in the sandbox. It doesn't keep the box from being closed, which would wait.
func (b *box) Freeze(ctx context.Context) error { return b.shard.dirs.Freeze(ctx, b.Name) }

// Thaw has everything go on.
func (b *box) Thaw(ctx context.Context) error { return b.shard.dirs.Thaw(ctx, b.Name) }

// Frozen is what the kernel says.
func (b *box) Frozen() (bool, error) { return b.shard.dirs.Frozen(b.Name) }

// Keep gives the keeper the sandbox's time.
func (b *box) Keep(k pause.Kept) { b.shard.keepJSON(pauseKey+b.Name, k) }

// restorePause makes the gate what the kernel and an earlier shard say.
func (b *box) restorePause(k pause.Kept) {
	frozen, err := b.Frozen()
	if err != nil {
		b.shard.log.Warn("not known if the sandbox is paused", slog.String("sandbox", b.Name), slog.Any("err", err))
	}
	b.gate.Restore(k, frozen)
}

// takePause takes over a sandbox's time.
func (s *Shard) takePause(it *keeper.Item) error {
	b := s.boxes[it.Key[len(pauseKey):]]
	if b == nil {
		return errors.New("no such box")
	}
	var k pause.Kept
	if err := json.Unmarshal(it.Blob, &k); err != nil {
		return err
	}
	b.restorePause(k)
	return nil
}

// servePause is method "box.pause": everything in the sandbox stands still when it is answered. The body is for how long
// that may take, in ms. A caller that leaves before has taken it back.
func (s *Shard) servePause(ctx context.Context, st *aether.Stream) error {
	open := st.Open()
	b, err := s.box(open.Sandbox)
	if err != nil {
		return err
	}
	ms, err := strconv.ParseInt(string(open.Body), 10, 32)
	if err != nil || ms <= 0 {
		return api.Errorf(api.CodeInvalid, "a pause within %q ms", launch.Shorten(open.Body))
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(ms)*time.Millisecond)
	defer cancel()
	st.AfterOver(cancel)
	if err := b.gate.Pause(ctx, b); err != nil {
		return b.pauseError(err)
	}
	return st.Reply(ctx, nil)
}

// pauseError says what was in the way.
func (b *box) pauseError(err error) error {
	if gone := b.use(func() error { return nil }); gone != nil {
		return gone
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return pause.Refusal(err, func(group string) (id, program string) {
		for _, p := range b.procs {
			p.mu.Lock()
			mine := p.meta.Group == group && len(p.meta.Argv) > 0
			p.mu.Unlock()
			if mine {
				return p.meta.ID, launch.Shorten(p.meta.Argv[0])
			}
		}
		return "", ""
	})
}

// resume is method "box.resume".
func (b *box) resume(ctx context.Context) error {
	if err := b.gate.Resume(ctx, b); err != nil {
		return err
	}
	b.mu.Lock()
	drafts := b.drafts
	b.drafts = nil
	b.mu.Unlock()
	for i := range drafts {
		if err := b.shard.takeDraft(&drafts[i]); err != nil {
			b.shard.log.Warn("unfinished file not removed", slog.String("sandbox", b.Name), slog.Any("err", err))
		}
	}
	return nil
}
