package chronus

import (
	"encoding/json"
	"log/slog"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/chronus/launch"
	"github.com/dsec-io/dsec/internal/chronus/orphan"
	"github.com/dsec-io/dsec/internal/keeper"
)

// keepJSON gives the keeper something that is only data.
func (s *Shard) keepJSON(key string, v any) {
	blob, err := json.Marshal(v)
	if err == nil {
		err = s.keeper().Put(keeper.Item{Key: key, Blob: blob, Wait: keeper.NoWait})
	}
	if err != nil {
		s.log.Warn("not kept", slog.String("item", key), slog.Any("err", err))
	}
}

// takeOrphans takes over since when there is no edge, and what was ended for that.
func (s *Shard) takeOrphans(items []keeper.Item) {
	var kept []byte
	for _, it := range items {
		if it.Key == orphanKey {
			kept = it.Blob
		}
	}
	s.edges = orphan.New(kept, func(k orphan.Kept) { s.keepJSON(orphanKey, k) })
}

// limitOrphans is method "orphan.limit", whose body is a duration.
func (s *Shard) limitOrphans(body []byte) error {
	limit, err := time.ParseDuration(string(body))
	if err != nil || limit <= 0 {
		return api.Errorf(api.CodeInvalid, "an orphan limit of %q", launch.Shorten(body))
	}
	s.edges.SetLimit(limit)
	return nil
}

// endOrphans ends the boxes whose time is over while no edge looks after them. The next edge clears away what it finds.
func (s *Shard) endOrphans(boxes []*box) {
	s.edges.Alone(func(over func(string, time.Duration) bool) {
		for _, b := range boxes {
			b.mu.Lock()
			ends := time.Duration(b.spec.Ends)
			b.mu.Unlock()
			if over(b.Name, ends) {
				s.endOrphan(b)
			}
		}
		if over("", 0) {
			s.endUnknown()
		}
	})
}

// endUnknown kills what an edge has died over before it told of it. It has no record.
func (s *Shard) endUnknown() {
	names, err := s.dirs.Boxes()
	if err != nil {
		s.log.Error("groups aren't known", slog.Any("err", err))
	}
	for _, n := range names {
		if _, err := s.box(n); err == nil {
			continue
		}
		if err := s.dirs.KillBox(n); err != nil {
			s.log.Error("group isn't emptied", slog.String("group", n), slog.Any("err", err))
		}
	}
}

// endOrphan kills everything in a box, frozen or not. Why is on record before.
func (s *Shard) endOrphan(b *box) {
	s.log.Warn("sandbox is ended without an edge", slog.String("sandbox", b.Name))
	if err := s.dirs.KillBox(b.Name); err != nil {
		s.log.Error("sandbox isn't ended", slog.String("sandbox", b.Name), slog.Any("err", err))
		return // the next round tries again
	}
	// Its init dies in milliseconds; an edge that finds it alive would take it for one.
	poll := []unix.PollFd{{Fd: int32(b.PIDFD), Events: unix.POLLIN}}
	_, _ = unix.Poll(poll, int(killWait/time.Millisecond))
	_ = s.removeBox(b.Name) // which can't fail
}
