package aether_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
)

// chain is a client, a relay and a shard.
type chain struct {
	client   *aether.Conn
	shard    *aether.Conn // the relay's end
	shardEnd *aether.Conn
	relayed  chan error
}

func newChain(t *testing.T, e ends, handler func(context.Context, *aether.Stream)) chain {
	t.Helper()
	ch := chain{relayed: make(chan error, 16)}
	ch.shard, ch.shardEnd = dial(t, e)
	serve(t, ch.shardEnd, handler)
	ch.client = connect(t, ends{}, func(ctx context.Context, s *aether.Stream) {
		up, err := ch.shard.Open(ctx, s.Open())
		if err != nil {
			t.Error(err)
			return
		}
		ch.relayed <- aether.Relay(ctx, s, up)
	})
	return ch
}

func TestRelay(t *testing.T) {
	t.Parallel()
	ctx := deadline(t)
	// The shard's limit is lower than the client's frames, so the relay must cut them.
	ch := newChain(t, ends{server: aether.Options{MaxData: aether.MaxDataAether}}, func(ctx context.Context, s *aether.Stream) {
		s.Send(ctx, aether.MsgStarted, s.Open().Body) //nolint:errcheck // the client notices
		for {
			f, err := s.Recv(ctx)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Error(err)
				return
			}
			if f.Channel == aether.Message {
				s.Send(ctx, aether.MsgAck, f.Data) //nolint:errcheck // the client notices
			} else if len(f.Data) > 0 {
				s.Write(ctx, aether.Stdout, f.Data) //nolint:errcheck // the client notices
			}
			if f.End {
				s.CloseWrite(aether.Stdout)
			}
			f.Release()
		}
		s.Send(ctx, aether.MsgExited, nil) //nolint:errcheck // the client notices
	})
	in := bytes.Repeat([]byte("0123456789"), 300_000)
	long := bytes.Repeat([]byte("message"), 100_000)
	s := must(ch.client.Open(ctx, aether.Open{Method: "exec", Body: []byte("b")}))
	go func() {
		s.Send(ctx, aether.MsgSignal, long) //nolint:errcheck // the transcript shows
		s.Write(ctx, aether.Stdin, in)      //nolint:errcheck // the transcript shows
		s.CloseWrite(aether.Stdin)
		s.Close()
	}()
	got, err := transcript(ctx, s)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{`message 2 "b"`, `message 7 "` + string(long) + `"`, `channel 2 "` + string(in) + `"`, `message 3 ""`}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("through the relay (-want +got):\n%.500s", diff)
	}
	if err := <-ch.relayed; err != nil {
		t.Errorf("Relay() = %v", err)
	}
	eventually(t, "all forget the streams", func() bool { return ch.client.Streams()+ch.shard.Streams()+ch.shardEnd.Streams() == 0 })
}

// TestRelayChecksum shows that the checksum is the ends' own: the relay copies a corrupt payload, the receiver finds it.
func TestRelayChecksum(t *testing.T) {
	t.Parallel()
	ctx := deadline(t)
	ch := newChain(t, ends{}, func(ctx context.Context, s *aether.Stream) {
		s.Write(ctx, aether.Stdout, []byte("good")) //nolint:errcheck // the client notices
		s.WriteCorrupt(aether.Stdout, []byte("spoilt on the way"))
		<-s.Done()
	})
	s := must(ch.client.Open(ctx, aether.Open{Method: "exec"}))
	f := must(s.Recv(ctx))
	if string(f.Data) != "good" {
		t.Errorf("first came %q", f.Data)
	}
	f.Release()
	if _, err := s.Recv(ctx); !errors.Is(err, aether.ErrPayloadCRC) {
		t.Errorf("the corrupt frame = %v", err)
	}
	if err := <-ch.relayed; !api.IsCode(err, api.CodeInvalid) {
		t.Errorf("the relay is told by the receiver: %v", err)
	}
	if err := ch.client.Err(); err != nil {
		t.Errorf("the connection ended: %v", err)
	}
	eventually(t, "all forget the streams", func() bool { return ch.client.Streams()+ch.shard.Streams()+ch.shardEnd.Streams() == 0 })
}

func TestRelayReset(t *testing.T) {
	t.Parallel()
	ctx := deadline(t)
	typed := api.Errorf(api.CodeWorkdirNotFound, "no such folder")
	shardSaw := make(chan error, 1)
	ch := newChain(t, ends{}, func(ctx context.Context, s *aether.Stream) {
		if s.Open().Method == "refuse" {
			s.Reset(typed)
			return
		}
		// Output that nobody reads fills the way back; a cancel overtakes it.
		for s.Write(ctx, aether.Stdout, make([]byte, 50_000)) == nil {
		}
		shardSaw <- s.Err()
	})
	_, err := aether.Unary(ctx, ch.client, aether.Open{Method: "refuse"})
	got, _ := errors.AsType[*api.Error](err)
	if diff := cmp.Diff(typed, got); diff != "" {
		t.Errorf("refused (-want +got):\n%s", diff)
	}
	if err := <-ch.relayed; !api.IsCode(err, api.CodeWorkdirNotFound) {
		t.Errorf("Relay() = %v", err)
	}

	s := must(ch.client.Open(ctx, aether.Open{Method: "pour", Closed: true}))
	eventually(t, "the way back is full", func() bool { n, _ := s.Queued(); return n >= 256<<10 })
	s.Reset(nil)
	if err := <-shardSaw; !errors.Is(err, aether.ErrReset) {
		t.Errorf("the shard saw %v", err)
	}
	if err := <-ch.relayed; !errors.Is(err, aether.ErrReset) {
		t.Errorf("Relay() = %v", err)
	}
	eventually(t, "all forget the streams", func() bool { return ch.client.Streams()+ch.shard.Streams()+ch.shardEnd.Streams() == 0 })
}

func TestRelayLostShard(t *testing.T) {
	t.Parallel()
	ctx := deadline(t)
	ch := newChain(t, ends{}, func(_ context.Context, s *aether.Stream) { <-s.Done() })
	s := must(ch.client.Open(ctx, aether.Open{Method: "wait"}))
	eventually(t, "the stream is through", func() bool { return ch.shardEnd.Streams() == 1 })
	ch.shardEnd.Close()
	if _, err := s.Recv(ctx); !api.IsCode(err, api.CodeUnavailable) {
		t.Errorf("the client sees %v", err)
	}
	if err := <-ch.relayed; !errors.Is(err, aether.ErrConnLost) {
		t.Errorf("Relay() = %v", err)
	}
}

func TestRelayCancelled(t *testing.T) {
	t.Parallel()
	ctx := deadline(t)
	shard, shardEnd := dial(t, ends{})
	shardSaw := make(chan error, 1)
	serve(t, shardEnd, func(_ context.Context, s *aether.Stream) {
		<-s.Done()
		shardSaw <- s.Err()
	})
	why := api.Errorf(api.CodeSandboxDied, "it died")
	c := connect(t, ends{}, func(_ context.Context, s *aether.Stream) {
		short, cancel := context.WithCancelCause(context.Background())
		defer time.AfterFunc(10*time.Millisecond, func() { cancel(why) }).Stop()
		aether.Relay(short, s, must(shard.Open(ctx, s.Open()))) //nolint:errcheck // both ends are looked at
	})
	_, err := aether.Unary(ctx, c, aether.Open{Method: "wait"})
	for _, err := range []error{err, <-shardSaw} {
		if !api.IsCode(err, api.CodeSandboxDied) {
			t.Errorf("an end sees %v", err)
		}
	}
}

// TestRelayLeftInSilence: a client that has said all leaves a server that says nothing, and the server is told.
func TestRelayLeftInSilence(t *testing.T) {
	t.Parallel()
	for name, relay := range map[string]func(context.Context, *aether.Stream, *aether.Stream) error{
		"Relay": aether.Relay,
		"RelayTo": func(ctx context.Context, a, b *aether.Stream) error {
			return aether.RelayTo(ctx, a, b, func(*aether.Frame) {})
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := deadline(t)
			near, far := dial(t, ends{})
			began, saw := make(chan struct{}), make(chan error, 1)
			serve(t, far, func(_ context.Context, s *aether.Stream) {
				close(began)
				<-s.Done()
				saw <- s.Err()
			})
			relayed := make(chan error, 1)
			c := connect(t, ends{}, func(ctx context.Context, s *aether.Stream) {
				relayed <- relay(ctx, s, must(near.Open(ctx, s.Open())))
			})
			s := must(c.Open(ctx, aether.Open{Method: "watch", Closed: true}))
			<-began
			s.Reset(nil)
			for who, ended := range map[string]<-chan error{"server": saw, "relay": relayed} {
				select {
				case err := <-ended:
					if !errors.Is(err, aether.ErrReset) {
						t.Errorf("the %s ended with %v", who, err)
					}
				case <-ctx.Done():
					near.Close() // which ends what still waits
					t.Fatalf("the %s isn't told that the client has left", who)
				}
			}
			eventually(t, "all forget the streams", func() bool { return c.Streams()+near.Streams()+far.Streams() == 0 })
		})
	}
}
