package aether_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync/atomic"
	"testing"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
)

// lossyChain is a client whose streams are relayed by RelayTo to a server that handler plays.
type lossyChain struct {
	client, server *aether.Conn
	down           chan *aether.Stream // the relay's stream to the server
	seen           atomic.Int64        // bytes that the relay has taken from it
	relayed        chan error
}

const smallWindow = 64 << 10

func newLossyChain(t *testing.T, handler func(context.Context, *aether.Stream)) *lossyChain {
	t.Helper()
	ch := &lossyChain{down: make(chan *aether.Stream, 1), relayed: make(chan error, 1)}
	var near *aether.Conn
	near, ch.server = dial(t, ends{client: aether.Options{Window: 1 << 20}})
	serve(t, ch.server, handler)
	ch.client = connect(t, ends{client: aether.Options{Window: smallWindow}}, func(ctx context.Context, s *aether.Stream) {
		down, err := near.Open(ctx, s.Open())
		if err != nil {
			t.Error(err)
			return
		}
		ch.down <- down
		err = aether.RelayTo(ctx, s, down, func(f *aether.Frame) { ch.seen.Add(int64(len(f.Data))) })
		ch.relayed <- err
		if errors.Is(err, aether.ErrConnLost) && s.Err() == nil {
			s.Close()
		}
	})
	return ch
}

// start opens a stream and waits until its client has no credit left.
func (ch *lossyChain) start(ctx context.Context, t *testing.T) *aether.Stream {
	t.Helper()
	s := must(ch.client.Open(ctx, aether.Open{Method: "exec"}))
	eventually(t, "the client's window is full", func() bool { n, _ := s.Queued(); return n >= smallWindow })
	return s
}

// TestRelayToPassesOnWhatCame: the server's connection dies while the client has no credit left. Everything that the
// relay has must reach the client, whenever that reads.
func TestRelayToPassesOnWhatCame(t *testing.T) {
	t.Parallel()
	ctx := deadline(t)
	want := bytes.Repeat([]byte("0123456789"), 40_000)
	ch := newLossyChain(t, func(ctx context.Context, s *aether.Stream) {
		if err := s.Write(ctx, aether.Stdout, want); err != nil {
			t.Error(err)
		}
		<-s.Done()
	})
	s := ch.start(ctx, t)
	down := <-ch.down
	eventually(t, "all has come to the relay", func() bool { n, _ := down.Queued(); return n+int(ch.seen.Load()) == len(want) })
	ch.server.Close()
	var got []byte
	for {
		f, err := s.Recv(ctx)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("after %d of %d bytes: %v", len(got), len(want), err)
		}
		got = append(got, f.Data...)
		f.Release()
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%d of %d bytes came, equal to the start: %v", len(got), len(want), bytes.HasPrefix(want, got))
	}
	if err := <-ch.relayed; !errors.Is(err, aether.ErrConnLost) {
		t.Errorf("RelayTo() = %v", err)
	}
}

// TestRelayToEnds: nothing but credit is waited for. A client that leaves and a server that resets end the relay at
// once, although the client has no credit.
func TestRelayToEnds(t *testing.T) {
	t.Parallel()
	pour := func(ctx context.Context, s *aether.Stream) {
		for s.Write(ctx, aether.Stdout, make([]byte, 50_000)) == nil {
		}
	}
	t.Run("client-leaves-after-the-loss", func(t *testing.T) {
		ctx := deadline(t)
		ch := newLossyChain(t, pour)
		s := ch.start(ctx, t)
		ch.server.Close()
		s.Reset(nil)
		if err := <-ch.relayed; err == nil {
			t.Error("RelayTo() = nil")
		}
	})
	t.Run("server-resets", func(t *testing.T) {
		ctx := deadline(t)
		stop := make(chan struct{})
		ch := newLossyChain(t, func(ctx context.Context, s *aether.Stream) {
			if err := s.Write(ctx, aether.Stdout, make([]byte, 300_000)); err != nil {
				t.Error(err)
			}
			<-stop
			s.Reset(api.Errorf(api.CodeConflict, "taken over"))
		})
		ch.start(ctx, t)
		close(stop)
		if err := <-ch.relayed; !api.IsCode(err, api.CodeConflict) {
			t.Errorf("RelayTo() = %v", err)
		}
	})
}
