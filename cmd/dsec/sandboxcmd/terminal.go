package sandboxcmd

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/dsec-io/dsec/api"
)

// rawTerminal switches a terminal to raw mode and back. It may be restored from any goroutine and any number of times.
type rawTerminal struct {
	fd int

	mu    sync.Mutex // guards saved
	saved *term.State
}

func (t *rawTerminal) enter() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.saved != nil {
		return nil
	}
	saved, err := term.MakeRaw(t.fd)
	if err != nil {
		return fmt.Errorf("set the terminal to raw mode: %w", err)
	}
	t.saved = saved
	return nil
}

func (t *rawTerminal) restore() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.saved == nil {
		return
	}
	// There's nothing to be done when it fails: then the terminal has gone.
	_ = term.Restore(t.fd, t.saved) // see above
	t.saved = nil
}

// again sets raw mode anew, after a shell has had the terminal while we were stopped.
func (t *rawTerminal) again() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.saved == nil {
		return nil
	}
	_, err := term.MakeRaw(t.fd)
	return err
}

// rescue restores the terminal when a goroutine panics, and lets the panic go on. Defer it.
func (t *rawTerminal) rescue() {
	if v := recover(); v != nil {
		t.restore()
		panic(v)
	}
}

// sizeOf is a terminal's size; a terminal that doesn't know its size is taken for a usual one.
func sizeOf(fd int) api.Size {
	w, h, err := term.GetSize(fd)
	if err != nil || w <= 0 || h <= 0 || w > 0xffff || h > 0xffff {
		return api.Size{Rows: 24, Cols: 80}
	}
	return api.Size{Rows: uint16(h), Cols: uint16(w)}
}

// interruptible reads a descriptor until it's told to stop, without taking a byte that it won't hand on: what was typed
// ahead for the next program stays in the terminal.
type interruptible struct {
	file *os.File
	wake *os.File // becomes readable when reading must stop
	stop func()
}

func newInterruptible(f *os.File) (*interruptible, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	return &interruptible{file: f, wake: r, stop: sync.OnceFunc(func() { w.Close() })}, nil
}

func (i *interruptible) close() {
	i.stop()
	i.wake.Close()
}

var errStopReading = errors.New("reading was stopped")

// Read implements [io.Reader].
func (i *interruptible) Read(p []byte) (int, error) {
	fds := []unix.PollFd{
		{Fd: int32(i.file.Fd()), Events: unix.POLLIN},
		{Fd: int32(i.wake.Fd()), Events: unix.POLLIN},
	}
	for {
		_, err := unix.Poll(fds, -1)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return 0, fmt.Errorf("poll the terminal: %w", err)
		case fds[1].Revents != 0:
			return 0, errStopReading
		}
		n, err := unix.Read(int(i.file.Fd()), p)
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
			continue
		case errors.Is(err, unix.EIO), err == nil && n == 0:
			return 0, io.EOF // the other side of the terminal is closed
		case err != nil:
			return 0, fmt.Errorf("read the terminal: %w", err)
		}
		return n, nil
	}
}
