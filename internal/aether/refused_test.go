package aether

import (
	"context"
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether/unixfd"
)

// TestDescriptorsOfRefusedFrames: what comes with an OPEN that is refused, whichever of its frames is at fault, is closed,
// and the next OPEN gets its own.
func TestDescriptorsOfRefusedFrames(t *testing.T) {
	t.Parallel()
	body := make([]byte, 100)
	good := (&Open{Method: "take", Body: body, FDs: []int{0}}).appendTo(nil)
	for name, c := range map[string]struct {
		frames [][]byte
		broken int // the frame whose checksum is wrong; -1: none
		ends   bool
	}{
		"good":                    {[][]byte{good}, -1, false},
		"malformed":               {[][]byte{append(appendVarint(nil, openFDs, 1), 0xff)}, -1, false},
		"no-method":               {[][]byte{appendBytes(appendVarint(nil, openFDs, 1), openBody, body)}, -1, false},
		"too-large":               {append([][]byte{good[:len(good)-1]}, chunks(MaxMessage+2*maxReset)...), -1, false},
		"checksum":                {[][]byte{good}, 0, true}, // nobody knows whether it has descriptors
		"checksum-of-a-later-one": {[][]byte{good[:50], good[50:]}, 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			a, b, err := unixfd.Pair(unixfd.Options{}, unixfd.Options{MaxFDs: 8})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { a.Close() })
			took := make(chan string, 4) // more than are opened
			conn := served(t, b, func(_ context.Context, s *Stream) {
				for _, fd := range s.TakeFDs() {
					f := os.NewFile(uintptr(fd), "passed")
					f.WriteString(s.Open().RequestID) //nolint:errcheck // its reader notices
					f.Close()
				}
				took <- s.Open().RequestID
			})
			var peer Conn
			if err := peer.opts.setDefaults(); err != nil {
				t.Fatal(err)
			}
			go io.Copy(io.Discard, a)  //nolint:errcheck // ends with a
			a.Write(peer.helloFrame()) //nolint:errcheck // the server notices
			first, next := pipe(t), pipe(t)
			for i, p := range c.frames {
				hd := openHeader(1, p)
				var fds []int
				if i == len(c.frames)-1 {
					fds = []int{int(first.w.Fd())}
				} else {
					hd.flags = flagMore
				}
				if i == c.broken {
					hd.crc ^= 1
				}
				a.WriteBuffers([][]byte{hd.appendTo(nil), p}, fds) //nolint:errcheck // the server may have hung up
			}
			p := (&Open{Method: "take", RequestID: "next", FDs: []int{0}}).appendTo(nil)
			hd := openHeader(3, p)
			a.WriteBuffers([][]byte{hd.appendTo(nil), p}, []int{int(next.w.Fd())}) //nolint:errcheck // as above
			first.w.Close()
			next.w.Close()
			var over <-chan struct{}
			if c.ends {
				over = (<-conn).Done()
			}
			if !servedBoth(t, took, over, name == "good") {
				return
			}
			if c.ends {
				t.Fatal("the connection goes on, and nobody knows whose the descriptors are")
			}
			if got := next.told(t); got != "next, end" {
				t.Errorf("its descriptor was told %q", got)
			}
			if got := first.told(t); got != ", end" {
				t.Errorf("the refused one's was told %q", got)
			}
		})
	}
}

func openHeader(stream uint32, p []byte) header {
	return header{version: Version, channel: Control, typ: ctlOpen, stream: stream, length: uint32(len(p)), crc: checksum(p)}
}

// servedBoth waits until the next OPEN is served, and with both the first one too, or until the connection is over.
// Whatever is closed is closed before an OPEN that comes later is served: nothing has to be waited for then.
func servedBoth(t *testing.T, took <-chan string, over <-chan struct{}, both bool) bool {
	t.Helper()
	served := map[string]bool{}
	for !served["next"] || both && !served[""] {
		select {
		case <-over:
			return false
		case id := <-took:
			served[id] = true
		case <-time.After(time.Minute):
			t.Fatalf("the next open isn't served, and the connection hasn't ended: %v", served)
		}
	}
	return true
}

func chunks(n int) (all [][]byte) {
	for ; n > 0; n -= MaxDataElse {
		all = append(all, make([]byte, min(n, MaxDataElse)))
	}
	return all
}

type ownPipe struct{ r, w *os.File }

func pipe(t *testing.T) ownPipe {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return ownPipe{r, w}
}

// told is what was written to the pipe, and whether that is its end, without waiting for more.
func (p ownPipe) told(t *testing.T) string {
	t.Helper()
	raw, err := p.r.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var all []byte
	err = raw.Read(func(fd uintptr) bool {
		for buf := make([]byte, 64); ; {
			n, err := unix.Read(int(fd), buf)
			if err != nil || n == 0 {
				all = append(all, map[bool]string{true: ", end", false: ", and somebody has it still"}[err == nil]...)
				return true
			}
			all = append(all, buf[:n]...)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(all)
}

// served makes rw a served connection, once the other end has said hello.
func served(t *testing.T, rw Transport, handler func(context.Context, *Stream)) <-chan *Conn {
	t.Helper()
	ready := make(chan *Conn, 1) // one connection
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := Server(rw, Options{})
		if err != nil {
			t.Error(err)
			return
		}
		ready <- c
		if err := c.Serve(context.Background(), handler); err == nil || api.IsCode(err, api.CodeInternal) && !errors.Is(err, ErrConnLost) {
			t.Errorf("it ended with %v", err)
		}
	}()
	t.Cleanup(func() { rw.Close(); <-done })
	return ready
}
