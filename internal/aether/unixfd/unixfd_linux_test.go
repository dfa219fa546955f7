package unixfd_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/internal/aether/unixfd"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func pair(t *testing.T, a, b unixfd.Options) (*unixfd.Conn, *unixfd.Conn) {
	t.Helper()
	ca, cb, err := unixfd.Pair(a, b)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ca.Close(); cb.Close() })
	return ca, cb
}

func TestListenDial(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s.sock")
	l, err := unixfd.Listen(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the socket's mode: %v, %v", st, err)
	}
	ctx := t.Context()
	c, err := unixfd.Dial(ctx, path, unixfd.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	defer l.Close()
	s, err := l.Accept(ctx, unixfd.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if uid, err := s.PeerUID(); err != nil || uid != os.Getuid() {
		t.Errorf("PeerUID() = %d, %v", uid, err)
	}
	if _, err := c.Write([]byte("hello")); err != nil {
		t.Error(err)
	}
	c.Close()
	if b, err := io.ReadAll(s); err != nil || string(b) != "hello" {
		t.Errorf("ReadAll() = %q, %v", b, err)
	}
	s.Close()
	if _, err := s.Read(make([]byte, 1)); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Read() after Close = %v", err)
	}
}

func TestListener(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s.sock")
	l, err := unixfd.Listen(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	why := errors.New("going down")
	cctx, cancel := context.WithCancelCause(ctx)
	cancel(why)
	if _, err := l.Accept(cctx, unixfd.Options{}); !errors.Is(err, why) {
		t.Errorf("Accept() when cancelled = %v", err)
	}
	if _, err := unixfd.Dial(cctx, path, unixfd.Options{}); !errors.Is(err, why) {
		t.Errorf("Dial() when cancelled = %v", err)
	}
	c, err := unixfd.Dial(ctx, path, unixfd.Options{}) // the listener is good after a cancelled Accept
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, err := l.Accept(ctx, unixfd.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	if _, err := unixfd.Listen(path, 0o600); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("a second listener: %v", err)
	}
	accepted := make(chan error, 1)
	go func() {
		for {
			s, err := l.Accept(ctx, unixfd.Options{})
			if err != nil {
				accepted <- err
				return
			}
			s.Close()
		}
	}()
	l.Close()
	if err := <-accepted; !errors.Is(err, os.ErrClosed) {
		t.Errorf("Accept() after Close = %v", err)
	}
	if _, err := unixfd.Dial(ctx, path, unixfd.Options{}); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("Dial() to a dead socket = %v", err)
	}
	if l, err = unixfd.Listen(path, 0o600); err != nil {
		t.Fatalf("a dead socket isn't replaced: %v", err)
	}
	l.Close()
	if _, err := unixfd.Listen(strings.Repeat("x", 200), 0o600); !errors.Is(err, unixfd.ErrPathLength) {
		t.Errorf("a long path: %v", err)
	}
	file := filepath.Join(t.TempDir(), "precious")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := unixfd.Listen(file, 0o600); err == nil {
		t.Error("a file that is no socket was replaced")
	}
}

func TestTryWrite(t *testing.T) {
	t.Parallel()
	a, b := pair(t, unixfd.Options{}, unixfd.Options{})
	chunk := make([]byte, 100_000)
	sent := 0
	for {
		n, err := a.TryWriteBuffers([][]byte{chunk[:1], nil, chunk[1:]}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if sent += n; n == 0 {
			break
		}
	}
	done := make(chan error, 1)
	go func() {
		n, err := a.WriteBuffers([][]byte{chunk, chunk}, nil)
		sent += n
		done <- errors.Join(err, a.Close())
	}()
	got, err := io.Copy(io.Discard, b)
	if err := errors.Join(err, <-done); err != nil || int(got) != sent {
		t.Errorf("%d bytes arrived of %d, %v", got, sent, err)
	}
}

func TestReceivedFDs(t *testing.T) {
	t.Parallel()
	a, b := pair(t, unixfd.Options{}, unixfd.Options{MaxFDs: 3})
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	fd := int(w.Fd())
	if n, err := a.TryWriteBuffers([][]byte{[]byte("x")}, []int{fd, fd}); n != 1 || err != nil {
		t.Fatalf("TryWriteBuffers() = %d, %v", n, err)
	}
	buf := make([]byte, 10)
	if n, err := b.Read(buf); n != 1 || err != nil {
		t.Fatalf("Read() = %d, %v", n, err)
	}
	if _, err := b.TakeFDs(3); !errors.Is(err, unixfd.ErrNoFDs) {
		t.Errorf("TakeFDs(3) = %v", err)
	}
	fds, err := b.TakeFDs(1)
	if err != nil {
		t.Fatal(err)
	}
	if flags, err := unix.FcntlInt(uintptr(fds[0]), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("flags of a received descriptor: %#x, %v", flags, err)
	}
	b.CloseFDs(fds)
	// One waits; three more are too many, and all are closed.
	if _, err := a.TryWriteBuffers([][]byte{[]byte("x")}, []int{fd, fd, fd}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Read(buf); !errors.Is(err, unixfd.ErrTooManyFDs) {
		t.Errorf("Read() with too many = %v", err)
	}
	b.Close()
	w.Close()
	if out, err := io.ReadAll(r); err != nil || len(out) != 0 {
		t.Errorf("ReadAll() = %q, %v", out, err)
	}
}
