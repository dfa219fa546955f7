package edge

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/dsec-io/dsec/api"
)

// stop ends a sandbox and returns when it has ended; already says that somebody else had ended it or was at it. The work
// goes on when ctx ends. Of concurrent stops one does the work and all answer.
func (e *Edge) stop(ctx context.Context, sb *sandbox, reason string) (already bool, err error) {
	ours := false
	timer := time.NewTimer(e.cfg.ShortWait)
	defer timer.Stop()
	patience, quit := timer.C, (<-chan struct{})(e.quit)
	for {
		sb.mu.Lock()
		state, changed := sb.rec.State, sb.changed
		switch {
		case state.Ended():
			sb.mu.Unlock()
			return !ours, nil
		case !short(state):
			box := sb.box
			e.moveLocked(sb, api.StateStopping, reason)
			changed = sb.changed
			sb.mu.Unlock()
			ours, patience, quit = true, nil, nil // the work itself has a time limit, and Close waits for it
			if !e.goTask(func() { e.finish(sb, box, reason) }) {
				return false, errClosing()
			}
		default:
			sb.mu.Unlock()
		}
		select {
		case <-changed:
		case <-patience:
			err := api.Errorf(api.CodeWrongState, "sandbox %s is still %s after %v", sb.id, state, e.cfg.ShortWait)
			err.RetryMS, err.Hint = retryStateMS, "try again"
			return false, err
		case <-quit:
			return false, errClosing()
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
}

// finish does the work of one stop.
func (e *Edge) finish(sb *sandbox, box Box, reason string) {
	begun := time.Now()
	e.tell(sb, "stopping", reason, nil)
	ctx, cancel := context.WithTimeout(context.Background(), e.cfg.StopTimeout)
	defer cancel()
	e.saveLog(ctx, sb, box)
	err := box.Stop(ctx)
	if err != nil {
		err = fmt.Errorf("stop: %w", err)
	}
	e.end(sb, reason, err)
	e.met.took("stop", begun)
}

// end records that a stopping sandbox has ended. With an error something of it may be left: its share of the machine
// stays taken until it has been cleaned up.
func (e *Edge) end(sb *sandbox, reason string, err error) {
	state := api.StateStopped
	if err != nil {
		state, reason = api.StateFailed, err.Error()
	}
	// Given back before anybody is told, so that whoever waits for the end finds the room.
	if err == nil {
		e.ledger.release(sb.id)
	}
	sb.mu.Lock()
	sb.box = nil
	sb.rec.Unclean = err != nil
	if err == nil {
		sb.rec.BackendState = nil
	}
	moved := e.moveLocked(sb, state, reason)
	sb.mu.Unlock()
	if !moved {
		return
	}
	e.tell(sb, string(state), reason, nil)
	e.log.Info("sandbox ended", sb.attr(), slog.String("state", string(state)), slog.String("reason", reason))
	if err != nil {
		e.cleanUp(sb)
	}
}

// watch waits for the end of a running sandbox: its own, or that of its time.
func (e *Edge) watch(sb *sandbox, box Box) {
	due, why := e.deadline(sb)
	for {
		var timer *time.Timer
		var expired <-chan time.Time
		if !due.IsZero() {
			timer = time.NewTimer(time.Until(due))
			expired = timer.C
		}
		select {
		case <-box.Done():
			e.died(sb)
			return
		case <-expired:
			if _, err := e.stop(context.Background(), sb, why); err == nil || e.isClosing() {
				return
			}
			// A short state was in the way for too long, or its stop is. Try again.
			due = time.Now().Add(time.Second)
		case <-e.quit:
			return
		}
		if timer != nil {
			timer.Stop()
		}
	}
}

func (e *Edge) isClosing() bool {
	select {
	case <-e.quit:
		return true
	default:
		return false
	}
}

// deadline is when a sandbox's time is over, by the wall clock: it goes on while no edge runs.
func (e *Edge) deadline(sb *sandbox) (due time.Time, why string) {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if s := sb.rec.Spec.TTL.MaxS; s != nil {
		due, why = sb.rec.CreatedAt.Add(time.Duration(*s)*time.Second), fmt.Sprintf("ttl.max_s (%d) is over", *s)
	}
	if s := sb.rec.Spec.TTL.RunningS; s != nil && sb.rec.StartedAt != nil {
		if at := sb.rec.StartedAt.Add(time.Duration(*s) * time.Second); due.IsZero() || at.Before(due) {
			due, why = at, fmt.Sprintf("ttl.running_s (%d) is over", *s)
		}
	}
	return due, why
}

// died records that a sandbox ended by itself, unless it was being stopped, and clears its remains away.
func (e *Edge) died(sb *sandbox) {
	const reason = "its init process died"
	sb.mu.Lock()
	box, state := sb.box, sb.rec.State
	sb.mu.Unlock()
	if state == api.StateStopping || state.Ended() {
		return
	}
	// Before anybody is told, so that whoever sees the end finds the log.
	e.saveLog(e.life, sb, box)
	sb.mu.Lock()
	if sb.rec.State == api.StateStopping || sb.rec.State.Ended() {
		sb.mu.Unlock()
		return
	}
	sb.rec.Unclean = true
	e.moveLocked(sb, api.StateFailed, reason)
	sb.mu.Unlock()
	e.tell(sb, string(api.StateFailed), reason, nil)
	e.log.Warn("sandbox died", sb.attr())
	e.cleanUp(sb)
}
