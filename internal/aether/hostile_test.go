package aether

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
)

// hostile is a peer that writes what it likes and reads nothing but what a test asks for.
type hostile struct {
	t    *testing.T
	conn net.Conn
	rd   frameReader
	done <-chan struct{} // the test has taken too long
}

// attack connects a hostile client to a server whose handler never reads.
func attack(t *testing.T, o Options) (*hostile, *Conn) {
	t.Helper()
	a, b := net.Pipe()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	h := &hostile{t: t, conn: a, rd: frameReader{r: a}, done: ctx.Done()}
	ready := make(chan *Conn)
	go func() {
		c, err := Server(b, o)
		if err != nil {
			t.Error(err)
		}
		ready <- c
	}()
	var peer Conn
	if err := peer.opts.setDefaults(); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Write(peer.helloFrame()); err != nil {
		t.Fatal(err)
	}
	h.read() // HELLO
	c := <-ready
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Serve(ctx, func(_ context.Context, s *Stream) { <-s.Done() }) //nolint:errcheck // the test looks at Err
	}()
	t.Cleanup(func() { cancel(); a.Close(); c.Close(); <-done })
	return h, c
}

func (h *hostile) read() (header, []byte) {
	h.t.Helper()
	h.conn.SetReadDeadline(time.Now().Add(20 * time.Second)) //nolint:errcheck // a pipe can
	var hd header
	if err := h.rd.next(&hd); err != nil {
		h.t.Fatalf("read from the server: %v", err)
	}
	p := make([]byte, hd.length)
	if err := h.rd.payload(p); err != nil {
		h.t.Fatal(err)
	}
	return hd, p
}

// send writes a frame with right checksums.
func (h *hostile) send(hd header, payload []byte) {
	hd.version, hd.length, hd.crc = Version, uint32(len(payload)), checksum(payload)
	h.raw(append(hd.appendTo(nil), payload...))
}

// raw writes bytes; the server may have hung up.
func (h *hostile) raw(b []byte) {
	h.conn.SetWriteDeadline(time.Now().Add(20 * time.Second)) //nolint:errcheck // a pipe can
	if _, err := h.conn.Write(b); err != nil && !errors.Is(err, io.ErrClosedPipe) {
		h.t.Fatal(err)
	}
}

func (h *hostile) open(id uint32) {
	h.send(header{channel: Control, typ: ctlOpen, stream: id}, (&Open{Method: "m"}).appendTo(nil))
}

// wantReset reads the RESET of a stream.
func (h *hostile) wantReset(id uint32) error {
	h.t.Helper()
	hd, p := h.read()
	if hd.flags&flagReset == 0 || hd.stream != id {
		h.t.Fatalf("want a reset of stream %d, got %+v", id, hd)
	}
	return parseReset(p)
}

// alive shows that the connection goes on.
func (h *hostile) alive(id uint32) {
	h.t.Helper()
	h.open(id)
	h.send(header{channel: Stdin, flags: flagEnd, stream: id}, nil)
	h.send(header{channel: Stdin, stream: id}, []byte("after the end"))
	if err := h.wantReset(id); !api.IsCode(err, api.CodeInvalid) {
		h.t.Errorf("reset with %v", err)
	}
}

func TestStreamLevelAttacks(t *testing.T) {
	t.Parallel()
	window := func(ch byte, n uint32) []byte {
		return binary.LittleEndian.AppendUint32([]byte{ch, 0, 0, 0}, n)
	}
	for name, tc := range map[string]func(*hostile){
		"credit": func(h *hostile) {
			for range 2 {
				h.send(header{channel: Stdin, stream: 1}, make([]byte, MaxDataElse))
			}
		},
		"data-after-end": func(h *hostile) {
			h.send(header{channel: Stdin, flags: flagEnd, stream: 1}, []byte("x"))
			h.send(header{channel: Stdin, stream: 1}, []byte("x"))
		},
		"data-after-close": func(h *hostile) {
			h.send(header{channel: Control, flags: flagEnd, stream: 1}, nil)
			h.send(header{channel: Stdin, stream: 1}, []byte("x"))
		},
		"close-twice": func(h *hostile) {
			h.send(header{channel: Control, flags: flagEnd, stream: 1}, nil)
			h.send(header{channel: Control, flags: flagEnd, stream: 1}, nil)
		},
		"message-flood": func(h *hostile) {
			for range maxQueuedFrames + 1 {
				h.send(header{channel: Message, typ: 1, stream: 1}, nil)
			}
		},
		"message-bytes": func(h *hostile) {
			for range maxQueuedMessage/MaxDataElse + 1 {
				h.send(header{channel: Message, typ: 1, stream: 1}, make([]byte, MaxDataElse))
			}
		},
		"window-channel":  func(h *hostile) { h.send(header{channel: Control, typ: ctlWindow, stream: 1}, window(9, 1)) },
		"window-control":  func(h *hostile) { h.send(header{channel: Control, typ: ctlWindow, stream: 1}, window(0, 1)) },
		"window-zero":     func(h *hostile) { h.send(header{channel: Control, typ: ctlWindow, stream: 1}, window(1, 0)) },
		"window-too-much": func(h *hostile) { h.send(header{channel: Control, typ: ctlWindow, stream: 1}, window(1, 1<<32-1)) },
		"window-checksum": func(h *hostile) {
			hd := header{version: Version, channel: Control, typ: ctlWindow, stream: 1, length: windowPayload}
			h.raw(append(hd.appendTo(nil), make([]byte, windowPayload)...))
		},
	} {
		t.Run(name, func(t *testing.T) {
			h, _ := attack(t, Options{})
			h.open(1)
			tc(h)
			if err := h.wantReset(1); !api.IsCode(err, api.CodeInvalid) {
				t.Errorf("reset with %v", err)
			}
			// What comes late is dropped.
			h.send(header{channel: Stdin, stream: 1}, []byte("late"))
			h.send(header{channel: Message, typ: 1, stream: 1}, []byte("late"))
			h.send(header{channel: Control, typ: ctlWindow, stream: 1}, window(1, 1))
			h.send(header{channel: Control, flags: flagReset, stream: 1}, nil)
			h.alive(3)
		})
	}
}

func TestRefusedOpens(t *testing.T) {
	t.Parallel()
	for name, payload := range map[string][]byte{
		"garbage": {0xff, 0xff}, "no-method": {0x12, 1, 'x'}, "descriptors": (&Open{Method: "m", FDs: []int{1}}).appendTo(nil),
	} {
		t.Run(name, func(t *testing.T) {
			h, c := attack(t, Options{})
			h.send(header{channel: Control, typ: ctlOpen, stream: 1}, payload)
			if err := h.wantReset(1); !api.IsCode(err, api.CodeInvalid) {
				t.Errorf("reset with %v", err)
			}
			h.alive(3)
			if c.pending != 0 {
				t.Errorf("%d bytes are still counted", c.pending)
			}
		})
	}
	t.Run("too-many", func(t *testing.T) {
		h, _ := attack(t, Options{MaxStreams: 2})
		for id := range uint32(3) {
			h.send(header{channel: Control, typ: ctlOpen, flags: flagMore, stream: 2*id + 1}, []byte{0x0a})
		}
		if err := h.wantReset(5); !api.IsCode(err, api.CodeTooMany) {
			t.Errorf("reset with %v", err)
		}
		// The rest of the refused one is dropped.
		h.send(header{channel: Control, typ: ctlOpen, stream: 5}, []byte{1, 'm'})
		h.send(header{channel: Control, flags: flagReset, stream: 3}, nil)
		h.send(header{channel: Control, typ: ctlOpen, stream: 1}, []byte{1, 'm'})
		h.alive(7)
	})
	t.Run("too-large", func(t *testing.T) {
		h, _ := attack(t, Options{})
		for range MaxMessage/MaxDataElse + 2 {
			h.send(header{channel: Control, typ: ctlOpen, flags: flagMore, stream: 1}, make([]byte, MaxDataElse))
		}
		if err := h.wantReset(1); !api.IsCode(err, api.CodeTooLarge) {
			t.Errorf("reset with %v", err)
		}
		h.send(header{channel: Control, typ: ctlOpen, flags: flagMore, stream: 1}, make([]byte, MaxDataElse))
		h.alive(3)
	})
	t.Run("many-half-opened", func(t *testing.T) {
		h, c := attack(t, Options{})
		refused := false
		for id := uint32(1); id < 600 && !refused; id += 2 {
			for range 4 {
				h.send(header{channel: Control, typ: ctlOpen, flags: flagMore, stream: id}, make([]byte, MaxDataElse))
			}
			c.mu.Lock()
			refused = c.refusals.n > 0 || c.writer != writerNone
			if c.pending > maxPendingOpen+MaxDataElse {
				t.Errorf("%d bytes of half-opened streams", c.pending)
			}
			c.mu.Unlock()
		}
		if !refused {
			t.Error("nothing was refused")
		}
	})
}

func TestConnectionLevelAttacks(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		send func(*hostile)
		want error
	}{
		"magic":           {func(h *hostile) { h.raw(make([]byte, headerSize)) }, ErrMagic},
		"header-checksum": {func(h *hostile) { b := (&header{version: 1}).appendTo(nil); b[23]++; h.raw(b) }, ErrHeaderCRC},
		"reserved-bytes": {func(h *hostile) {
			b := (&header{version: 1, channel: Stdin, stream: 1, flags: flagEnd}).appendTo(nil)
			b[7] = 1
			binary.LittleEndian.PutUint32(b[20:], checksum(b[:20]))
			h.raw(b)
		}, ErrFlags},
		"oversize": {func(h *hostile) {
			h.raw((&header{version: 1, channel: Stdin, stream: 1, length: 1<<32 - 1}).appendTo(nil))
		}, ErrTooLarge},
		"channel":      {func(h *hostile) { h.send(header{channel: 77, stream: 1}, []byte("x")) }, ErrChannel},
		"never-opened": {func(h *hostile) { h.send(header{channel: Stdin, stream: 9}, []byte("x")) }, ErrStreamID},
		"never-ours":   {func(h *hostile) { h.send(header{channel: Stdin, stream: 2}, []byte("x")) }, ErrStreamID},
		"reset-never-opened": {func(h *hostile) {
			h.send(header{channel: Control, flags: flagReset, stream: 9}, nil)
		}, ErrStreamID},
		"reuse":        {func(h *hostile) { h.open(1); h.open(1) }, ErrStreamID},
		"backwards":    {func(h *hostile) { h.open(5); h.open(3) }, ErrStreamID},
		"wrong-parity": {func(h *hostile) { h.open(2) }, ErrStreamID},
		"hang-up":      {func(h *hostile) { h.conn.Close() }, ErrHungUp},
		"torn-header":  {func(h *hostile) { h.raw([]byte{0xAE, 0x7E, 1}); h.conn.Close() }, io.ErrUnexpectedEOF},
		"torn-payload": {func(h *hostile) {
			h.open(1)
			h.raw((&header{version: 1, channel: Stdin, stream: 1, length: 5}).appendTo(nil))
			h.conn.Close()
		}, io.ErrUnexpectedEOF},
	} {
		t.Run(name, func(t *testing.T) {
			h, c := attack(t, Options{})
			go io.Copy(io.Discard, h.conn) //nolint:errcheck // the goodbye has a test of its own
			tc.send(h)
			select {
			case <-c.Done():
			case <-h.done:
				t.Fatal("the connection goes on")
			}
			if err := c.Err(); !errors.Is(err, tc.want) || !errors.Is(err, ErrConnLost) {
				t.Errorf("the connection ended with %v, want %v", err, tc.want)
			}
		})
	}
}

func TestGoodbye(t *testing.T) {
	t.Parallel()
	h, _ := attack(t, Options{})
	h.send(header{channel: 77, stream: 1}, []byte("x"))
	if err := h.wantReset(0); !api.IsCode(err, api.CodeInvalid) {
		t.Errorf("goodbye with %v", err)
	}

	h, c := attack(t, Options{})
	h.send(header{channel: Control, flags: flagReset}, appendError(nil, api.Errorf(api.CodeUnavailable, "going down")))
	<-c.Done()
	if err := c.Err(); !api.IsCode(err, api.CodeUnavailable) || !errors.Is(err, ErrConnLost) {
		t.Errorf("told goodbye, the connection ended with %v", err)
	}
}

// TestStuckPeer has a peer that opens, is refused, and never reads: what waits for it is bounded.
func TestStuckPeer(t *testing.T) {
	t.Parallel()
	h, c := attack(t, Options{MaxStreams: 1})
	h.open(1)
	for id := uint32(3); c.Err() == nil; id += 2 {
		h.open(id)
	}
	if err := c.Err(); !errors.Is(err, ErrFlood) {
		t.Errorf("the connection ended with %v", err)
	}
}

// TestRefusedWhileOpening has a server that refuses a stream before its OPEN is complete: it is told that no more comes.
func TestRefusedWhileOpening(t *testing.T) {
	t.Parallel()
	a, b := net.Pipe()
	h := &hostile{t: t, conn: a, rd: frameReader{r: a}}
	ready := make(chan *Conn)
	go func() {
		c, err := Client(b, Options{})
		if err != nil {
			t.Error(err)
		}
		ready <- c
	}()
	h.read()
	var peer Conn
	if err := peer.opts.setDefaults(); err != nil {
		t.Fatal(err)
	}
	h.raw(peer.helloFrame())
	c := <-ready
	defer c.Close()
	s, err := c.Open(t.Context(), Open{Method: "m", Body: make([]byte, 4<<20)})
	if err != nil {
		t.Fatal(err)
	}
	h.read()
	h.send(header{channel: Control, flags: flagReset, stream: 1}, appendError(nil, api.Errorf(api.CodeTooMany, "no")))
	<-s.Done() // read on only now, so that most of the OPEN is still to be written
	for {
		hd, _ := h.read()
		if hd.typ == ctlOpen && hd.flags&flagMore != 0 {
			continue // on its way already
		}
		if hd.flags&flagReset == 0 {
			t.Errorf("after the refusal came %+v", hd)
		}
		break
	}
	if _, err := s.Recv(t.Context()); !api.IsCode(err, api.CodeTooMany) {
		t.Errorf("Recv() = %v", err)
	}
	if n := c.Streams(); n != 0 {
		t.Errorf("%d streams are left", n)
	}
}

// script turns fuzz input into frames with right checksums, so that what lies behind the checks is reached.
func script(in []byte) []byte {
	var out []byte
	for range min(len(in)/6, 64) {
		h := header{
			version: Version, flags: in[0] & 15, channel: Channel(in[1] % 6), typ: in[2] % 5,
			stream: uint32(in[3] % 16), length: uint32(in[4]),
		}
		if in[5]&1 != 0 {
			h.length = min(h.length*1100, MaxDataElse)
		}
		if in[5]&2 != 0 && h.channel == Control && h.typ == ctlWindow {
			h.length = windowPayload
		}
		payload := make([]byte, h.length)
		copy(payload, in[6:])
		if in[5]&4 != 0 {
			payload = (&Open{Method: "m", Body: payload}).appendTo(nil)
			h.length = uint32(len(payload))
		}
		h.crc = checksum(payload)
		if in[5]&8 != 0 {
			h.crc++
		}
		out = append(h.appendTo(out), payload...)
		in = in[6:]
	}
	return out
}

// canned is a transport that says what it was given and swallows what is said to it.
type canned struct {
	r io.Reader
}

func (c *canned) Read(p []byte) (int, error)  { return c.r.Read(p) }
func (c *canned) Write(p []byte) (int, error) { return len(p), nil }
func (c *canned) Close() error                { return nil }

// FuzzConn feeds a whole connection with arbitrary bytes, before and after a good HELLO, and as well-formed frames.
func FuzzConn(f *testing.F) {
	f.Add(uint8(0), []byte{0xAE, 0x7E, 0, 0, 0, 1})
	f.Add(uint8(1), (&header{version: 1, channel: Control, typ: ctlOpen, stream: 1, length: 3}).appendTo(nil))
	f.Add(uint8(2), []byte{0, 0, 2, 1, 3, 4, 0, 1, 0, 1, 9, 0, 0, 4, 3, 1, 9, 0, 1, 0, 0, 1, 0, 0})
	f.Add(uint8(3), []byte{8, 0, 2, 1, 255, 5, 1, 0, 2, 1, 20, 1, 2, 0, 0, 1, 5, 0, 0, 0, 3, 1, 8, 2})
	f.Fuzz(func(t *testing.T, mode uint8, in []byte) {
		if mode%4 >= 2 {
			in = script(in)
		}
		var peer Conn
		if err := peer.opts.setDefaults(); err != nil {
			t.Fatal(err)
		}
		if mode%4 > 0 {
			in = append(peer.helloFrame(), in...)
		}
		c, err := Server(&canned{r: bytes.NewReader(in)}, Options{MaxStreams: 4})
		if err != nil {
			return
		}
		err = c.Serve(t.Context(), func(ctx context.Context, s *Stream) {
			for {
				f, err := s.Recv(ctx)
				if err != nil {
					return
				}
				f.Release()
				if mode%4 == 3 {
					s.Send(ctx, 1, s.Open().Body) //nolint:errcheck // there may be nobody
				}
			}
		})
		if !errors.Is(err, ErrConnLost) {
			t.Errorf("Serve() = %v", err)
		}
		c.Close()
		if c.Streams() != 0 {
			t.Errorf("%d streams are left", c.Streams())
		}
	})
}
