package edge

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/edge/lifetime"
	"github.com/dsec-io/dsec/internal/edge/spec"
)

const (
	// longestSleep bounds how long a watcher sleeps: its timer stands still while the machine sleeps.
	longestSleep = time.Minute
	// stopAgain is the pause after a stop that something was in the way of.
	stopAgain = time.Second
)

func timeOr(t *time.Time, otherwise time.Time) time.Time {
	if t == nil {
		return otherwise
	}
	return *t
}

// over is what a watcher has found: by which limit a sandbox's time is over, and what is to be done about it.
type over struct {
	limit lifetime.Limit // "": none is over
	do    string         // api.ThenStop or api.ThenPause
	why   string
	again time.Duration // when to look again; 0: at the next change of state
}

// watch waits for the end of a sandbox, its own or that of its time, and pauses it where that is what its end means.
func (e *Edge) watch(sb *sandbox, box Box) {
	failed := time.Duration(0) // the pause after what was last tried in vain
	for {
		sb.mu.Lock()
		changed := sb.changed
		sb.mu.Unlock()
		o := e.overdue(sb, box)
		if o.limit != "" {
			err := e.timeIsOver(sb, o)
			switch {
			case e.isClosing() || err == nil && o.do != api.ThenPause:
				return
			case err == nil:
				failed = 0
				continue
			case errors.Is(err, errSpared):
				failed = 0 // it was extended or needed at the last moment
			default:
				e.log.Warn("time is over, and the sandbox goes on", sb.attr(), slog.String("do", o.do), slog.Any("err", err))
			}
			failed = min(max(2*failed, stopAgain), longestSleep)
			o.again, changed = failed, nil
		}
		var due <-chan time.Time
		timer := time.NewTimer(longestSleep)
		if o.again > 0 {
			timer.Reset(min(o.again, longestSleep))
			due = timer.C
		}
		select {
		case <-box.Done():
			timer.Stop()
			e.died(sb)
			return
		case <-due:
		case <-changed:
		case <-e.quit:
			timer.Stop()
			return
		}
		timer.Stop()
	}
}

// timeIsOver does what is to be done about it, unless it is no longer so.
func (e *Edge) timeIsOver(sb *sandbox, o over) error {
	still := func() bool { return stillOver(sb, o.limit) }
	if o.do == api.ThenPause {
		_, err := e.pauseIf(e.life, sb, o.why, still)
		return err
	}
	_, err := e.stopIf(e.life, sb, o.why, still)
	return err
}

// overdue tells whether a sandbox's time is over, or when to look again. While it is in a short state its time waits.
func (e *Edge) overdue(sb *sandbox, box Box) over {
	now := uptime()
	sb.mu.Lock()
	state, s := sb.rec.State, sb.rec.Spec
	due, limit := sb.rec.Life.Due(s.TTL)
	sb.mu.Unlock()
	if short(state) || state.Ended() {
		return over{}
	}
	var o over
	if limit != "" {
		if now >= due {
			return over{limit: limit, do: limit.Means(s), why: limit.Over(s.TTL)}
		}
		o.again = due - now
	}
	if s.TTL.IdleS == nil || state == api.StatePaused {
		return o
	}
	idle, soon := sb.active.Idle(now, idleLimit(s.TTL), func() (int64, error) {
		u, err := box.Usage()
		return u.CPUNanos, err
	})
	if idle {
		return over{limit: lifetime.Idle, do: lifetime.Idle.Means(s), why: lifetime.Idle.Over(s.TTL)}
	}
	if o.again == 0 || soon < o.again {
		o.again = soon
	}
	return o
}

func idleLimit(ttl api.TTL) time.Duration { return time.Duration(*ttl.IdleS) * time.Second }

// stillOver tells again, at the moment of the stop or the pause, that a sandbox's time is over by a limit. The caller
// holds sb.mu.
func stillOver(sb *sandbox, by lifetime.Limit) bool {
	ttl := sb.rec.Spec.TTL
	if by == lifetime.Idle {
		return sb.rec.State == api.StateRunning && sb.active.IdleFor(uptime()) >= idleLimit(ttl)
	}
	due, limit := sb.rec.Life.Due(ttl)
	return limit == by && uptime() >= due
}

// extend makes a sandbox live at least for so long from now on.
func (e *Edge) extend(ctx context.Context, sb *sandbox, want api.Extension) (any, error) {
	if err := spec.CheckExtension(want); err != nil {
		return nil, err
	}
	defer sb.active.Begin(uptime)()
	if _, err := e.living(ctx, sb); err != nil {
		return nil, err
	}
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if !alive(sb.rec.State) {
		return nil, wrongState(sb.id, sb.nowLocked())
	}
	next := *sb.rec
	if next.State == api.StatePaused && next.Spec.OnExpire == api.ThenPause {
		next.Life.Renew(next.Spec.TTL, uptime()) // to ask for less than its resume gives takes nothing away
	}
	if err := next.Life.Extend(next.Spec.TTL, uptime(), time.Duration(*want.RunningS)*time.Second); err != nil {
		return nil, err
	}
	if next.Life != sb.rec.Life {
		if err := e.store.Save(&next); err != nil {
			return nil, lifeError("extend", err)
		}
		*sb.rec = next
		e.tell(sb, "extended", "", map[string]any{"expires_at": next.View().ExpiresAt})
	}
	return sb.rec.View(), nil
}
