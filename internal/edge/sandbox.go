package edge

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/edge/events"
	"github.com/dsec-io/dsec/internal/edge/lifetime"
	"github.com/dsec-io/dsec/internal/edge/pause"
	"github.com/dsec-io/dsec/internal/edge/records"
	"github.com/dsec-io/dsec/internal/edge/spec"
)

// How soon a request that met a short state for too long may be tried again.
const retryStateMS = 1000

// sandbox is one sandbox of this edge, living or ended.
type sandbox struct {
	id      string
	project string
	created time.Time
	active  lifetime.Activity
	visits  pause.Visits
	events  *events.Log

	// work is held by a patch: one at a time changes limits.
	work sync.Mutex

	// mu guards what follows, and the record's file.
	mu      sync.Mutex
	rec     *records.Record
	box     Box           // nil before it runs and after it ended
	env     *spec.Environ // the image's and the spec's
	changed chan struct{} // closed at every change of state
	unsaved bool          // the record's file lacks the last change
	gone    bool          // the record's files are removed, or will never be written
	turn    *pause.Turn   // while it is pausing or resuming
	pauses  int           // begun ones
}

func newSandbox(rec *records.Record, log *events.Log) *sandbox {
	return &sandbox{
		id: rec.ID, project: rec.Project, created: rec.CreatedAt, events: log, rec: rec,
		env: spec.Environment(rec.ImageEnv, rec.Spec.Env), changed: make(chan struct{}),
	}
}

func (sb *sandbox) view() api.Sandbox {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	return sb.rec.View()
}

// attr is the log attribute of a sandbox.
func (sb *sandbox) attr() slog.Attr { return slog.String("sandbox", sb.id) }

// settled is what a request finds when no short state is in the way.
type settled struct {
	state  api.State
	reason string
	box    Box
	env    *spec.Environ
	spec   api.Spec
	image  []string // what an exec without a command runs
	pauses int
	visit  *pause.Visit // of who has found it running
}

// nowLocked is what there is to find. The caller holds sb.mu.
func (sb *sandbox) nowLocked() settled {
	return settled{sb.rec.State, sb.rec.Reason, sb.box, sb.env, sb.rec.Spec, sb.rec.ImageCommand, sb.pauses, nil}
}

// pausedSince tells whether a pause began after it was found to run.
func (sb *sandbox) pausedSince(found settled) bool {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	return sb.pauses != found.pauses
}

// settle waits while the sandbox is in a short state, but for those that will do, for as long as the edge's config says
// and ctx allows.
func (e *Edge) settle(ctx context.Context, sb *sandbox, willDo ...api.State) (settled, error) {
	var patience <-chan time.Time
	for {
		sb.mu.Lock()
		now, changed := sb.nowLocked(), sb.changed
		sb.mu.Unlock()
		if !short(now.state) || slices.Contains(willDo, now.state) {
			return now, nil
		}
		if patience == nil {
			t := time.NewTimer(e.cfg.ShortWait)
			defer t.Stop()
			patience = t.C
		}
		select {
		case <-changed:
		case <-patience:
			return now, e.tooLong(sb)
		case <-ctx.Done():
			return now, context.Cause(ctx)
		case <-e.quit:
			return now, errClosing()
		}
	}
}

// tooLong is the answer to who has met a short state for longer than it should take.
func (e *Edge) tooLong(sb *sandbox) error {
	err := api.Errorf(api.CodeWrongState, "sandbox %s is still %s after %v", sb.id, sb.view().State, e.cfg.ShortWait)
	err.RetryMS, err.Hint = retryStateMS, "try again"
	return err
}

// running waits for the sandbox to be ready for work, which it wakes it for, or says why it never will be. The caller
// ends the visit with its work, or when the sandbox may stand still around it.
func (e *Edge) running(ctx context.Context, sb *sandbox, method string) (settled, error) {
	for {
		sb.mu.Lock()
		now := sb.nowLocked()
		if now.state == api.StateRunning {
			now.visit = sb.visits.Begin()
			sb.mu.Unlock()
			return now, nil
		}
		sb.mu.Unlock()
		if _, err := e.resume(ctx, sb, "needed by "+method); err != nil {
			return now, err
		}
	}
}

func wrongState(id string, now settled) *api.Error {
	if now.reason != "" {
		return api.Errorf(api.CodeWrongState, "sandbox %s is %s: %s", id, now.state, now.reason)
	}
	return api.Errorf(api.CodeWrongState, "sandbox %s is %s", id, now.state)
}

func errClosing() *api.Error {
	err := api.Errorf(api.CodeUnavailable, "the edge is shutting down")
	err.RetryMS = retryStateMS
	return err
}

// moveLocked changes the state, if the table allows it, and saves the record. A record that can't be saved is only told:
// what happened to the sandbox is true all the same. The caller holds sb.mu.
func (e *Edge) moveLocked(sb *sandbox, to api.State, reason string) bool {
	from := sb.rec.State
	if !legal(from, to) {
		return false
	}
	now := e.cfg.Clock().UTC()
	sb.rec.State, sb.rec.Reason = to, reason
	if to == api.StateRunning && sb.rec.StartedAt == nil {
		sb.rec.StartedAt = &now
	}
	switch to {
	case api.StatePausing, api.StatePaused, api.StateResuming:
	default:
		sb.rec.PausedAt = nil
	}
	if to.Ended() {
		sb.rec.EndedAt = &now
	}
	e.saveLocked(sb)
	e.met.state(from, to)
	close(sb.changed)
	sb.changed = make(chan struct{})
	return true
}

// saveLocked saves the record. What can't be saved now is saved as soon as it can: an edge that is killed after that
// leaves the truth. The caller holds sb.mu.
func (e *Edge) saveLocked(sb *sandbox) {
	if sb.gone {
		return
	}
	err := e.store.Save(sb.rec)
	if err != nil && !sb.unsaved {
		e.met.saveFaults.Inc()
		e.log.Error("record not saved yet", sb.attr(), slog.Any("err", err))
	}
	if sb.unsaved = err != nil; sb.unsaved {
		select {
		case e.unsaved <- struct{}{}:
		default: // the sweeper knows already
		}
	}
}

// saveAgain saves all records that couldn't be saved.
func (e *Edge) saveAgain() {
	for _, sb := range e.all() {
		sb.mu.Lock()
		if sb.unsaved {
			e.saveLocked(sb)
		}
		sb.mu.Unlock()
	}
}

// tell appends an event.
func (e *Edge) tell(sb *sandbox, kind, message string, data map[string]any) {
	if err := sb.events.Add(kind, message, data); err != nil {
		e.met.saveFaults.Inc()
		e.log.Error("event not saved", sb.attr(), slog.Any("err", err))
	}
}
