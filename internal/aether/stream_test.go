package aether_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/aether/unixfd"
)

// eventually waits for something that another goroutine or process brings about.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("%s: not within a minute", what)
		}
	}
}

// transcript reads a stream to its end, and tells what came, data of one channel joined.
func transcript(ctx context.Context, s *aether.Stream) ([]string, error) {
	var got []string
	var data [4]bytes.Buffer
	for {
		f, err := s.Recv(ctx)
		if errors.Is(err, io.EOF) {
			return got, nil
		}
		if err != nil {
			return got, err
		}
		if f.Channel == aether.Message {
			got = append(got, fmt.Sprintf("message %d %q", f.Type, f.Data))
		} else {
			data[f.Channel].Write(f.Data)
			if f.End {
				got = append(got, fmt.Sprintf("channel %d %q", f.Channel, data[f.Channel].String()))
			}
		}
		f.Release()
	}
}

func transports(t *testing.T) map[string]func() (aether.Transport, aether.Transport) {
	return map[string]func() (aether.Transport, aether.Transport){
		"unixfd": func() (aether.Transport, aether.Transport) {
			a, b, err := unixfd.Pair(unixfd.Options{}, unixfd.Options{})
			if err != nil {
				t.Fatal(err)
			}
			return a, b
		},
		"pipe": func() (aether.Transport, aether.Transport) { return net.Pipe() },
	}
}

func TestConversation(t *testing.T) {
	t.Parallel()
	for name, pair := range transports(t) {
		t.Run(name, func(t *testing.T) {
			a, b := pair()
			client, server := handshake(t, a, b, ends{client: aether.Options{Name: "cli"}, server: aether.Options{Name: "shard"}})
			if got := client.Peer().Name + " " + server.Peer().Name; got != "shard cli" {
				t.Errorf("peers are %q", got)
			}
			ctx := deadline(t)
			heard := make(chan []string, 1)
			serve(t, server, func(ctx context.Context, s *aether.Stream) {
				open := s.Open()
				s.Send(ctx, aether.MsgStarted, open.Body)                         //nolint:errcheck // the client notices
				s.Write(ctx, aether.Stderr, []byte("err"))                        //nolint:errcheck // the client notices
				s.Write(ctx, aether.Stdout, bytes.Repeat([]byte("o"), 1_000_000)) //nolint:errcheck // the client notices
				s.CloseWrite(aether.Stdout)
				s.CloseWrite(aether.Stderr)
				got, err := transcript(ctx, s)
				if err != nil {
					t.Error(err)
				}
				s.Send(ctx, aether.MsgExited, nil) //nolint:errcheck // the client notices
				heard <- append(got, fmt.Sprintf("%s %s %s %s %x", open.Method, open.Sandbox, open.Project, open.RequestID, open.Trace))
			})
			s, err := client.Open(ctx, aether.Open{
				Method: "exec", Sandbox: "s1", Project: "a/b", RequestID: "r1", Trace: [16]byte{15: 1}, Body: []byte("body"),
			})
			if err != nil {
				t.Fatal(err)
			}
			err = errors.Join(s.Write(ctx, aether.Stdin, []byte("in")), s.CloseWrite(aether.Stdin), s.CloseWrite(aether.Stdin),
				s.Send(ctx, aether.MsgSignal, []byte("sig")), s.Close())
			if err != nil {
				t.Fatal(err)
			}
			got, err := transcript(ctx, s)
			if err != nil {
				t.Fatal(err)
			}
			want := []string{
				`message 2 "body"`, fmt.Sprintf("channel 2 %q", strings.Repeat("o", 1_000_000)), `channel 3 "err"`, `message 3 ""`,
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("client heard (-want +got):\n%.2000s", diff)
			}
			want = []string{`channel 1 "in"`, `message 5 "sig"`, "exec s1 a/b r1 00000000000000000000000000000001"}
			if diff := cmp.Diff(want, <-heard); diff != "" {
				t.Errorf("server heard (-want +got):\n%s", diff)
			}
			if _, err := s.Recv(ctx); !errors.Is(err, io.EOF) {
				t.Errorf("Recv() after the end = %v", err)
			}
			eventually(t, "both sides forget the stream", func() bool { return client.Streams()+server.Streams() == 0 })
			<-s.Done()
			if err := s.Err(); err != nil {
				t.Errorf("Err() after a graceful end = %v", err)
			}
		})
	}
}

func TestLargeMessages(t *testing.T) {
	t.Parallel()
	c := connect(t, ends{server: aether.Options{MaxData: aether.MaxDataAether}}, echo)
	body := bytes.Repeat([]byte("0123456789abcdef"), aether.MaxMessage/16)
	got, err := aether.Unary(deadline(t), c, aether.Open{Method: "echo", Body: body})
	if err != nil || !bytes.Equal(got, body) {
		t.Fatalf("a body of 16 MiB comes back as %d bytes, %v", len(got), err)
	}
	if _, err = aether.Unary(deadline(t), c, aether.Open{Method: "echo", Body: append(body, 0)}); !errors.Is(err, aether.ErrTooLarge) {
		t.Errorf("a larger one: %v", err)
	}
	s := must(c.Open(deadline(t), aether.Open{Method: "echo"}))
	if err := s.Send(deadline(t), 1, append(body, 0)); !errors.Is(err, aether.ErrTooLarge) {
		t.Errorf("a larger message: %v", err)
	}
	s.Reset(nil)
}

// TestMessagesStayWhole sends long messages from several goroutines at once.
func TestMessagesStayWhole(t *testing.T) {
	t.Parallel()
	ctx := deadline(t)
	c := connect(t, ends{}, func(ctx context.Context, s *aether.Stream) {
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				if err := s.Send(ctx, uint8(i+1), bytes.Repeat([]byte{byte(i)}, 2_000_000)); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	})
	s := must(c.Open(ctx, aether.Open{Method: "talk", Closed: true}))
	for range 4 {
		f, err := s.Recv(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(f.Data, bytes.Repeat([]byte{f.Type - 1}, 2_000_000)) {
			t.Errorf("message %d of %d bytes isn't what was sent", f.Type, len(f.Data))
		}
		f.Release()
	}
}

// TestSlowReader has a reader that doesn't read: its sender stops at the window, memory stays within it, and others go on.
func TestSlowReader(t *testing.T) {
	t.Parallel()
	const window = 256 << 10
	ctx := deadline(t)
	wrote := make(chan int, 1)
	c := connect(t, ends{}, func(ctx context.Context, s *aether.Stream) {
		if s.Open().Method == "echo" {
			echo(ctx, s)
			return
		}
		n := 0
		for n < window/2 && s.Write(ctx, aether.Stdout, make([]byte, 1000)) == nil {
			n += 1000
		}
		// The sender stops by itself.
		short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		defer cancel()
		for s.Write(short, aether.Stdout, make([]byte, 1000)) == nil {
			n += 1000
		}
		wrote <- n
		if short.Err() == nil {
			t.Error("the sender stopped for another reason than missing credit")
		}
		for n < 4<<20 {
			if err := s.Write(ctx, aether.Stdout, make([]byte, 100_000)); err != nil {
				t.Error(err)
				return
			}
			n += 100_000
		}
		s.CloseWrite(aether.Stdout)
	})
	slow := must(c.Open(ctx, aether.Open{Method: "flood", Closed: true}))
	for range 200 {
		if _, err := aether.Unary(ctx, c, aether.Open{Method: "echo", Body: make([]byte, 1000)}); err != nil {
			t.Fatal(err)
		}
	}
	n := <-wrote
	if n < window/2 || n > window+1000 {
		t.Errorf("the sender got rid of %d bytes, the window is %d", n, window)
	}
	eventually(t, "all arrive", func() bool { got, _ := slow.Queued(); return got == n })
	total := 0
	for {
		f, err := slow.Recv(ctx)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		total += len(f.Data)
		f.Release()
	}
	if total < 4<<20 {
		t.Errorf("%d bytes came in all", total)
	}
}

// TestTinyFrames shows that the memory of many tiny frames is bounded by credit too.
func TestTinyFrames(t *testing.T) {
	t.Parallel()
	ctx := deadline(t)
	const least = 500
	stopped := make(chan int, 1)
	c := connect(t, ends{}, func(ctx context.Context, s *aether.Stream) {
		n := 0
		for n < least && s.Write(ctx, aether.Stdout, []byte{1}) == nil {
			n++
		}
		short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		defer cancel()
		for s.Write(short, aether.Stdout, []byte{1}) == nil {
			n++
		}
		stopped <- n
	})
	s := must(c.Open(ctx, aether.Open{Method: "flood", Closed: true}))
	if n := <-stopped; n < least || n > 1100 {
		t.Errorf("%d frames of one byte went out without being read", n)
	}
	s.Reset(nil)
}

func TestCancel(t *testing.T) {
	t.Parallel()
	c := connect(t, ends{}, func(_ context.Context, s *aether.Stream) { <-s.Done() })
	s := must(c.Open(deadline(t), aether.Open{Method: "wait"}))
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(context.Background())
	results := make(chan error, 3)
	go func() { _, err := s.Recv(ctx); results <- err }()
	go func() {
		var err error
		for err == nil {
			err = s.Write(ctx, aether.Stdin, make([]byte, 100_000))
		}
		results <- err
	}()
	cancel(why)
	for range 2 {
		if err := <-results; !errors.Is(err, why) {
			t.Errorf("a cancelled call returns %v", err)
		}
	}
	if _, err := c.Open(ctx, aether.Open{Method: "wait"}); !errors.Is(err, why) {
		t.Errorf("Open with a cancelled context = %v", err)
	}
	s.Reset(nil)
}

func TestReset(t *testing.T) {
	t.Parallel()
	ctx := deadline(t)
	typed := api.Errorf(api.CodeCommandNotFound, "no such command: x")
	typed.Hint = "look at PATH"
	gone := make(chan error, 1)
	c := connect(t, ends{}, func(ctx context.Context, s *aether.Stream) {
		if s.Open().Method == "typed" {
			s.Write(ctx, aether.Stdout, []byte("before")) //nolint:errcheck // the client notices
			s.Flush()
			f, err := s.Recv(ctx) // the client has it
			if err != nil {
				t.Error(err)
			}
			f.Release()
			s.Reset(typed)
			return
		}
		<-s.Done()
		_, err := s.Recv(ctx)
		gone <- errors.Join(err, s.Write(ctx, aether.Stdout, []byte("x")), s.Close(), s.Err())
	})
	s := must(c.Open(ctx, aether.Open{Method: "typed"}))
	f := must(s.Recv(ctx))
	if string(f.Data) != "before" {
		t.Errorf("before the reset came %q", f.Data)
	}
	f.Release()
	if err := s.Send(ctx, 9, nil); err != nil {
		t.Fatal(err)
	}
	_, err := s.Recv(ctx)
	got, _ := errors.AsType[*api.Error](err)
	if diff := cmp.Diff(typed, got); diff != "" {
		t.Errorf("reset (-want +got):\n%s", diff)
	}
	for _, err := range []error{s.Write(ctx, aether.Stdin, []byte("x")), s.Send(ctx, 1, nil), s.CloseWrite(aether.Stdin), s.Close()} {
		if !api.IsCode(err, api.CodeCommandNotFound) {
			t.Errorf("use after the reset: %v", err)
		}
	}

	s = must(c.Open(ctx, aether.Open{Method: "wait", Closed: true}))
	s.Reset(nil)
	if err := <-gone; !errors.Is(err, aether.ErrReset) || errors.Is(err, aether.ErrConnLost) {
		t.Errorf("a plain reset is %v for the peer", err)
	}
	_, err = s.Recv(ctx)
	for _, err := range []error{err, s.Write(ctx, aether.Stdin, []byte("x")), s.Err()} {
		if !errors.Is(err, aether.ErrClosed) {
			t.Errorf("use after a reset here: %v", err)
		}
	}
	eventually(t, "the stream is forgotten", func() bool { return c.Streams() == 0 })
}

// TestLateFrames resets streams whose peer goes on sending.
func TestLateFrames(t *testing.T) {
	t.Parallel()
	ctx := deadline(t)
	client, server := dial(t, ends{})
	serve(t, server, func(ctx context.Context, s *aether.Stream) {
		if s.Open().Method == "echo" {
			echo(ctx, s)
			return
		}
		source(ctx, s)
	})
	for range 50 {
		s := must(client.Open(ctx, aether.Open{Method: "source"}))
		f := must(s.Recv(ctx))
		s.Reset(nil)
		f.Release()
		if _, err := aether.Unary(ctx, client, aether.Open{Method: "echo", Body: []byte("x")}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "both sides forget the streams", func() bool { return client.Streams()+server.Streams() == 0 })
}

// TestDroppedInput has a handler that returns without reading what the client goes on sending.
func TestDroppedInput(t *testing.T) {
	t.Parallel()
	ctx := deadline(t)
	client, server := dial(t, ends{})
	serve(t, server, func(context.Context, *aether.Stream) {})
	s := must(client.Open(ctx, aether.Open{Method: "deaf"}))
	for range 50 {
		if err := s.Write(ctx, aether.Stdin, make([]byte, 100_000)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Recv(ctx); !errors.Is(err, io.EOF) {
		t.Errorf("Recv() = %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	eventually(t, "both sides forget the stream", func() bool { return client.Streams()+server.Streams() == 0 })
}

func TestHold(t *testing.T) {
	t.Parallel()
	ctx := deadline(t)
	c := connect(t, ends{}, func(ctx context.Context, s *aether.Stream) {
		f, err := s.Recv(ctx)
		if err != nil {
			t.Error(err)
		}
		f.Release()
		s.Reply(ctx, []byte("ok")) //nolint:errcheck // the client notices
	})
	// A held stream whose owner waits for the answer doesn't wait for ever.
	s := must(c.Open(ctx, aether.Open{Method: "ask", Hold: true}))
	if err := s.Write(ctx, aether.Stdin, []byte("question")); err != nil {
		t.Fatal(err)
	}
	f := must(s.Recv(ctx))
	if string(f.Data) != "ok" {
		t.Errorf("reply %q", f.Data)
	}
	f.Release()
	s.Close()
	// One that is reset before it left leaves no trace.
	s = must(c.Open(ctx, aether.Open{Method: "ask", Hold: true}))
	s.Reset(nil)
	if _, err := s.Recv(ctx); !errors.Is(err, aether.ErrClosed) {
		t.Errorf("Recv() = %v", err)
	}
	eventually(t, "the streams are forgotten", func() bool { return c.Streams() == 0 })
}
