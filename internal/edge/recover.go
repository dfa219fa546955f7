package edge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/edge/admission"
	"github.com/dsec-io/dsec/internal/edge/events"
	"github.com/dsec-io/dsec/internal/edge/lifetime"
)

// Adoption is tried again when the backend can't tell yet whether a sandbox lives.
const (
	adoptTries = 4
	adoptPause = 50 * time.Millisecond
)

// retry calls f until it succeeds, a few times with growing pauses.
func retry(f func() error) error {
	pause := adoptPause
	for i := 1; ; i++ {
		err := f()
		if err == nil || i == adoptTries {
			return err
		}
		<-time.After(pause)
		pause *= 2
	}
}

// recover brings every recorded sandbox to where it belongs.
func (e *Edge) recover(ctx context.Context) error {
	records, damaged, err := e.store.Load()
	if err != nil {
		return err
	}
	begun := time.Now()
	todo := make([]*sandbox, 0, len(records))
	for _, r := range records {
		if r.Instance != e.cfg.Instance.ID || r.Backend != e.cfg.Backend.Name() {
			// It may live, and isn't ours to judge.
			e.log.Warn("record of another instance or backend is left alone", slog.String("sandbox", r.ID),
				slog.String("instance", r.Instance), slog.String("backend", r.Backend))
			continue
		}
		log, err := events.Open(r.ID, e.store.Events(r.ID), e.cfg.files)
		if err != nil {
			return err
		}
		sb := newSandbox(r, log)
		e.boxes[r.ID] = sb
		e.met.state("", r.State)
		if r.CreatedAt.After(e.latest) {
			e.latest = r.CreatedAt
		}
		if !r.State.Ended() || r.Unclean {
			e.room.Adopt(r.ID, admission.ClaimOf(r.Spec.Resources))
			todo = append(todo, sb)
		}
	}
	e.parallel(len(todo), func(i int) { e.restore(ctx, todo[i]) })
	e.parallel(len(damaged), func(i int) { e.discard(ctx, damaged[i]) })
	e.removeUnrecorded(ctx)
	if len(todo) > 0 {
		e.log.Info("sandboxes restored", slog.Int("count", len(todo)), slog.Duration("took", time.Since(begun)))
	}
	return context.Cause(ctx)
}

// removeUnrecorded ends sandboxes whose record has vanished: nobody could reach or end them, and admission doesn't count
// them. One whose record is there, and was left alone, is too.
func (e *Edge) removeUnrecorded(ctx context.Context) {
	l, ok := e.cfg.Backend.(Lister)
	if !ok || context.Cause(ctx) != nil {
		return
	}
	ids, err := l.List()
	if err != nil {
		e.log.Warn("sandboxes without a record not looked for", slog.Any("err", err))
		return
	}
	ids = slices.DeleteFunc(ids, func(id string) bool { return e.boxes[id] != nil || !e.store.Missing(id) })
	e.parallel(len(ids), func(i int) {
		e.log.Warn("sandbox without a record is removed", slog.String("sandbox", ids[i]))
		if err := e.cfg.Backend.Clean(ctx, ids[i], nil); err != nil {
			e.log.Error("sandbox without a record not removed", slog.String("sandbox", ids[i]), slog.Any("err", err))
		}
	})
}

// restore deals with one sandbox that was alive when it was last recorded, or whose remains weren't cleared away.
func (e *Edge) restore(ctx context.Context, sb *sandbox) {
	switch {
	case sb.rec.State.Ended():
		e.cleanUp(sb)
	case sb.rec.State == api.StateCreating:
		e.log.Info("half-made sandbox is removed", sb.attr())
		e.undo(sb)
	case sb.rec.BootID != e.boot:
		e.lost(sb, api.StateFailed, "the machine was rebooted")
	case sb.rec.State == api.StateStopping:
		err := e.cfg.Backend.Clean(ctx, sb.id, sb.rec.BackendState)
		e.end(sb, sb.rec.Reason, err)
	default:
		e.adopt(ctx, sb)
	}
}

func (e *Edge) adopt(ctx context.Context, sb *sandbox) {
	var box Box
	state, reason := api.StateFailed, "it died while no edge was running"
	err := retry(func() error {
		var err error
		box, err = e.cfg.Backend.Adopt(ctx, sb.id, sb.rec.BackendState)
		if gone, ok := errors.AsType[*GoneError](err); ok {
			state, reason = api.StateStopped, gone.Reason
		}
		if errors.Is(err, ErrGone) || context.Cause(ctx) != nil {
			return nil
		}
		return err
	})
	switch {
	case err == nil && box == nil && context.Cause(ctx) != nil:
		return // the edge is told to end while it starts: the next one adopts
	case err != nil:
		e.met.adoptions.WithLabelValues("failed").Inc()
		e.log.Error("sandbox can't be adopted", sb.attr(), slog.Any("err", err))
		e.lost(sb, api.StateFailed, fmt.Sprintf("adoption: %v", err))
		return
	case box == nil:
		e.met.adoptions.WithLabelValues("gone").Inc()
		e.lost(sb, state, reason)
		return
	}
	e.met.adoptions.WithLabelValues("adopted").Inc()
	stands := e.standing(sb, box)
	sb.mu.Lock()
	sb.box, sb.rec.BackendState = box, box.State()
	if sb.rec.Life.Created == 0 { // of an earlier version
		sb.rec.Life = lifetime.Restored(uptime(), e.cfg.Clock(), sb.rec.CreatedAt, timeOr(sb.rec.StartedAt, sb.rec.CreatedAt))
	}
	sb.active.Touch(uptime()) // what went on while no edge ran isn't known
	e.restoreLocked(sb, stands)
	patching := sb.rec.Patching
	sb.rec.Patching = false
	e.saveLocked(sb)
	sb.mu.Unlock()
	if patching {
		if err := box.SetLimits(ctx, sb.rec.Spec.Resources); err != nil {
			e.log.Warn("interrupted change of limits not completed", sb.attr(), slog.Any("err", err))
		}
	}
	e.tell(sb, "adopted", "", nil)
	e.awaitRecorded(sb, box)
	e.goTask(func() { e.watch(sb, box) })
}

// lost records the end of a sandbox that died unseen, or was ended by its aether, and clears its remains away.
func (e *Edge) lost(sb *sandbox, state api.State, reason string) {
	sb.mu.Lock()
	sb.rec.Unclean = true
	from := sb.rec.State
	if state == api.StateStopped {
		e.moveLocked(sb, api.StateStopping, reason)
	}
	e.moveLocked(sb, state, reason)
	sb.mu.Unlock()
	e.tell(sb, string(state), reason, map[string]any{"was": string(from)})
	e.cleanUp(sb)
}

// discard removes a sandbox whose record can't be read. Without a record nobody can be told of it.
func (e *Edge) discard(ctx context.Context, id string) {
	if err := e.cfg.Backend.Clean(ctx, id, nil); err != nil {
		e.log.Error("sandbox without a readable record not removed", slog.String("sandbox", id), slog.Any("err", err))
		return
	}
	if err := e.store.Forget(id); err != nil {
		e.log.Error("unreadable record not removed", slog.String("sandbox", id), slog.Any("err", err))
	}
}
