package edge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/dsec-io/dsec/api"
)

// stop ends a sandbox and returns when it has ended; already says that somebody else had ended it or was at it. The work
// goes on when ctx ends. Of concurrent stops one does the work and all answer.
func (e *Edge) stop(ctx context.Context, sb *sandbox, reason string) (already bool, err error) {
	return e.stopIf(ctx, sb, reason, func() bool { return true })
}

// errSpared is the answer of a stop whose reason was gone when it came to it.
var errSpared = errors.New("the sandbox needn't be stopped any more")

// stopIf is stop for a sandbox of which still says, under its lock, that it is to be stopped.
func (e *Edge) stopIf(ctx context.Context, sb *sandbox, reason string, still func() bool) (already bool, err error) {
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
		case alive(state) && !still():
			sb.mu.Unlock()
			return false, errSpared
		case alive(state):
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
			return false, e.tooLong(sb)
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
	calm(sb)
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
		e.room.Release(sb.id)
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

func (e *Edge) isClosing() bool {
	select {
	case <-e.quit:
		return true
	default:
		return false
	}
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
	calm(sb)
	e.cleanUp(sb)
}
