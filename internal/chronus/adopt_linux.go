package chronus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/chronus/launch"
	"github.com/dsec-io/dsec/internal/chronus/pause"
	"github.com/dsec-io/dsec/internal/keeper"
)

func sortByEnd(ps []*process) {
	slices.SortFunc(ps, func(a, b *process) int { return a.ended.Compare(b.ended) })
}

// keeper is the store in use.
func (s *Shard) keeper() *keeper.Store {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.store
}

func (s *Shard) del(key string) {
	if err := s.keeper().Del(key); err != nil {
		s.log.Warn("item not removed", slog.String("item", key), slog.Any("err", err))
	}
}

// takeOver rebuilds boxes, sessions and processes from what an earlier shard had put. What can't be rebuilt is dropped
// and told of; one bad item doesn't cost the others.
func (s *Shard) takeOver(items []keeper.Item) {
	s.takeOrphans(items)
	for _, step := range []struct {
		prefix string
		take   func(*keeper.Item) error
	}{{boxKey, s.takeBox}, {pauseKey, s.takePause}, {sessionKey, s.takeSession}, {processKey, s.takeProcess}, {draftKey, s.takeDraft}} {
		for i := range items {
			it := &items[i]
			if !strings.HasPrefix(it.Key, step.prefix) {
				continue
			}
			if err := step.take(it); err != nil {
				s.log.Error("item not taken over", slog.String("item", it.Key), slog.Any("err", err))
				for _, fd := range it.FDs {
					_ = unix.Close(fd)
				}
				s.del(it.Key)
			}
		}
	}
	for _, b := range s.boxes {
		b.leaveUnknown()
	}
	if len(items) > 0 {
		s.log.Info("took over", slog.Int("items", len(items)), slog.Int("boxes", len(s.boxes)))
	}
}

func (s *Shard) takeBox(it *keeper.Item) error {
	var spec aether.AddBox
	if err := spec.Unmarshal(it.Blob); err != nil {
		return err
	}
	if len(it.FDs) < 1 || len(it.FDs) > 2 {
		return fmt.Errorf("%d descriptors", len(it.FDs))
	}
	b := newBox(s, &spec, it.FDs[0])
	if len(it.FDs) == 2 {
		b.devpts = it.FDs[1]
	}
	b.restorePause(pause.Kept{})
	s.boxes[spec.Name] = b
	return nil
}

func (s *Shard) takeSession(it *keeper.Item) error {
	var saved savedSession
	if err := json.Unmarshal(it.Blob, &saved); err != nil {
		return err
	}
	b := s.boxes[saved.Box]
	if b == nil {
		return errors.New("no such box")
	}
	se, err := restoreSession(b, &saved, it.FDs)
	if err != nil {
		return err
	}
	b.sessions[se.id] = se
	return nil
}

func (s *Shard) takeProcess(it *keeper.Item) error {
	box, _, _ := strings.Cut(strings.TrimPrefix(it.Key, processKey), "/")
	b := s.boxes[box]
	if b == nil {
		return errors.New("no such box")
	}
	p, err := s.restore(b, it)
	if err != nil {
		return err
	}
	p.kept = len(it.FDs)
	s.kept.Add(int64(p.kept))
	b.procs[p.meta.ID] = p
	if se := b.sessions[p.meta.Session]; se != nil && p.result == nil {
		<-se.turn
		se.running, p.session = p, se
	}
	p.run()
	return nil
}

// hearKeepers listens to one keeper after the other.
func (s *Shard) hearKeepers(ctx context.Context, store *keeper.Store) {
	for {
		over, cancel := context.WithCancelCause(ctx)
		var wg sync.WaitGroup
		wg.Go(func() { s.hearKeeper(over, store) })
		var next *keeper.Store
		select {
		case next = <-s.stores:
		case <-ctx.Done():
		}
		cancel(errors.New("there is a new keeper"))
		wg.Wait()
		if next == nil {
			return
		}
		_ = store.Close()
		store = next
	}
}

// hearKeeper passes on what the keeper tells of processes that aren't our children.
func (s *Shard) hearKeeper(ctx context.Context, store *keeper.Store) {
	err := store.Run(ctx, func(key string, raw int32) {
		box, id, _ := strings.Cut(strings.TrimPrefix(key, processKey), "/")
		b, err := s.box(box)
		if err != nil {
			return
		}
		p, err := b.process(id)
		if err != nil {
			return
		}
		select {
		case p.told <- raw:
		default: // told before
		}
	})
	if ctx.Err() == nil {
		s.log.Error("keeper lost", slog.Any("err", err))
	}
}

// newKeeper is method "keeper": everything is put again into the keeper at the other end of the socket that comes along.
func (s *Shard) newKeeper(ctx context.Context, fds []int) error {
	if len(fds) != 1 {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
		return api.Errorf(api.CodeInvalid, "a keeper's socket is one descriptor, not %d", len(fds))
	}
	store, err := keeper.OpenStore(fds[0], launch.LowFDs)
	if err != nil {
		_ = unix.Close(fds[0])
		return err
	}
	s.mu.Lock()
	s.store = store
	boxes := make([]*box, 0, len(s.boxes))
	for _, b := range s.boxes {
		boxes = append(boxes, b)
	}
	s.mu.Unlock()
	select {
	case s.stores <- store:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	s.edges.Again()
	for _, b := range boxes {
		s.putBox(b)
		if k := b.gate.Kept(); k != (pause.Kept{}) {
			b.Keep(k)
		}
		b.mu.Lock()
		procs, sessions := make([]*process, 0, len(b.procs)), make([]*session, 0, len(b.sessions))
		for _, p := range b.procs {
			procs = append(procs, p)
		}
		for _, se := range b.sessions {
			sessions = append(sessions, se)
		}
		b.mu.Unlock()
		for _, se := range sessions {
			se.put()
		}
		for _, p := range procs {
			p.put()
		}
	}
	return nil
}
