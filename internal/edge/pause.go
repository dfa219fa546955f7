package edge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/edge/pause"
	"github.com/dsec-io/dsec/internal/edge/spec"
)

// onRequest is the reason of what a client has asked for by name.
const onRequest = "on request"

func (e *Edge) servePause(ctx context.Context, sb *sandbox, _ struct{}) (any, error) {
	already, err := e.pauseIf(ctx, sb, onRequest, func() bool { return true })
	if err != nil {
		return nil, err
	}
	v := sb.view()
	v.Already = already
	return v, nil
}

func (e *Edge) serveResume(ctx context.Context, sb *sandbox, want api.Resumption) (any, error) {
	if err := spec.CheckResumption(want); err != nil {
		return nil, err
	}
	defer sb.active.Begin(uptime)()
	if want.RunningS != nil {
		// Before it wakes, so that what can't be had changes nothing, and it doesn't end for want of time right after.
		if _, err := e.extend(ctx, sb, api.Extension(want)); err != nil {
			return nil, err
		}
	}
	already, err := e.resume(ctx, sb, onRequest)
	if err != nil {
		return nil, err
	}
	v := sb.view()
	v.Already = already
	return v, nil
}

// living waits for the sandbox to be running or paused, or says why it never will be.
func (e *Edge) living(ctx context.Context, sb *sandbox) (settled, error) {
	now, err := e.settle(ctx, sb)
	if err == nil && now.state.Ended() {
		err = wrongState(sb.id, now)
	}
	return now, err
}

// pauseIf makes a sandbox stand still and returns when it does; already says that it did before. It is for a sandbox of
// which still says, under its lock, that it is to be paused. Of concurrent pauses one does the work and all answer; it
// goes on when ctx ends.
func (e *Edge) pauseIf(ctx context.Context, sb *sandbox, why string, still func() bool) (already bool, err error) {
	for {
		if _, err := e.settle(ctx, sb, api.StatePausing); err != nil {
			return false, err
		}
		sb.mu.Lock()
		now, turn := sb.nowLocked(), sb.turn
		switch {
		case now.state == api.StateRunning && !still():
			sb.mu.Unlock()
			return false, errSpared
		case now.state == api.StateRunning:
			turn = e.beginLocked(sb, api.StatePausing, why)
			sb.mu.Unlock()
			e.work(turn, func() { e.freeze(sb, now.box, turn, why) })
			return false, e.await(ctx, sb, turn)
		case now.state == api.StatePausing && turn != nil:
			sb.mu.Unlock()
			return true, e.await(ctx, sb, turn)
		}
		sb.mu.Unlock()
		switch {
		case now.state == api.StatePaused:
			return true, nil
		case now.state.Ended():
			return false, wrongState(sb.id, now)
		}
	}
}

// resume lets a paused sandbox go on and returns when it does; already says that it did before. Of all that want it, by
// name or because they have something to do in it, one does the work and all get its outcome.
func (e *Edge) resume(ctx context.Context, sb *sandbox, why string) (already bool, err error) {
	for {
		if _, err := e.settle(ctx, sb, api.StateResuming); err != nil {
			return false, err
		}
		sb.mu.Lock()
		now, turn := sb.nowLocked(), sb.turn
		switch {
		case now.state == api.StatePaused:
			turn = e.beginLocked(sb, api.StateResuming, why)
			sb.mu.Unlock()
			e.work(turn, func() { e.thaw(sb, now.box, turn, why) })
			return false, e.await(ctx, sb, turn)
		case now.state == api.StateResuming && turn != nil:
			sb.mu.Unlock()
			return true, e.await(ctx, sb, turn)
		}
		sb.mu.Unlock()
		switch {
		case now.state == api.StateRunning:
			return true, nil
		case now.state.Ended():
			return false, wrongState(sb.id, now)
		}
	}
}

// beginLocked begins a turn by its short state. The caller holds sb.mu, and goes on with the turn's work.
func (e *Edge) beginLocked(sb *sandbox, to api.State, why string) *pause.Turn {
	sb.turn = pause.Begin(e.life)
	if to == api.StatePausing {
		sb.rec.Life.Pause(uptime())
		sb.pauses++
	}
	e.moveLocked(sb, to, why)
	return sb.turn
}

// work has a turn's work done. The next edge finds what this one hasn't begun when it closes.
func (e *Edge) work(turn *pause.Turn, do func()) {
	if !e.goTask(do) {
		turn.End(errClosing())
	}
}

// await waits for a turn as long as a request may.
func (e *Edge) await(ctx context.Context, sb *sandbox, turn *pause.Turn) error {
	ctx, cancel := context.WithTimeoutCause(ctx, e.cfg.ShortWait, e.tooLong(sb))
	defer cancel()
	return turn.Wait(ctx)
}

// freeze is the work of one pause.
func (e *Edge) freeze(sb *sandbox, box Box, turn *pause.Turn, why string) {
	begun := time.Now()
	e.tell(sb, "pausing", why, nil)
	sb.visits.Drain(turn.Context())
	ctx, cancel := context.WithTimeoutCause(turn.Context(), e.cfg.PauseTime, fmt.Errorf("it doesn't stand still within %v", e.cfg.PauseTime))
	defer cancel()
	err := e.cfg.Faults.At("pause:freeze")
	if err == nil {
		err = box.Pause(ctx)
	}
	stuck := errors.Is(err, ErrStuck)
	if err == nil {
		if err = e.keepPaused(sb, why); err != nil {
			stuck = true // until it is let go again
		}
	}
	if stuck {
		stuck = e.letGo(sb, box) != nil
	}
	err = turnError(turn.Context(), api.CodePauseFailed, err)
	e.endPause(sb, turn, err, stuck, why)
	e.met.turned(e.met.pauses, "pause", begun, err)
}

// keepPaused has on disk that the sandbox is paused, before anybody is told.
func (e *Edge) keepPaused(sb *sandbox, why string) error {
	sb.mu.Lock()
	next := *sb.rec
	next.State, next.Reason, next.PausedAt = api.StatePaused, why, new(e.cfg.Clock().UTC())
	err := error(nil)
	if sb.rec.State == api.StatePausing {
		err = e.store.Save(&next)
		sb.rec.PausedAt = next.PausedAt
	}
	sb.mu.Unlock()
	if err != nil {
		return err
	}
	return e.store.Sync(sb.id)
}

// letGo undoes a pause that can't be kept.
func (e *Edge) letGo(sb *sandbox, box Box) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(e.life), e.cfg.PauseTime) // what must go on does, also when the edge closes
	defer cancel()
	err := box.Resume(ctx)
	if err != nil {
		e.log.Error("a sandbox that couldn't be paused doesn't go on", sb.attr(), slog.Any("err", err))
	}
	return err
}

// endPause records how a pause came out: a sandbox that couldn't be paused runs, or else it stands still for good, and
// that is what paused means.
func (e *Edge) endPause(sb *sandbox, turn *pause.Turn, err error, stuck bool, why string) {
	sb.mu.Lock()
	sb.turn = nil
	to := api.StatePaused
	switch {
	case err != nil && stuck:
		why = err.Error()
	case err != nil:
		to, why = api.StateRunning, ""
	}
	ours := sb.rec.State == api.StatePausing // else it is being stopped, or has died
	if ours {
		e.settleLocked(sb, to, why, false)
	} else {
		err = wrongState(sb.id, sb.nowLocked())
	}
	sb.mu.Unlock()
	switch {
	case !ours:
	case err != nil:
		e.tell(sb, "pause_failed", err.Error(), nil)
		e.log.Warn("sandbox not paused", sb.attr(), slog.Bool("stands_still", stuck), slog.Any("err", err))
	default:
		e.tell(sb, string(api.StatePaused), why, nil)
		e.log.Info("sandbox paused", sb.attr(), slog.String("reason", why))
	}
	turn.End(err)
}

// settleLocked moves a sandbox to running or paused, with what that means for its time. The caller holds sb.mu.
func (e *Edge) settleLocked(sb *sandbox, to api.State, why string, fresh bool) {
	if to == api.StateRunning {
		sb.rec.Life.Resume(sb.rec.Spec.TTL, uptime(), fresh)
		sb.active.Touch(uptime())
	} else if sb.rec.PausedAt == nil {
		sb.rec.PausedAt = new(e.cfg.Clock().UTC())
	}
	e.moveLocked(sb, to, why)
}

// thaw is the work of one resume.
func (e *Edge) thaw(sb *sandbox, box Box, turn *pause.Turn, why string) {
	begun := time.Now()
	e.tell(sb, "resuming", why, nil)
	ctx, cancel := context.WithTimeoutCause(turn.Context(), e.cfg.PauseTime, fmt.Errorf("it doesn't go on within %v", e.cfg.PauseTime))
	defer cancel()
	err := e.cfg.Faults.At("resume:thaw")
	if err == nil {
		err = box.Resume(ctx)
	}
	err = turnError(turn.Context(), api.CodeResumeFailed, err)
	sb.mu.Lock()
	sb.turn = nil
	ours := sb.rec.State == api.StateResuming // else it is being stopped, or has died
	switch {
	case !ours:
		err = wrongState(sb.id, sb.nowLocked())
	case err == nil:
		e.settleLocked(sb, api.StateRunning, "", sb.rec.Spec.OnExpire == api.ThenPause)
	default:
		e.settleLocked(sb, api.StatePaused, "its resume failed", false)
	}
	sb.mu.Unlock()
	switch {
	case !ours:
	case err != nil:
		e.tell(sb, "resume_failed", err.Error(), nil)
		e.log.Warn("sandbox not resumed", sb.attr(), slog.Any("err", err))
	default:
		e.tell(sb, "resumed", why, nil)
		e.log.Info("sandbox resumed", sb.attr(), slog.String("reason", why))
	}
	turn.End(err)
	e.met.turned(e.met.resumes, "resume", begun, err)
}

// turnError is what a client is told of a pause or a resume that failed: nothing is lost, and it can be tried again.
func turnError(turn context.Context, code api.Code, err error) error {
	if err == nil {
		return nil
	}
	if turn.Err() != nil {
		return context.Cause(turn)
	}
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		code = api.CodeDiskFull
	}
	told := api.Errorf(code, "%v", err)
	told.RetryMS, told.Hint = retryStateMS, "try again"
	return told
}

// calm gives up the change that a sandbox is in the middle of, and waits until nothing works on it any more.
func calm(sb *sandbox) {
	sb.mu.Lock()
	turn := sb.turn
	sb.mu.Unlock()
	turn.Cancel(api.Errorf(api.CodeWrongState, "sandbox %s is being stopped", sb.id))
}

// restoreLocked puts an adopted sandbox into the state in which it was found. The caller holds sb.mu.
func (e *Edge) restoreLocked(sb *sandbox, state api.State) {
	r := sb.rec
	if r.State != state {
		e.met.state(r.State, state)
	}
	if state == api.StatePaused {
		r.Life.Pause(uptime())
		r.PausedAt = new(timeOr(r.PausedAt, e.cfg.Clock().UTC()))
	} else {
		r.Life.Resume(r.Spec.TTL, uptime(), r.State == api.StateResuming && r.Spec.OnExpire == api.ThenPause)
		r.PausedAt, r.Reason = nil, ""
	}
	r.State = state
}

// standing brings an adopted sandbox to where its record says it should be, and returns its state: paused or running. What
// the last edge was in the middle of is undone or completed, so that it runs.
func (e *Edge) standing(sb *sandbox, box Box) api.State {
	frozen, err := box.Paused()
	if err != nil {
		e.log.Warn("can't tell whether a sandbox is paused", sb.attr(), slog.Any("err", err))
	}
	was := sb.rec.State
	if was == api.StatePaused {
		if frozen && err == nil {
			return api.StatePaused
		}
		ctx, cancel := context.WithTimeout(e.life, e.cfg.PauseTime)
		defer cancel()
		if err = box.Pause(ctx); err == nil || errors.Is(err, ErrStuck) {
			return api.StatePaused
		}
		e.log.Warn("a paused sandbox goes on", sb.attr(), slog.Any("err", err))
		return api.StateRunning
	}
	if !frozen && err == nil && was == api.StateRunning {
		return api.StateRunning
	}
	if e.letGo(sb, box) != nil {
		return api.StatePaused
	}
	return api.StateRunning
}
