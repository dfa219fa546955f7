package chronus

import (
	"encoding/json"
	"log/slog"
	"strings"
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

// takeOrphans takes over since when there is no edge, and what was ended for that. What can't be read begins anew.
func (s *Shard) takeOrphans(items []keeper.Item) {
	var k orphan.Kept
	for _, it := range items {
		if it.Key == orphanKey {
			_ = json.Unmarshal(it.Blob, &k)
		}
		var end orphan.End
		if box, ok := strings.CutPrefix(it.Key, endedKey); ok && json.Unmarshal(it.Blob, &end) == nil {
			s.ended[box] = end
		}
	}
	s.edges = orphan.New(k, func(k orphan.Kept) { s.keepJSON(orphanKey, k) })
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

// endedBoxes is method "ended": which boxes were ended without an edge, and why.
func (s *Shard) endedBoxes() ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return json.Marshal(s.ended)
}

// endOrphans ends the boxes whose time is over while no edge looks after them. The next edge clears away what it finds.
func (s *Shard) endOrphans(boxes []*box) {
	s.edges.Alone(func(over func(time.Duration) (orphan.End, bool)) {
		for _, b := range boxes {
			b.mu.Lock()
			ends := time.Duration(b.spec.Ends)
			b.mu.Unlock()
			if end, ok := over(ends); ok {
				s.endOrphan(b, end)
			}
		}
		if _, ok := over(0); ok {
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
func (s *Shard) endOrphan(b *box, end orphan.End) {
	s.log.Warn("sandbox is ended", slog.String("sandbox", b.Name), slog.String("reason", end.Reason))
	s.mu.Lock()
	if len(s.ended) >= maxBoxes { // an edge has come and gone, and never asked
		for old := range s.ended {
			delete(s.ended, old)
			defer s.del(endedKey + old)
			break
		}
	}
	s.ended[b.Name] = end
	s.mu.Unlock()
	s.keepJSON(endedKey+b.Name, end)
	if err := s.dirs.KillBox(b.Name); err != nil {
		s.log.Error("sandbox isn't ended", slog.String("sandbox", b.Name), slog.Any("err", err))
		return // the next round tries again
	}
	// Its init dies in milliseconds; an edge that finds it alive would take it for one.
	poll := []unix.PollFd{{Fd: int32(b.PIDFD), Events: unix.POLLIN}}
	_, _ = unix.Poll(poll, int(killWait/time.Millisecond))
	_ = s.removeBox(b.Name) // which can't fail
}
