package aether_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/dsec-io/dsec/internal/aether"
)

func echo(ctx context.Context, s *aether.Stream) {
	s.Reply(ctx, s.Open().Body) //nolint:errcheck // the client notices
}

func BenchmarkUnary(b *testing.B) {
	c := connect(b, ends{}, echo)
	ctx := b.Context()
	open := aether.Open{Method: "echo", Sandbox: "s0123456789", Body: make([]byte, 100)}
	var took []time.Duration
	b.ReportAllocs()
	for b.Loop() {
		start := time.Now()
		if _, err := aether.Unary(ctx, c, open); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1e3, "p50-us")
	b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1e3, "p99-us")
}

func BenchmarkUnary16(b *testing.B) {
	c := connect(b, ends{}, echo)
	ctx := b.Context()
	open := aether.Open{Method: "echo", Sandbox: "s0123456789", Body: make([]byte, 100)}
	const workers, each = 16, 100
	for b.Loop() {
		var wg sync.WaitGroup
		for range workers {
			wg.Go(func() {
				for range each {
					if _, err := aether.Unary(ctx, c, open); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
	}
	b.ReportMetric(float64(b.N)*workers*each/b.Elapsed().Seconds(), "calls/s")
}

// exec is what a shard sends for a command with a little output.
func exec(ctx context.Context, s *aether.Stream) {
	s.Hold()
	started := aether.Started{ID: "p1", StartedAtUnixNano: 1}
	exited := aether.Exited{HasCode: true, StdoutTotal: 100}
	s.Send(ctx, aether.MsgStarted, started.AppendTo(nil)) //nolint:errcheck // the client notices
	s.Write(ctx, aether.Stdout, make([]byte, 100))        //nolint:errcheck // the client notices
	s.CloseWrite(aether.Stdout)
	s.CloseWrite(aether.Stderr)
	s.Send(ctx, aether.MsgExited, exited.AppendTo(nil)) //nolint:errcheck // the client notices
	s.Close()
}

func BenchmarkExec(b *testing.B) {
	c := connect(b, ends{}, exec)
	runExec(b, c)
}

func BenchmarkExecRelayed(b *testing.B) {
	shard := connect(b, ends{}, exec)
	c := connect(b, ends{}, relayTo(shard))
	runExec(b, c)
}

// relayTo is a handler that relays every stream to another connection.
func relayTo(next *aether.Conn) func(context.Context, *aether.Stream) {
	return func(ctx context.Context, s *aether.Stream) {
		up, err := next.Open(ctx, s.Open())
		if err != nil {
			s.Reset(nil)
			return
		}
		aether.Relay(ctx, s, up) //nolint:errcheck // both ends are told
	}
}

func runExec(b *testing.B, c *aether.Conn) {
	ctx := b.Context()
	start := aether.ExecStart{ID: "p1", Argv: [][]byte{[]byte("true")}}
	open := aether.Open{Method: "exec", Sandbox: "s0123456789", Body: start.AppendTo(nil), Closed: true}
	b.ReportAllocs()
	for b.Loop() {
		s, err := c.Open(ctx, open)
		if err != nil {
			b.Fatal(err)
		}
		for {
			f, err := s.Recv(ctx)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				b.Fatal(err)
			}
			f.Release()
		}
	}
}

func BenchmarkStream(b *testing.B) {
	c := connect(b, ends{client: aether.Options{MaxData: 64 << 10}}, source)
	runStream(b, c)
}

func BenchmarkStream256K(b *testing.B) {
	c := connect(b, ends{}, source)
	runStream(b, c)
}

func BenchmarkStreamRelayed(b *testing.B) {
	shard := connect(b, ends{client: aether.Options{MaxData: 64 << 10}}, source)
	c := connect(b, ends{client: aether.Options{MaxData: 64 << 10}}, relayTo(shard))
	runStream(b, c)
}

// source writes without end.
func source(ctx context.Context, s *aether.Stream) {
	p := make([]byte, 256<<10)
	for s.Write(ctx, aether.Stdout, p) == nil {
	}
}

func runStream(b *testing.B, c *aether.Conn) {
	ctx := b.Context()
	s, err := c.Open(ctx, aether.Open{Method: "source"})
	if err != nil {
		b.Fatal(err)
	}
	const chunk = 4 << 20
	b.SetBytes(chunk)
	for b.Loop() {
		for got := 0; got < chunk; {
			f, err := s.Recv(ctx)
			if err != nil {
				b.Fatal(err)
			}
			got += len(f.Data)
			f.Release()
		}
	}
	s.Reset(nil)
}
