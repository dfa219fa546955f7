package chronus

import (
	"context"
	"crypto/rand"
	"log/slog"
	"strings"

	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/chronus/account"
	"github.com/dsec-io/dsec/internal/chronus/launch"
	"github.com/dsec-io/dsec/internal/keeper"
)

// place is a box as the file methods see it.
type place struct{ b *box }

// Account finds a user of the box, unless it is paused.
func (p place) Account(who string) (acc *account.Account, err error) {
	err = p.b.enter(nil, func() error {
		acc, err = p.b.accountOf(who)
		return err
	})
	return acc, err
}

// With runs f while the box's descriptors stay open.
func (p place) With(f func(launch.Box) error) error {
	return p.b.use(func() error { return f(p.b.Box) })
}

// Visit is With for who makes a child that joins the sandbox.
func (p place) Visit(f func(launch.Box) error) error {
	return p.b.enter(nil, func() error { return f(p.b.Box) })
}

// Await returns when the box isn't paused.
func (p place) Await(gone <-chan struct{}) error {
	err := p.b.gate.Await(gone, p.b.ended)
	if uerr := p.b.use(func() error { return nil }); uerr != nil {
		return uerr
	}
	return err
}

// Keep has the keeper remember an unfinished file.
func (p place) Keep(path []byte) (done func(gone bool)) {
	s := p.b.shard
	key := draftKey + p.b.Name + "/" + rand.Text()
	if err := s.keeper().Put(keeper.Item{Key: key, Blob: path, Wait: keeper.NoWait}); err != nil {
		s.log.Warn("unfinished file not kept", slog.String("sandbox", p.b.Name), slog.Any("err", err))
		return func(bool) {}
	}
	return func(gone bool) {
		if gone {
			s.del(key)
		} else {
			_ = s.takeDraft(&keeper.Item{Key: key, Blob: path}) // what can't be removed is the sandbox's from now on
		}
	}
}

// takeDraft removes an unfinished file of an earlier shard's, when its sandbox goes on if that is paused.
func (s *Shard) takeDraft(it *keeper.Item) error {
	name, _, _ := strings.Cut(strings.TrimPrefix(it.Key, draftKey), "/")
	b := s.boxes[name]
	if b != nil && b.postpone(it) {
		return nil
	}
	defer s.del(it.Key)
	if b == nil {
		return nil // the files went with the box
	}
	return s.files.Discard(place{b}, it.Blob)
}

// Ended is closed when the box has been removed.
func (p place) Ended() <-chan struct{} { return p.b.ended }

// serveFile serves the methods about files, and ports.
func (s *Shard) serveFile(ctx context.Context, st *aether.Stream) error {
	b, err := s.box(st.Open().Sandbox)
	if err != nil {
		return err
	}
	if st.Open().Method == "port.dial" {
		return s.ports.Serve(ctx, st, place{b})
	}
	b.accounts.Touch()
	return s.files.Serve(ctx, st, place{b})
}
