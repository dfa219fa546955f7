package chronus

import (
	"context"

	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/chronus/account"
	"github.com/dsec-io/dsec/internal/chronus/launch"
)

// place is a box as the file methods see it.
type place struct{ b *box }

// Account finds a user of the box.
func (p place) Account(who string) (acc *account.Account, err error) {
	err = p.b.use(func() error {
		acc, err = p.b.accountOf(who)
		return err
	})
	return acc, err
}

// With runs f while the box's descriptors stay open.
func (p place) With(f func(launch.Box) error) error {
	return p.b.use(func() error { return f(p.b.Box) })
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
	return s.files.Serve(ctx, st, place{b})
}
