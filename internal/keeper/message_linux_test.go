package keeper

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

func TestMessagesComeBackAsTheyWere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := message{
			kind:  kind(rapid.Byte().Draw(t, "kind")),
			flags: rapid.Uint32().Draw(t, "flags"),
			nums:  [3]int64{rapid.Int64().Draw(t, "n0"), rapid.Int64().Draw(t, "n1"), rapid.Int64().Draw(t, "n2")},
			name:  rapid.StringN(0, 100, 1000).Draw(t, "name"),
			blob:  rapid.SliceOf(rapid.Byte()).Draw(t, "blob"),
		}
		b, err := m.appendTo(nil)
		if err != nil {
			t.Fatal(err)
		}
		var got message
		if err := got.parse(b); err != nil {
			t.Fatal(err)
		}
		if len(m.blob) == 0 {
			m.blob, got.blob = nil, nil
		}
		if diff := cmp.Diff(m, got, cmp.AllowUnexported(message{})); diff != "" {
			t.Error(diff)
		}
	})
}

func FuzzParse(f *testing.F) {
	good := message{kind: kindPut, name: "key", blob: []byte("blob"), nums: [3]int64{1, 2, 3}}
	b, err := good.appendTo(nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(b[:headerSize])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		var m message
		if m.parse(b) != nil {
			return
		}
		again, err := m.appendTo(nil)
		if err != nil {
			return // a name longer than this side would send
		}
		if string(again) != string(b) {
			t.Errorf("parsed %x, which is sent as %x", b, again)
		}
	})
}

func pair(t *testing.T) (a, b *socket) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeAll(fds[:]) })
	return newSocket(fds[0]), newSocket(fds[1])
}

func TestSocketPassesDescriptors(t *testing.T) {
	a, b := pair(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := a.send(&message{kind: kindPut, name: "k", blob: make([]byte, maxBlob), fds: []int{int(w.Fd())}}, 0); err != nil {
		t.Fatal(err)
	}
	w.Close()
	m, err := b.recv(0)
	if err != nil || len(m.fds) != 1 || len(m.blob) != maxBlob {
		t.Fatalf("recv() = %d descriptors, %d bytes, %v", len(m.fds), len(m.blob), err)
	}
	if flags, err := unix.FcntlInt(uintptr(m.fds[0]), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("a received descriptor isn't close-on-exec: %d, %v", flags, err)
	}
	if _, err := unix.Write(m.fds[0], []byte("x")); err != nil {
		t.Error(err)
	}
	closeAll(m.fds)
	if got, err := io.ReadAll(r); string(got) != "x" || err != nil {
		t.Errorf("read %q, %v", got, err)
	}
}

func TestSocketRefusesLowDescriptors(t *testing.T) {
	a, b := pair(t)
	b.most = 1 << 16
	if err := a.send(&message{kind: kindItem, name: "k", fds: []int{0}}, 0); err != nil {
		t.Fatal(err)
	}
	if m, err := b.recv(0); err == nil || !strings.Contains(err.Error(), "below") {
		t.Errorf("recv() = %+v, %v", m, err)
	}
}

func TestSocketEnds(t *testing.T) {
	a, b := pair(t)
	if err := unix.Shutdown(a.fd, unix.SHUT_RDWR); err != nil {
		t.Fatal(err)
	}
	if _, err := b.recv(0); !errors.Is(err, io.EOF) {
		t.Errorf("recv() = %v, want EOF", err)
	}
	if err := a.send(&message{kind: kindList, blob: make([]byte, maxMessage)}, 0); err == nil {
		t.Error("a message over the limit was sent")
	}
}

func TestRestartsAreDelayedOnlyWhenTheyAreMany(t *testing.T) {
	sh := &shard{}
	now := t0()
	for i := range 5 {
		if d := sh.delay(now); d != 0 {
			t.Errorf("death %d: delay %v", i, d)
		}
	}
	last := sh.delay(now)
	for range 20 {
		d := sh.delay(now)
		if d < last || d > longest {
			t.Errorf("delay %v after %v", d, last)
		}
		last = d
	}
	if last != longest {
		t.Errorf("longest delay %v, want %v", last, longest)
	}
	if d := sh.delay(now.Add(window)); d != 0 {
		t.Errorf("delay %v after a quiet time", d)
	}
}
