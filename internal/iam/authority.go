package iam

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/state"
)

const (
	// followTime is how long a write waits until the view has it, which takes a millisecond.
	followTime = 5 * time.Second
	// retryTime is the pause before the store is followed anew.
	retryTime = 200 * time.Millisecond
	// tidyTime is how often last uses are written down and old records removed.
	tidyTime  = 5 * time.Minute
	closeTime = 3 * time.Second
)

// Config is what an [Authority] is made of. Store is required.
type Config struct {
	Store     *state.Store
	Bootstrap Bootstrap
	Logger    *slog.Logger // nil: nowhere
}

// Authority knows who may do what. Close ends it; the store is its owner's to close, afterwards.
type Authority struct {
	store  *state.Store
	log    *slog.Logger
	life   context.Context //nolint:containedctx // ends with Close
	end    context.CancelCauseFunc
	wait   sync.WaitGroup
	turn   chan struct{} // holds one token: whoever has it may load
	mu     sync.RWMutex  // guards what follows
	byHash map[digest]*token
	byID   map[string]*token
	// projects has all but the default one, which has no record.
	projects map[string]*project
	loaded   bool
	revision int64         // of the store, up to which the view is complete
	moved    chan struct{} // closed when revision has grown
}

var errClosed = errors.New("the server is shutting down")

// New makes an Authority that knows the tokens of the file; the store isn't touched.
func New(cfg Config) (*Authority, error) {
	a := &Authority{
		store: cfg.Store, log: cfg.Logger, turn: make(chan struct{}, 1), moved: make(chan struct{}),
		byHash: map[digest]*token{}, byID: map[string]*token{}, projects: map[string]*project{},
	}
	a.turn <- struct{}{}
	if a.log == nil {
		a.log = slog.New(slog.DiscardHandler)
	}
	for _, rec := range cfg.Bootstrap.records {
		t, err := newToken(rec, 0)
		if err != nil {
			return nil, err
		}
		a.byID[rec.ID], a.byHash[t.digest] = t, t
	}
	a.life, a.end = context.WithCancelCause(context.Background())
	return a, nil
}

// Close ends following the store, and writes down when tokens were last used.
func (a *Authority) Close() error {
	a.end(errClosed)
	a.wait.Wait()
	a.mu.RLock()
	loaded := a.loaded
	a.mu.RUnlock()
	if !loaded {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	return a.writeUses(ctx)
}

// load makes the view complete. Where the store was never opened there is nothing to be read, and it's opened only by
// who will write.
func (a *Authority) load(ctx context.Context, write bool) error {
	a.mu.RLock()
	loaded := a.loaded
	a.mu.RUnlock()
	if loaded || !write && !a.store.Exists() {
		return nil
	}
	select {
	case <-a.turn:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { a.turn <- struct{}{} }()
	if a.life.Err() != nil {
		return unavailable(errClosed)
	}
	a.mu.RLock()
	loaded = a.loaded
	a.mu.RUnlock()
	if loaded {
		return nil
	}
	// Everybody needs it, so it doesn't end with the request that happens to need it first.
	if err := a.list(context.WithoutCancel(ctx)); err != nil {
		return unavailable(err)
	}
	a.wait.Go(a.follow)
	a.wait.Go(a.tidy)
	return nil
}

// unavailable is the answer when the store fails: a repeat may succeed.
func unavailable(err error) *api.Error {
	e := api.Errorf(api.CodeUnavailable, "the store of projects and tokens doesn't answer: %v", err)
	e.Hint = "the server's log says more; its own token and sandboxes aren't touched by this"
	e.RetryMS = 1000
	return e
}

// list reads the whole store into the view.
func (a *Authority) list(ctx context.Context) error {
	entries, revision, err := a.store.List(ctx, keys)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	there := make(map[string]bool, len(entries))
	for _, e := range entries {
		there[e.Key] = true
		a.applyLocked(state.Change{Entry: e})
	}
	for id, t := range a.byID {
		if !t.rec.Bootstrap && !there[tokenKeys+id] {
			a.forgetLocked(t)
		}
	}
	for name := range a.projects {
		if !there[projectKeys+name] {
			a.applyLocked(state.Change{Entry: state.Entry{Key: projectKeys + name}, Deleted: true})
		}
	}
	a.loaded = true
	a.reachedLocked(revision)
	return nil
}

func (a *Authority) reachedLocked(revision int64) {
	if revision > a.revision {
		a.revision = revision
		close(a.moved)
		a.moved = make(chan struct{})
	}
}

// follow keeps the view as the store is.
func (a *Authority) follow() {
	for {
		a.mu.RLock()
		after := a.revision
		a.mu.RUnlock()
		err := a.store.Watch(a.life, keys, after, func(revision int64, changes []state.Change) {
			a.mu.Lock()
			defer a.mu.Unlock()
			for _, c := range changes {
				a.applyLocked(c)
			}
			a.reachedLocked(revision)
		})
		if a.life.Err() != nil {
			return
		}
		a.log.Warn("the store isn't followed", slog.Any("err", err))
		for err != nil {
			select {
			case <-a.life.Done():
				return
			case <-time.After(retryTime):
			}
			err = a.list(a.life)
		}
	}
}

// commitFor writes what a principal has asked for, unless its token was revoked, has expired or has other grants than when
// it was admitted: a body may come slowly, and others may end the token at any moment.
func (a *Authority) commitFor(ctx context.Context, p Principal, t state.Txn) (revision int64, err error) {
	if why, ok := errors.AsType[*api.Error](context.Cause(ctx)); ok {
		return 0, why // it was ended by us; that a client has left is no reason
	}
	if p.token.expired(time.Now()) {
		return 0, errExpired()
	}
	if !p.token.rec.Bootstrap {
		t.If = append(t.If, state.Condition{Key: tokenKeys + p.Token, Revision: p.token.revision})
	}
	revision, err = a.commit(ctx, t)
	if why, ok := errors.AsType[*api.Error](context.Cause(ctx)); ok && errors.Is(err, state.ErrConflict) {
		err = why
	}
	return revision, err
}

// commit writes, and returns when the view has it.
func (a *Authority) commit(ctx context.Context, t state.Txn) (revision int64, err error) {
	// A client that leaves must not keep the others from what was decided.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*followTime)
	defer cancel()
	revision, err = a.store.Commit(ctx, t)
	if errors.Is(err, state.ErrConflict) {
		return 0, err
	}
	if err != nil {
		e := unavailable(err)
		e.Hint, e.RetryMS = "it isn't known whether it was done", 0
		return 0, e
	}
	for {
		a.mu.RLock()
		reached, moved := a.revision >= revision, a.moved
		a.mu.RUnlock()
		if reached {
			return revision, nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			e := unavailable(errors.New("what was written doesn't come back"))
			e.Hint = "it was written, but isn't in force yet; repeat the request"
			return 0, e
		}
	}
}

// tidy writes down last uses and removes what is old, now and then.
func (a *Authority) tidy() {
	tick := time.NewTicker(tidyTime)
	defer tick.Stop()
	for {
		select {
		case <-a.life.Done():
			return
		case <-tick.C:
		}
		if err := errors.Join(a.writeUses(a.life), a.removeOld(a.life)); err != nil && a.life.Err() == nil {
			a.log.Warn("the store of tokens wasn't tidied", slog.Any("err", err))
		}
	}
}

// A transaction of ours has so many writes at most, and about so many bytes: etcd takes 1.5 MB.
const (
	batch      = state.MaxTxn / 2
	batchBytes = 512 << 10
)

// writeUses writes down when tokens were last used, as far as that has changed.
func (a *Authority) writeUses(ctx context.Context) error {
	var puts []state.Entry
	var of []*token
	a.mu.RLock()
	for id, t := range a.byID {
		if s := t.used.Load(); s != t.flushed.Load() && !t.rec.Bootstrap {
			puts, of = append(puts, state.Entry{Key: usedKeys + id, Value: []byte(strconv.FormatInt(s, 10))}), append(of, t)
		}
	}
	a.mu.RUnlock()
	for len(puts) > 0 {
		n := min(len(puts), batch)
		if _, err := a.store.Commit(ctx, state.Txn{Put: puts[:n]}); err != nil {
			return fmt.Errorf("write last uses: %w", err)
		}
		for i, t := range of[:n] {
			if s, err := strconv.ParseInt(string(puts[i].Value), 10, 64); err == nil {
				t.flushed.Store(s)
			}
		}
		puts, of = puts[n:], of[n:]
	}
	return nil
}

const (
	// expiredKept is how long an expired token is still listed.
	expiredKept = 7 * 24 * time.Hour
	// nameRests is how long the name of a deleted project can't be taken again: as long as records of its sandboxes can
	// be read, and a little more.
	nameRests = 65 * time.Minute
)

// removeOld removes tokens that expired long ago, and names that have rested.
func (a *Authority) removeOld(ctx context.Context) error {
	now := time.Now()
	var t state.Txn
	a.mu.RLock()
	for id, tok := range a.byID {
		if tok.expired(now.Add(-expiredKept)) && len(t.Delete) < batch {
			t.Delete = append(t.Delete, tokenKeys+id, usedKeys+id)
		}
	}
	for name, p := range a.projects {
		if p.rec.State == projectDeleted && now.Sub(p.rec.DeletedAt) > nameRests && len(t.Delete) < batch {
			t.If = append(t.If, state.Condition{Key: projectKeys + name, Revision: p.revision})
			t.Delete = append(t.Delete, projectKeys+name)
		}
	}
	a.mu.RUnlock()
	if len(t.Delete) == 0 {
		return nil
	}
	if _, err := a.store.Commit(ctx, t); err != nil && !errors.Is(err, state.ErrConflict) {
		return fmt.Errorf("remove old records: %w", err)
	}
	return nil
}
