package aether_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/aether/unixfd"
)

func TestConnLost(t *testing.T) {
	t.Parallel()
	ctx := deadline(t)
	client, server := dial(t, ends{})
	var handler errgroupLike
	serve(t, server, func(ctx context.Context, s *aether.Stream) {
		_, err := s.Recv(ctx)
		handler.add(err)
	})
	s := must(client.Open(ctx, aether.Open{Method: "wait"}))
	eventually(t, "the stream arrives", func() bool { return server.Streams() == 1 })
	client.Close()
	<-client.Done()
	<-server.Done()
	_, err := s.Recv(ctx)
	_, oerr := client.Open(ctx, aether.Open{Method: "wait"})
	for _, err := range []error{err, oerr, s.Err(), s.Close(), s.Send(ctx, 1, nil), client.Err()} {
		if !errors.Is(err, aether.ErrConnLost) || !errors.Is(err, aether.ErrClosed) {
			t.Errorf("on the closing side: %v", err)
		}
	}
	eventually(t, "the handler returns", func() bool { return handler.len() == 1 })
	if err := handler.first(); !errors.Is(err, aether.ErrConnLost) || !errors.Is(err, aether.ErrHungUp) || errors.Is(err, io.EOF) {
		t.Errorf("on the other side: %v", err)
	}
}

type errgroupLike struct {
	mu   sync.Mutex
	errs []error
}

func (e *errgroupLike) add(err error) { e.mu.Lock(); defer e.mu.Unlock(); e.errs = append(e.errs, err) }
func (e *errgroupLike) len() int      { e.mu.Lock(); defer e.mu.Unlock(); return len(e.errs) }
func (e *errgroupLike) first() error  { e.mu.Lock(); defer e.mu.Unlock(); return e.errs[0] }

func TestServeContext(t *testing.T) {
	t.Parallel()
	client, server := dial(t, ends{})
	why := errors.New("node drained")
	ctx, cancel := context.WithCancelCause(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- server.Serve(ctx, func(ctx context.Context, s *aether.Stream) { <-ctx.Done(); <-s.Done() })
	}()
	s := must(client.Open(deadline(t), aether.Open{Method: "wait"}))
	cancel(why)
	if err := <-ended; !errors.Is(err, why) || !errors.Is(err, aether.ErrConnLost) {
		t.Errorf("Serve() = %v", err)
	}
	if _, err := s.Recv(deadline(t)); !errors.Is(err, aether.ErrConnLost) {
		t.Errorf("Recv() = %v", err)
	}
}

func TestTooManyStreams(t *testing.T) {
	t.Parallel()
	ctx := deadline(t)
	client, server := dial(t, ends{server: aether.Options{MaxStreams: 3}})
	serve(t, server, func(_ context.Context, s *aether.Stream) { <-s.Done() })
	var open []*aether.Stream
	for range 3 {
		open = append(open, must(client.Open(ctx, aether.Open{Method: "wait"})))
	}
	if _, err := client.Open(ctx, aether.Open{Method: "wait"}); !errors.Is(err, aether.ErrTooMany) {
		t.Errorf("a fourth: %v", err)
	}
	for range 100 { // a reset makes room at once
		open[0].Reset(nil)
		eventually(t, "the reset is out", func() bool { return client.Streams() < 3 })
		open = append(open[1:], must(client.Open(ctx, aether.Open{Method: "wait"})))
	}
	for _, s := range open {
		if s.Err() != nil {
			t.Errorf("a stream within the limit: %v", s.Err())
		}
		s.Reset(nil)
	}
}

func TestPanic(t *testing.T) {
	t.Parallel()
	told := make(chan string, 1)
	c := connect(t, ends{server: aether.Options{Panic: func(v any, stack []byte) { told <- fmt.Sprint(v, len(stack) > 0) }}},
		func(context.Context, *aether.Stream) { panic("bug") })
	_, err := aether.Unary(deadline(t), c, aether.Open{Method: "buggy"})
	if !api.IsCode(err, api.CodeInternal) {
		t.Errorf("the client is told %v", err)
	}
	if got := <-told; got != "bugtrue" {
		t.Errorf("Panic was told %q", got)
	}
}

func TestHello(t *testing.T) {
	t.Parallel()
	a, b, err := unixfd.Pair(unixfd.Options{}, unixfd.Options{})
	if err != nil {
		t.Fatal(err)
	}
	theirs := make(chan error, 1)
	go func() {
		_, err := aether.Server(b, aether.Options{Name: "old", MinVersion: 1, MaxVersion: 2})
		theirs <- err
	}()
	_, err = aether.Client(a, aether.Options{Name: "new", MinVersion: 3, MaxVersion: 5})
	for err, want := range map[error]aether.VersionError{
		err:      {OurMin: 3, OurMax: 5, TheirMin: 1, TheirMax: 2, Peer: "old"},
		<-theirs: {OurMin: 1, OurMax: 2, TheirMin: 3, TheirMax: 5, Peer: "new"},
	} {
		got, ok := errors.AsType[*aether.VersionError](err)
		if !ok || *got != want {
			t.Errorf("mismatch is told as %v, want %v", err, &want)
		}
	}

	for name, said := range map[string]string{"silence": "", "http": "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", "torn": "\xae\x7e\x00"} {
		t.Run(name, func(t *testing.T) {
			a, b := net.Pipe()
			defer b.Close()
			go io.Copy(io.Discard, b) //nolint:errcheck // ends with the pipe
			go b.Write([]byte(said))  //nolint:errcheck // ends with the pipe
			start := time.Now()
			_, err := aether.Client(a, aether.Options{HelloTimeout: 100 * time.Millisecond})
			if !errors.Is(err, aether.ErrHello) || time.Since(start) > 5*time.Second {
				t.Errorf("Client() = %v after %v", err, time.Since(start))
			}
		})
	}
	a2, b2 := net.Pipe()
	b2.Close()
	if _, err := aether.Client(a2, aether.Options{}); !errors.Is(err, aether.ErrHello) {
		t.Errorf("hello to nobody = %v", err)
	}
	a3, _ := net.Pipe()
	if _, err := aether.Client(a3, aether.Options{MaxData: 1 << 30}); err == nil {
		t.Error("absurd options are accepted")
	}
}
