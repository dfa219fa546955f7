package aether

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestHeaderRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		want := header{
			version: rapid.Uint8().Draw(t, "version"), flags: rapid.Uint8().Draw(t, "flags"),
			channel: Channel(rapid.Uint8().Draw(t, "channel")), typ: rapid.Uint8().Draw(t, "type"),
			stream: rapid.Uint32().Draw(t, "stream"), length: rapid.Uint32().Draw(t, "length"), crc: rapid.Uint32().Draw(t, "crc"),
		}
		if want.flags&flagTrace != 0 {
			want.trace[0], want.trace[15] = rapid.Byte().Draw(t, "first"), rapid.Byte().Draw(t, "last")
		}
		wire := want.appendTo([]byte("before"))[len("before"):]
		r := frameReader{r: bytes.NewReader(wire)}
		var got header
		if err := r.next(&got); err != nil {
			t.Fatalf("next() = %v", err)
		}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(header{})); diff != "" {
			t.Fatalf("header (-want +got):\n%s", diff)
		}
		// Every changed bit is noticed.
		i := rapid.IntRange(0, len(wire)*8-1).Draw(t, "bit")
		wire[i/8] ^= 1 << (i % 8)
		r = frameReader{r: bytes.NewReader(wire)}
		if err := r.next(&got); err == nil {
			t.Fatalf("bit %d flipped and not noticed", i)
		}
	})
}

func TestChecksum(t *testing.T) {
	t.Parallel()
	if got := checksum([]byte("123456789")); got != 0xE3069283 {
		t.Errorf("checksum() = %#x, the check value of CRC-32C is 0xe3069283", got)
	}
}

func TestHeaderCheck(t *testing.T) {
	t.Parallel()
	data := header{version: 1, channel: Stdout, stream: 1, length: 1}
	for name, tc := range map[string]struct {
		change func(*header)
		want   error
	}{
		"good":                {func(*header) {}, nil},
		"empty-end":           {func(h *header) { h.length, h.flags = 0, flagEnd }, nil},
		"version":             {func(h *header) { h.version = 2 }, ErrFlags},
		"hello-again":         {func(h *header) { h.version = 0 }, ErrFlags},
		"channel":             {func(h *header) { h.channel = 5 }, ErrChannel},
		"length":              {func(h *header) { h.length = MaxDataAether + 1 }, ErrTooLarge},
		"stream-zero":         {func(h *header) { h.stream = 0 }, ErrFlags},
		"stream-high":         {func(h *header) { h.stream = 1 << 31 }, ErrStreamID},
		"unknown-flag":        {func(h *header) { h.flags = 1 << 4 }, ErrFlags},
		"empty-data":          {func(h *header) { h.length = 0 }, ErrFlags},
		"typed-data":          {func(h *header) { h.typ = 1 }, ErrFlags},
		"data-more":           {func(h *header) { h.flags = flagMore }, ErrFlags},
		"data-trace":          {func(h *header) { h.flags = flagTrace }, ErrFlags},
		"message":             {func(h *header) { h.channel, h.typ = Message, 9 }, nil},
		"message-empty":       {func(h *header) { h.channel, h.typ, h.length = Message, 9, 0 }, nil},
		"message-empty-more":  {func(h *header) { h.channel, h.typ, h.length, h.flags = Message, 9, 0, flagMore }, ErrFlags},
		"message-end":         {func(h *header) { h.channel, h.typ, h.flags = Message, 9, flagEnd }, ErrFlags},
		"message-zero":        {func(h *header) { h.channel = Message }, ErrFlags},
		"control-unknown":     {func(h *header) { h.channel, h.typ = Control, 9 }, ErrFlags},
		"control-hello":       {func(h *header) { h.channel, h.typ, h.stream = Control, ctlHello, 0 }, ErrFlags},
		"control-neither":     {func(h *header) { h.channel = Control }, ErrFlags},
		"control-end":         {func(h *header) { h.channel, h.flags, h.length = Control, flagEnd, 0 }, nil},
		"control-end-payload": {func(h *header) { h.channel, h.flags = Control, flagEnd }, ErrFlags},
		"control-end-zero":    {func(h *header) { h.channel, h.flags, h.length, h.stream = Control, flagEnd, 0, 0 }, ErrFlags},
		"goodbye":             {func(h *header) { h.channel, h.flags, h.stream = Control, flagReset, 0 }, nil},
		"reset-long":          {func(h *header) { h.channel, h.flags, h.length = Control, flagReset, maxReset+1 }, ErrFlags},
		"window-short":        {func(h *header) { h.channel, h.typ = Control, ctlWindow }, ErrFlags},
		"open-empty":          {func(h *header) { h.channel, h.typ, h.length = Control, ctlOpen, 0 }, ErrFlags},
		"open-end-more":       {func(h *header) { h.channel, h.typ, h.flags = Control, ctlOpen, flagEnd|flagMore }, ErrFlags},
	} {
		t.Run(name, func(t *testing.T) {
			h := data
			tc.change(&h)
			if err := h.check(1, MaxDataAether); !errors.Is(err, tc.want) {
				t.Errorf("check() = %v, want %v", err, tc.want)
			}
		})
	}
}

// trickle returns its bytes in small pieces.
type trickle struct {
	r io.Reader
	n int
}

func (t *trickle) Read(p []byte) (int, error) { return t.r.Read(p[:min(len(p), t.n)]) }

// FuzzFrame cuts arbitrary bytes into frames. However the bytes arrive, the frames are the same, and each encodes to what it
// was read from.
func FuzzFrame(f *testing.F) {
	good := header{version: 1, channel: Stdout, stream: 1, length: 3, crc: checksum([]byte("abc"))}
	f.Add(append(good.appendTo(nil), "abc"...), uint8(1))
	traced := header{version: 1, channel: Control, typ: ctlOpen, flags: flagTrace, stream: 1, length: 1, trace: [16]byte{1}}
	f.Add(append(traced.appendTo(nil), 0), uint8(7))
	f.Add([]byte{0xAE, 0x7E}, uint8(1))
	f.Fuzz(func(t *testing.T, in []byte, step uint8) {
		whole, werr := cutFrames(bytes.NewReader(in), false)
		slow, serr := cutFrames(&trickle{bytes.NewReader(in), int(step%64) + 1}, true)
		if !bytes.Equal(whole, slow) || (werr == nil) != (serr == nil) {
			t.Fatalf("%d bytes (%v) at once, %d bytes (%v) in pieces", len(whole), werr, len(slow), serr)
		}
		if !bytes.HasPrefix(in, whole) {
			t.Fatalf("frames re-encode to %x, read from %x", whole, in)
		}
	})
}

// cutFrames reads frames and encodes them again. With pieces, it reads each payload in two.
func cutFrames(in io.Reader, pieces bool) ([]byte, error) {
	r := frameReader{r: in}
	var out []byte
	for {
		var h header
		if err := r.next(&h); err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return out, err
		}
		if h.length > MaxDataElse {
			return out, ErrTooLarge
		}
		p := make([]byte, h.length)
		var err error
		if half := len(p) / 2; pieces {
			err = errors.Join(r.payload(p[:half]), r.payload(p[half:]))
		} else {
			err = r.payload(p)
		}
		if err != nil {
			return out, err
		}
		out = append(h.appendTo(out), p...)
	}
}

func TestDiscard(t *testing.T) {
	t.Parallel()
	next := header{version: 1, channel: Stdout, stream: 1, length: 0, flags: flagEnd}
	long := header{version: 1, channel: Stdout, stream: 1, length: 200_000}
	wire := append(long.appendTo(nil), make([]byte, long.length)...)
	wire = next.appendTo(wire)
	r := frameReader{r: bytes.NewReader(wire)}
	var h header
	if err := r.next(&h); err != nil {
		t.Fatal(err)
	}
	if err := r.discard(int(h.length)); err != nil {
		t.Fatal(err)
	}
	if err := r.next(&h); err != nil || h.flags != flagEnd {
		t.Fatalf("after discard: %+v, %v", h, err)
	}
	r = frameReader{r: bytes.NewReader(wire[:1000])}
	if err := errors.Join(r.next(&h), r.discard(int(h.length))); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Fatalf("discard of a torn payload = %v", err)
	}
}
