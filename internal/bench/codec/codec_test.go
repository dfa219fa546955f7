package codec

import (
	"context"
	"errors"
	"testing"

	"github.com/dsec-io/dsec/internal/aether"
)

func tape(t *testing.T, size int) *Tape {
	t.Helper()
	tp, err := Record(t.Context(), size)
	if err != nil {
		t.Fatal(err)
	}
	return tp
}

func lines() map[string]func(context.Context, *Tape) (*Line, error) {
	return map[string]func(context.Context, *Tape) (*Line, error){"encode": Encode, "decode": Decode, "relay": Relay}
}

// TestLines: as many frames pass as were asked for, however large, and the connections end.
func TestLines(t *testing.T) {
	for _, size := range []int{1, 64, 1000, 4096, aether.MaxDataAether} {
		tp := tape(t, size)
		if len(tp.data) != headerSize+size || tp.stream == 0 {
			t.Fatalf("the tape has a frame of %d bytes on stream %d", len(tp.data), tp.stream)
		}
		for name, open := range lines() {
			l, err := open(t.Context(), tp)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			for range 3 {
				if err := l.Run(t.Context(), 100); err != nil {
					t.Errorf("%s of %d bytes: %v", name, size, err)
				}
			}
			if err := l.Close(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// TestChecksumsAreChecked: a decoder finds a wrong bit in a payload, and in a header.
func TestChecksumsAreChecked(t *testing.T) {
	for at, want := range map[int]error{headerSize + 500: aether.ErrPayloadCRC, 12: aether.ErrHeaderCRC} {
		tp := tape(t, 1000)
		tp.data = append([]byte(nil), tp.data...)
		tp.data[at] ^= 1
		l, err := Decode(t.Context(), tp)
		if err != nil {
			t.Fatal(err)
		}
		err = l.Run(t.Context(), 1)
		if at == 12 && err != nil {
			err = errors.Join(err, want) // the connection is over, and the stream says only that
		}
		if !errors.Is(err, want) {
			t.Errorf("byte %d is wrong: %v, want %v", at, err, want)
		}
		_ = l.Close()
	}
}

// TestEncodedFramesAreWhole: what an encoder writes is what the tape has, to the byte.
func TestEncodedFramesAreWhole(t *testing.T) {
	tp := tape(t, 5000)
	from := newSource(tp, credit)
	from.ask(1)
	buf := make([]byte, 1<<20)
	n, err := from.Read(buf)
	if err != nil || n != len(tp.client)+len(tp.data) {
		t.Fatalf("%d bytes, %v; want %d", n, err, len(tp.client)+len(tp.data))
	}
	to := newSink(tp)
	for _, cut := range []int{1, 7, 24, 4000} { // frames come in any pieces
		for p := buf[:n]; len(p) > 0; p = p[min(cut, len(p)):] {
			if _, err := to.Write(p[:min(cut, len(p))]); err != nil {
				t.Fatal(err)
			}
		}
	}
	if to.frames != 4 || to.skip != 0 || len(to.head) != 0 {
		t.Errorf("%d frames, %d bytes to skip, %d of a header", to.frames, to.skip, len(to.head))
	}
}

func BenchmarkLines(b *testing.B) {
	for _, size := range []int{64, aether.MaxDataAether} {
		tp, err := Record(b.Context(), size)
		if err != nil {
			b.Fatal(err)
		}
		for name, open := range lines() {
			b.Run(name, func(b *testing.B) {
				l, err := open(b.Context(), tp)
				if err != nil {
					b.Fatal(err)
				}
				defer l.Close()
				b.SetBytes(int64(size) * 100)
				for b.Loop() {
					if err := l.Run(b.Context(), 100); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
