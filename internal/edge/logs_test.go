package edge

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
)

func (n *node) logs(id, body string) transcript {
	n.t.Helper()
	s, err := n.client.Open(n.t.Context(), aether.Open{Method: "sandbox.logs", Sandbox: id, Project: "p", Body: []byte(body), Closed: true})
	if err != nil {
		n.t.Fatal(err)
	}
	return n.read(s)
}

func TestLogsOutliveTheSandbox(t *testing.T) {
	n := startNode(t, nil)
	stopped := n.create(`{"image":"busybox","command":["hang"]}`).ID
	died := n.create(`{"image":"busybox","command":["say","hello","log"]}`).ID
	until(t, "its process has ended", func() bool { return slices.Contains(n.eventTypes(died), "exec_ended") })
	n.must("sandbox.stop", stopped, nil, nil)
	n.fake.kill(died)
	n.events(died, 0, true)
	check := func() {
		t.Helper()
		for _, follow := range []string{"", `"follow":true,`} {
			for from, want := range map[int]string{0: "hello log", 6: "log", 9: "", 99: ""} {
				tr := n.logs(died, fmt.Sprintf(`{%s"since_offset":%d}`, follow, from))
				if string(tr.stdout) != want || tr.err != nil || tr.exited == nil || !tr.exited.HasCode {
					t.Errorf("log from %d: %q, %v, exit %+v; want %q", from, tr.stdout, tr.err, tr.exited, want)
				}
			}
			if tr := n.logs(stopped, `{`+follow+`"since_stderr_offset":0}`); string(tr.stdout) != "hanging\n" || tr.err != nil || tr.exited != nil {
				t.Errorf("log of one that was running: %+v", tr)
			}
		}
	}
	check()
	n.restart()
	check()
	n.edge.sweepOnce(time.Now().Add(61 * time.Minute))
	wantCode(t, n.logs(died, `{}`).err, api.CodeNotFound)
	if files, _ := os.ReadDir(n.edge.store.dir); len(files) != 0 {
		t.Errorf("files left: %v", files)
	}
}

func TestLogThatCouldNotBeSaved(t *testing.T) {
	n := startNode(t, nil)
	id := n.create(`{"image":"busybox","command":["hang"]}`).ID
	n.fake.setFault("open", api.Errorf(api.CodeUnavailable, "no aether"))
	n.must("sandbox.stop", id, nil, nil)
	if e := wantCode(t, n.logs(id, `{}`).err, api.CodeWrongState); !strings.Contains(e.Detail, "log couldn't be kept") {
		t.Errorf("%+v", e)
	}
	wantCode(t, n.logs(id, `{"since_offset":-1}`).err, api.CodeInvalid)
	if e := wantCode(t, n.logs(id, `{"since_stderr_offset":-1}`).err, api.CodeInvalid); e.Field != "since_stderr_offset" {
		t.Errorf("%+v", e)
	}
}

// TestFollowingEndsWithTheSandbox: who follows gets what was saved of the rest, and an end in order.
func TestFollowingEndsWithTheSandbox(t *testing.T) {
	n := startNode(t, nil)
	id := n.create(`{"image":"busybox","command":["hang"]}`).ID
	s, err := n.client.Open(t.Context(), aether.Open{Method: "sandbox.logs", Sandbox: id, Project: "p", Body: []byte(`{"follow":true}`), Closed: true})
	if err != nil {
		t.Fatal(err)
	}
	var got []byte
	for string(got) != "hanging\n" {
		f, err := s.Recv(t.Context())
		if err != nil {
			t.Fatalf("after %q: %v", got, err)
		}
		if f.Channel == aether.Stdout {
			got = append(got, f.Data...)
		}
		f.Release()
	}
	n.fake.cut() // a new aether is asked from where this one's reader was
	n.must("sandbox.stop", id, nil, nil)
	n.fake.cut()
	if tr := n.read(s); tr.err != nil || len(tr.stdout) != 0 {
		t.Errorf("the end: %+v", tr)
	}
}

// TestExcerptAgainstModel: whatever comes, an excerpt and what is sent of it are the true bytes at their places.
func TestExcerptAgainstModel(t *testing.T) {
	n := newPipe(t)
	source := make([]byte, 4*keptLog)
	for i := range source {
		source[i] = byte(i>>16) ^ byte(i*31)
	}
	rapid.Check(t, func(t *rapid.T) {
		var x excerpt
		gaps := 0
		for x.total < int64(len(source)) && rapid.IntRange(0, 9).Draw(t, "go on") > 0 {
			size := min(rapid.Int64Range(1, keptLog/2).Draw(t, "size"), int64(len(source))-x.total)
			if rapid.IntRange(0, 6).Draw(t, "gap") == 0 {
				x.gap(size)
				gaps++
				continue
			}
			x.add(source[x.total : x.total+size])
		}
		x.cut()
		if len(x.head) > keptLog/2 || len(x.tail) > keptLog/2 {
			t.Fatalf("keeps %d and %d bytes", len(x.head), len(x.tail))
		}
		tail := x.total - int64(len(x.tail))
		if !bytes.Equal(x.head, source[:len(x.head)]) || !bytes.Equal(x.tail, source[tail:x.total]) {
			t.Fatalf("other bytes: head %d, tail from %d of %d", len(x.head), tail, x.total)
		}
		if gaps == 0 && x.total <= keptLog && int64(len(x.head)+len(x.tail)) != x.total {
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
