package edge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/edge/admission"
	"github.com/dsec-io/dsec/internal/edge/events"
	"github.com/dsec-io/dsec/internal/edge/idem"
	"github.com/dsec-io/dsec/internal/edge/instance"
	"github.com/dsec-io/dsec/internal/edge/records"
	"github.com/dsec-io/dsec/internal/edge/spec"
)

// sweepEvery is how often ended records are looked through.
const sweepEvery = 10 * time.Second

// saveAgainAfter is the pause before records that couldn't be saved are tried again.
const saveAgainAfter = 200 * time.Millisecond

// SocketName is the name of the edge's socket in the instance's folder of sockets.
const SocketName = "edge.sock"

// Edge owns the sandboxes of one data folder.
type Edge struct {
	cfg   Config
	log   *slog.Logger
	met   *metrics
	store *records.Store
	room  *admission.Room
	boot  string
	keyed *idem.Server
	plans plans

	life  context.Context //nolint:containedctx // what the edge itself waits for has no request's context; over when quit is closed
	die   context.CancelCauseFunc
	quit  <-chan struct{} // closed by Close
	heard chan struct{}   // closed by Run when the socket is there

	unsaved chan struct{}  // has one when a record couldn't be saved
	tasks   sync.WaitGroup // watchers, stops and the sweeper

	// mu guards what follows.
	mu      sync.Mutex
	boxes   map[string]*sandbox
	latest  time.Time // when the newest sandbox was created; no two have the same
	closing bool
}

// New makes an edge and brings it to where the last one on the same folder was: what lives is adopted, what is half-made
// or dead is cleaned up. It returns when that is done.
func New(ctx context.Context, cfg Config) (*Edge, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	boot, err := instance.BootID()
	if err != nil {
		return nil, err
	}
	met, err := newMetrics(cfg.Metrics)
	if err != nil {
		return nil, fmt.Errorf("edge metrics: %w", err)
	}
	room, err := admission.New(cfg.Capacity, cfg.machine)
	if err == nil {
		err = room.Register(cfg.Metrics)
	}
	if err != nil {
		return nil, err
	}
	life, die := context.WithCancelCause(context.Background())
	e := &Edge{
		cfg: cfg, log: cfg.Logger, met: met, boot: boot, room: room, life: life, die: die,
		store: records.New(filepath.Join(cfg.Instance.DataDir, "sandboxes"), cfg.files, cfg.Logger),
		quit:  life.Done(), heard: make(chan struct{}), unsaved: make(chan struct{}, 1), boxes: map[string]*sandbox{},
	}
	if err := e.recover(ctx); err != nil {
		e.halt()
		return nil, err
	}
	if err := e.openKeys(); err != nil {
		e.halt()
		return nil, err
	}
	if w, ok := cfg.Backend.(Warmer); ok {
		w.Warm()
	}
	e.tasks.Go(e.sweep)
	return e, nil
}

// Close ends what the edge runs here and leaves the sandboxes alone. Run must have returned.
func (e *Edge) Close(ctx context.Context) error {
	e.halt()
	return errors.Join(e.closeKeys(), e.cfg.Backend.Close(ctx))
}

func (e *Edge) halt() {
	e.mu.Lock()
	e.closing = true
	e.mu.Unlock()
	e.die(errClosing())
	e.tasks.Wait()
}

// goTask runs f in a goroutine that Close waits for; not once the edge is closing.
func (e *Edge) goTask(f func()) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closing {
		return false
	}
	e.tasks.Go(f)
	return true
}

// Note records what a backend says of a sandbox, such as "aether_lost" or "oom", as an event of that name with that data.
// A sandbox that isn't known has ended meanwhile.
func (e *Edge) Note(id, what string, data map[string]any) {
	e.mu.Lock()
	sb := e.boxes[id]
	e.mu.Unlock()
	if sb != nil && alive(sb.view().State) {
		e.tell(sb, what, "", data)
	}
}

// find looks up a sandbox for a project. One of another project is as unknown as one that never was.
func (e *Edge) find(project, id string) (*sandbox, error) {
	e.mu.Lock()
	sb := e.boxes[id]
	e.mu.Unlock()
	if sb == nil || project == "" || sb.project != project {
		return nil, api.Errorf(api.CodeNotFound, "no sandbox %q", spec.Clip(id))
	}
	return sb, nil
}

// enter makes a sandbox known, with a time of creation that is later than any before.
func (e *Edge) enter(rec *records.Record) (*sandbox, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closing {
		return nil, errClosing()
	}
	rec.CreatedAt, rec.Life.Created = e.cfg.Clock().UTC(), uptime()
	if !rec.CreatedAt.After(e.latest) {
		rec.CreatedAt = e.latest.Add(1)
	}
	e.latest = rec.CreatedAt
	sb := newSandbox(rec, events.New(rec.ID, e.store.Events(rec.ID), e.cfg.files))
	e.boxes[rec.ID] = sb
	e.met.state("", rec.State)
	return sb, nil
}

// leave makes a sandbox unknown and removes its files. One whose files can't be removed stays known, so that this is
// tried again.
func (e *Edge) leave(sb *sandbox) error {
	sb.mu.Lock()
	if sb.gone {
		sb.mu.Unlock()
		return nil
	}
	sb.events.Seal()
	err := e.store.Forget(sb.id)
	if err == nil {
		sb.gone = true
		e.met.state(sb.rec.State, "")
	}
	sb.mu.Unlock()
	if err != nil {
		return err
	}
	e.mu.Lock()
	delete(e.boxes, sb.id)
	e.mu.Unlock()
	return nil
}

// all is every known sandbox, newest first.
func (e *Edge) all() []*sandbox {
	e.mu.Lock()
	list := make([]*sandbox, 0, len(e.boxes))
	for _, sb := range e.boxes {
		list = append(list, sb)
	}
	e.mu.Unlock()
	slices.SortFunc(list, func(a, b *sandbox) int {
		return cmp.Or(b.created.Compare(a.created), cmp.Compare(b.id, a.id))
	})
	return list
}

// sweep forgets ended sandboxes when their time is over, and cleans up again where it didn't work before.
func (e *Edge) sweep() {
	t := time.NewTicker(min(sweepEvery, max(e.cfg.EndedKeep/4, time.Millisecond)))
	defer t.Stop()
	for {
		select {
		case <-t.C:
			e.sweepOnce(e.cfg.Clock())
		case <-e.unsaved:
			select {
			case <-time.After(saveAgainAfter):
			case <-e.quit: // once more
			}
			e.saveAgain()
		case <-e.quit:
			return
		}
	}
}

func (e *Edge) sweepOnce(now time.Time) {
	e.keyed.Keys.Sweep()
	for _, sb := range e.all() {
		sb.mu.Lock()
		ended, unclean, busy := sb.rec.EndedAt, sb.rec.Unclean, sb.box != nil
		sb.mu.Unlock()
		switch {
		case ended == nil || busy:
		case unclean:
			e.cleanUp(sb)
		case now.Sub(*ended) >= e.cfg.EndedKeep:
			if err := e.leave(sb); err != nil {
				e.log.Error("ended record not removed", sb.attr(), slog.Any("err", err))
			}
		}
	}
}

// cleanUp removes what a dead sandbox left, and then gives its share of the machine back.
func (e *Edge) cleanUp(sb *sandbox) {
	ctx, cancel := context.WithTimeout(context.Background(), e.cfg.StopTimeout)
	defer cancel()
	sb.mu.Lock()
	state := sb.rec.BackendState
	sb.mu.Unlock()
	if err := e.cfg.Backend.Clean(ctx, sb.id, state); err != nil {
		e.log.Error("remains of a sandbox not removed", sb.attr(), slog.Any("err", err))
		return
	}
	sb.mu.Lock()
	sb.rec.Unclean, sb.rec.BackendState, sb.box = false, nil, nil
	e.saveLocked(sb)
	sb.mu.Unlock()
	e.room.Release(sb.id)
}

// StopAll stops every sandbox, some at a time, and tells progress after each. It stops at the end of ctx.
func (e *Edge) StopAll(ctx context.Context, progress func(done, total int)) error {
	var living []*sandbox
	for _, sb := range e.all() {
		if !sb.view().State.Ended() {
			living = append(living, sb)
		}
	}
	var (
		mu     sync.Mutex
		done   int
		faults []error
	)
	e.parallel(len(living), func(i int) {
		_, err := e.stop(ctx, living[i], "the instance was shut down")
		mu.Lock()
		defer mu.Unlock()
		done++
		if err != nil {
			faults = append(faults, fmt.Errorf("stop %s: %w", living[i].id, err))
		}
		if progress != nil {
			progress(done, len(living))
		}
	})
	return errors.Join(faults...)
}

// parallel calls f for 0 to n-1, a bounded number at a time, and returns when all have returned.
func (e *Edge) parallel(n int, f func(i int)) {
	var wg sync.WaitGroup
	next := make(chan int)
	for range min(n, e.cfg.Parallel) {
		wg.Go(func() {
			for i := range next {
				f(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
}
