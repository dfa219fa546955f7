package aether_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"testing"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/aether/unixfd"
)

func TestDescriptors(t *testing.T) {
	t.Parallel()
	ctx := deadline(t)
	file := func() *os.File { return must(os.Create(t.TempDir() + "/f")) }
	const floor = 3
	c := connect(t, ends{serverSock: unixfd.Options{MaxFDs: 8, MinFD: floor - 97}}, func(ctx context.Context, s *aether.Stream) {
		if s.Open().Method == "leave" {
			s.Reply(ctx, nil) //nolint:errcheck // the client notices
			return
		}
		fds := s.TakeFDs()
		var body bytes.Buffer
		for _, fd := range fds {
			f := os.NewFile(uintptr(fd), "passed")
			fmt.Fprint(f, "written by the server")
			fmt.Fprintf(&body, "%v ", fd >= floor)
			f.Close()
		}
		s.Reply(ctx, body.Bytes()) //nolint:errcheck // the client notices
	})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			f := file()
			defer f.Close()
			body := make([]byte, 300_000) // an OPEN of two frames
			got, err := aether.Unary(ctx, c, aether.Open{Method: "take", Body: body, FDs: []int{int(f.Fd())}})
			if err != nil || string(got) != "true " {
				t.Errorf("take = %q, %v", got, err)
			}
			if b, err := os.ReadFile(f.Name()); string(b) != "written by the server" {
				t.Errorf("the file holds %q, %v", b, err)
			}
		})
	}
	wg.Wait()

	// What isn't taken is closed: the pipe's reader sees the end.
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := aether.Unary(ctx, c, aether.Open{Method: "leave", FDs: []int{int(w.Fd())}}); err != nil {
		t.Error(err)
	}
	w.Close()
	if b, err := io.ReadAll(r); err != nil || len(b) != 0 {
		t.Errorf("the pipe says %q, %v", b, err)
	}
}

func TestDescriptorsRefused(t *testing.T) {
	t.Parallel()
	ctx := deadline(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	open := aether.Open{Method: "add", FDs: []int{int(w.Fd())}}

	t.Run("receiver-takes-none", func(t *testing.T) {
		c := connect(t, ends{}, echo)
		if _, err := aether.Unary(ctx, c, open); !errors.Is(err, aether.ErrConnLost) && !api.IsCode(err, api.CodeInvalid) {
			t.Errorf("Unary() = %v", err)
		}
	})
	t.Run("below-the-floor", func(t *testing.T) {
		client, server := dial(t, ends{serverSock: unixfd.Options{MaxFDs: 8, MinFD: 1 << 19}})
		serve(t, server, echo)
		if _, err := aether.Unary(ctx, client, open); !errors.Is(err, aether.ErrConnLost) {
			t.Errorf("Unary() = %v", err)
		}
		if err := server.Err(); !errors.Is(err, unixfd.ErrLowFD) {
			t.Errorf("the server ended with %v", err)
		}
	})
	t.Run("other-transport", func(t *testing.T) {
		a, b := net.Pipe()
		client, server := handshake(t, a, b, ends{})
		serve(t, server, echo)
		if _, err := aether.Unary(ctx, client, open); !errors.Is(err, aether.ErrDescriptors) {
			t.Errorf("Unary() = %v", err)
		}
	})
	t.Run("bad-descriptor", func(t *testing.T) {
		c := connect(t, ends{}, echo)
		if _, err := aether.Unary(ctx, c, aether.Open{Method: "add", FDs: []int{1 << 20}}); err == nil {
			t.Error("a descriptor that isn't open was sent")
		}
	})
}

// TestDescriptorsOfManyOpens: opens that leave in one write have room for their descriptors at a receiver that lets the
// most wait that there may be.
func TestDescriptorsOfManyOpens(t *testing.T) {
	t.Parallel()
	ctx := deadline(t)
	client, server := dial(t, ends{serverSock: unixfd.Options{MaxFDs: 128}})
	ready := make(chan struct{})
	serve(t, server, func(ctx context.Context, s *aether.Stream) {
		if s.Open().Method == "ready" {
			close(ready)
			return
		}
		fds := s.TakeFDs()
		for _, fd := range fds {
			os.NewFile(uintptr(fd), "passed").Close()
		}
		s.Reply(ctx, fmt.Append(nil, len(fds))) //nolint:errcheck // the client notices
	})
	// A server that doesn't serve yet takes fewer streams.
	if _, err := client.Open(ctx, aether.Open{Method: "ready", Closed: true}); err != nil {
		t.Fatal(err)
	}
	<-ready
	null := must(os.Open(os.DevNull))
	defer null.Close()
	const n = 300
	streams := make([]*aether.Stream, n)
	for i := range streams {
		var err error
		streams[i], err = client.Open(ctx, aether.Open{Method: "take", Closed: true, Hold: i < n-1, FDs: []int{int(null.Fd()), int(null.Fd())}})
		if err != nil {
			t.Fatal(err)
		}
	}
	for i, s := range streams {
		f, err := s.Recv(ctx)
		if err != nil || string(f.Data) != "2" {
			t.Fatalf("stream %d: %q, %v", i, f.Data, err)
		}
		f.Release()
	}
}

// TestDescriptorsOfRefusedOpens: what came with an OPEN that is refused is closed, and the next one gets its own.
func TestDescriptorsOfRefusedOpens(t *testing.T) {
	t.Parallel()
	ctx := deadline(t)
	for name, c := range map[string]struct{ n, body int }{"too-many": {140, 10}, "in-flight": {16, 9 << 20}} {
		t.Run(name, func(t *testing.T) {
			client, server := dial(t, ends{serverSock: unixfd.Options{MaxFDs: 128}})
			// Nobody serves yet: OPENs wait, until there are too many of them or too many bytes.
			var streams []*aether.Stream
			var pipes []*os.File
			for range c.n {
				r, w, err := os.Pipe()
				if err != nil {
					t.Fatal(err)
				}
				defer r.Close()
				pipes = append(pipes, r)
				s, err := client.Open(ctx, aether.Open{Method: "take", Closed: true, Body: make([]byte, c.body), FDs: []int{int(w.Fd())}})
				w.Close()
				if err != nil {
					t.Fatal(err)
				}
				streams = append(streams, s)
			}
			refused := func() (n int) {
				for _, s := range streams {
					if s.Err() != nil {
						n++
					}
				}
				return n
			}
			eventually(t, "some to be refused", func() bool { return refused() > 0 })
			serve(t, server, func(ctx context.Context, s *aether.Stream) {
				for _, fd := range s.TakeFDs() {
					f := os.NewFile(uintptr(fd), "passed")
					fmt.Fprint(f, "taken")
					f.Close()
				}
				s.Reply(ctx, nil) //nolint:errcheck // the client notices
			})
			taken := 0
			for i, s := range streams {
				_, err := s.Recv(ctx)
				got, rerr := io.ReadAll(pipes[i]) // ends when nobody has the descriptor any more
				if want := map[bool]string{true: "taken"}[err == nil]; string(got) != want || rerr != nil {
					t.Errorf("open %d ended with %v, and its descriptor was %q, %v", i, err, got, rerr)
				}
				taken += len(got)
			}
			if err := server.Err(); err != nil || taken == 0 {
				t.Errorf("the connection ended with %v; %d bytes", err, taken)
			}
		})
	}
}
