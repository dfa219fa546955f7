package edge

import (
	"context"
	"fmt"
	"time"

	"github.com/dsec-io/dsec/api"
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

// watch waits for the end of a running sandbox: its own, or that of its time.
func (e *Edge) watch(sb *sandbox, box Box) {
	for {
		why, again := e.overdue(sb, box)
		if why != "" {
			_, err := e.stopIf(context.Background(), sb, why, func() bool { return e.stillOver(sb) })
			if err == nil || e.isClosing() {
				return
			}
			// It was extended or needed at the last moment, or a short state was in the way for too long.
			again = stopAgain
		}
		var timer *time.Timer
		var due <-chan time.Time
		if again > 0 {
			timer = time.NewTimer(min(again, longestSleep))
			due = timer.C
		}
		select {
		case <-box.Done():
			e.died(sb)
			return
		case <-due:
		case <-e.quit:
			return
		}
		if timer != nil {
			timer.Stop()
		}
	}
}

// overdue says why a sandbox's time is over, or when to look again; 0: never.
func (e *Edge) overdue(sb *sandbox, box Box) (why string, again time.Duration) {
	now := uptime()
	sb.mu.Lock()
	ttl := sb.rec.Spec.TTL
	due, why := sb.rec.Life.Due(ttl)
	sb.mu.Unlock()
	if why != "" {
		if now >= due {
			return why, 0
		}
		again = due - now
	}
	if ttl.IdleS == nil {
		return "", again
	}
	idle, soon := sb.active.Idle(now, idleLimit(ttl), func() (int64, error) {
		u, err := box.Usage()
		return u.CPUNanos, err
	})
	if idle {
		return fmt.Sprintf("ttl.idle_s (%d) is over", *ttl.IdleS), 0
	}
	if again == 0 || soon < again {
		again = soon
	}
	return "", again
}

func idleLimit(ttl api.TTL) time.Duration { return time.Duration(*ttl.IdleS) * time.Second }

// stillOver tells again, at the moment of the stop, that a sandbox's time is over. The caller holds sb.mu.
func (e *Edge) stillOver(sb *sandbox) bool {
	ttl := sb.rec.Spec.TTL
	if due, why := sb.rec.Life.Due(ttl); why != "" && uptime() >= due {
		return true
	}
	return ttl.IdleS != nil && sb.active.IdleFor(uptime()) >= idleLimit(ttl)
}

// extend makes a sandbox live at least for so long from now on.
func (e *Edge) extend(ctx context.Context, sb *sandbox, want api.Extension) (any, error) {
	if err := spec.CheckExtension(want); err != nil {
		return nil, err
	}
	defer sb.active.Begin(uptime)()
	if _, err := e.running(ctx, sb); err != nil {
		return nil, err
	}
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if sb.rec.State != api.StateRunning {
		return nil, wrongState(sb.id, settled{state: sb.rec.State, reason: sb.rec.Reason})
	}
	next := *sb.rec
	if err := next.Life.Extend(next.Spec.TTL, uptime(), time.Duration(*want.RunningS)*time.Second); err != nil {
		return nil, err
	}
	if next.Life != sb.rec.Life {
		if err := e.store.save(&next); err != nil {
			return nil, lifeError("extend", err)
		}
		*sb.rec = next
		e.tell(sb, "extended", "", map[string]any{"expires_at": next.view().ExpiresAt})
	}
	return sb.rec.view(), nil
}
