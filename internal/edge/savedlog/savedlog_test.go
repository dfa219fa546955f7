package savedlog

import (
	"bytes"
	"context"
	"net"
	"testing"

	"pgregory.net/rapid"

	"github.com/dsec-io/dsec/internal/aether"
)

// TestExcerptAgainstModel: whatever comes, an excerpt and what is sent of it are the true bytes at their places.
func TestExcerptAgainstModel(t *testing.T) {
	n := newPipe(t)
	source := make([]byte, 4*kept)
	for i := range source {
		source[i] = byte(i>>16) ^ byte(i*31)
	}
	rapid.Check(t, func(t *rapid.T) {
		var x excerpt
		gaps := 0
		for x.total < int64(len(source)) && rapid.IntRange(0, 9).Draw(t, "go on") > 0 {
			size := min(rapid.Int64Range(1, kept/2).Draw(t, "size"), int64(len(source))-x.total)
			if rapid.IntRange(0, 6).Draw(t, "gap") == 0 {
				x.gap(size)
				gaps++
				continue
			}
			x.add(source[x.total : x.total+size])
		}
		x.cut()
		if len(x.head) > kept/2 || len(x.tail) > kept/2 {
			t.Fatalf("keeps %d and %d bytes", len(x.head), len(x.tail))
		}
		tail := x.total - int64(len(x.tail))
		if !bytes.Equal(x.head, source[:len(x.head)]) || !bytes.Equal(x.tail, source[tail:x.total]) {
			t.Fatalf("other bytes: head %d, tail from %d of %d", len(x.head), tail, x.total)
		}
		if gaps == 0 && x.total <= kept && int64(len(x.head)+len(x.tail)) != x.total {
			t.Fatalf("keeps %d and %d of %d bytes", len(x.head), len(x.tail), x.total)
		}
		from := rapid.Int64Range(0, x.total+1).Draw(t, "from")
		at := from
		for _, f := range n.sent(t, &x, from) {
			if f.gap == 0 && !bytes.Equal(f.data, source[at:at+int64(len(f.data))]) {
				t.Fatalf("wrong bytes at %d", at)
			}
			at += int64(len(f.data)) + f.gap
		}
		if at != max(from, x.total) {
			t.Fatalf("sent up to %d of %d", at, x.total)
		}
	})
}

// pipe is an aether connection whose streams come out of a channel.
type pipe struct {
	t        testing.TB
	conn     *aether.Conn
	accepted chan *aether.Stream
}

func newPipe(t testing.TB) *pipe {
	t.Helper()
	p := &pipe{t: t, accepted: make(chan *aether.Stream)}
	a, b := net.Pipe()
	served := make(chan struct{})
	go func() {
		defer close(served)
		c, err := aether.Server(b, aether.Options{})
		if err != nil {
			t.Error(err)
			return
		}
		_ = c.Serve(t.Context(), func(_ context.Context, s *aether.Stream) {
			p.accepted <- s
			<-s.Done()
		})
	}()
	var err error
	if p.conn, err = aether.Client(a, aether.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.conn.Close()
		<-served
	})
	return p
}

type sentPart struct {
	data []byte
	gap  int64
}

// sent is what send puts on a stream.
func (n *pipe) sent(t *rapid.T, x *excerpt, from int64) []sentPart {
	near, err := n.conn.Open(n.t.Context(), aether.Open{Method: "log"})
	if err != nil {
		t.Fatal(err)
	}
	far := <-n.accepted
	defer far.Reset(nil)
	done := make(chan error, 1)
	go func() {
		err := x.send(n.t.Context(), far, aether.Stderr, from)
		if err == nil {
			err = far.Close()
		}
		done <- err
	}()
	var parts []sentPart
	for {
		f, err := near.Recv(n.t.Context())
		if err != nil {
			break
		}
		switch {
		case f.Channel == aether.Stderr:
			parts = append(parts, sentPart{data: bytes.Clone(f.Data)})
		case f.Type == aether.MsgGap:
			var g aether.Gap
			if err := g.Unmarshal(f.Data); err != nil || g.Channel != uint8(aether.Stderr) {
				t.Fatalf("gap %+v, %v", g, err)
			}
			parts = append(parts, sentPart{gap: g.Length})
		}
		f.Release()
	}
	near.Reset(nil)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return parts
}
