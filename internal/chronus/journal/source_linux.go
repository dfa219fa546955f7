package journal

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// quietGrace is how long after a command's end its outputs may stay silent, with somebody else holding them open,
// before they count as complete.
const quietGrace = 20 * time.Millisecond

const spliceSize = 1 << 20

// MaxPipe is the largest that an unprivileged process can make a pipe.
const MaxPipe = 1 << 20

// Source is where a journal is filled from: the read end of a pipe, or the master of a terminal. A terminal's output
// goes through a second pipe, because only a pipe can be spliced into a file; that pipe is kept too, so what is between
// the two steps isn't lost either.
type Source struct {
	file *os.File // non-blocking, in the poller
	fd   int      // its number, for the keeper
	mid  [2]int   // read and write end of the pipe in between; -1: none
}

// NewSource takes over fd.
func NewSource(fd int) (*Source, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, fmt.Errorf("output: %w", err)
	}
	return &Source{file: os.NewFile(uintptr(fd), "output"), fd: fd, mid: [2]int{-1, -1}}, nil
}

// FD is the descriptor, for the keeper; it stays the source's.
func (s *Source) FD() int { return s.fd }

// File is for writing to a terminal.
func (s *Source) File() *os.File { return s.file }

// AddPipe makes the pipe that a terminal's output goes through.
func (s *Source) AddPipe() error {
	if err := unix.Pipe2(s.mid[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return fmt.Errorf("pipe for the terminal's output: %w", err)
	}
	return nil
}

// Pipe is that pipe's read and write end, for the keeper; -1: there is none.
func (s *Source) Pipe() (r, w int) { return s.mid[0], s.mid[1] }

// SetPipe takes over the pipe of an earlier source.
func (s *Source) SetPipe(r, w int) { s.mid = [2]int{r, w} }

// Shut ends the pump.
func (s *Source) Shut() { _ = s.file.Close() }

// Free gives back what Shut doesn't. The pump has returned.
func (s *Source) Free() {
	for i, fd := range s.mid {
		if fd >= 0 {
			_ = unix.Close(fd)
			s.mid[i] = -1
		}
	}
}

// Pump moves everything from src into j until the last writer has gone. grew is called after each step.
func Pump(src *Source, j *Journal, stop <-chan struct{}, grew func()) {
	conn, err := src.file.SyscallConn()
	if err != nil {
		return // closed: the process is being forgotten
	}
	for {
		if wait := j.paused(); wait != nil {
			select {
			case <-wait:
				continue
			case <-stop:
				return
			}
		}
		var n int
		err := conn.Read(func(fd uintptr) bool {
			var stepErr error
			n, stepErr = src.step(int(fd), j)
			return !errors.Is(stepErr, unix.EAGAIN)
		})
		switch {
		case n > 0:
			j.grew(int64(n))
			grew()
			continue
		case errors.Is(err, os.ErrDeadlineExceeded):
			// See Settle.
			_ = src.file.SetReadDeadline(time.Time{})
			ended := src.drain(conn, j)
			j.setQuiet(ended)
			grew()
			if ended {
				return
			}
			continue
		}
		// EOF, or EIO of a terminal whose last holder has gone.
		j.setQuiet(true)
		grew()
		return
	}
}

// Settle makes the pump declare its journal complete once nothing has come for quietGrace.
func (s *Source) Settle() { _ = s.file.SetReadDeadline(time.Now().Add(quietGrace)) }

// Pending tells whether the process has written what isn't stored yet.
func (s *Source) Pending() bool {
	conn, err := s.file.SyscallConn()
	if err != nil {
		return false
	}
	held := 0
	err = conn.Control(func(fd uintptr) { held, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	return err == nil && held > 0
}

// drain takes what was there when the command ended: a pipe's content at most, because somebody may go on writing. It
// tells whether the last writer has gone.
func (s *Source) drain(conn syscall.RawConn, j *Journal) (ended bool) {
	for taken := 0; taken < MaxPipe; {
		var n int
		var stepErr error
		err := conn.Read(func(fd uintptr) bool {
			n, stepErr = s.step(int(fd), j)
			return true
		})
		if n <= 0 || err != nil {
			return err != nil || !errors.Is(stepErr, unix.EAGAIN)
		}
		j.grew(int64(n))
		taken += n
	}
	return false
}

// step splices once. The result is EAGAIN when there is nothing to take, 0 and no error at the end.
func (s *Source) step(fd int, j *Journal) (int, error) {
	if s.mid[0] < 0 {
		return splice(fd, j.fd, j.offset())
	}
	// What an earlier shard or step has left in the pipe in between goes first.
	n, err := splice(s.mid[0], j.fd, j.offset())
	if n > 0 {
		return n, nil
	}
	if err != nil && !errors.Is(err, unix.EAGAIN) {
		return 0, err
	}
	if n, err = splice(fd, s.mid[1], -1); n <= 0 || err != nil {
		return 0, err
	}
	return splice(s.mid[0], j.fd, j.offset())
}

// offset is where the next byte goes. Only the pump moves it.
func (j *Journal) offset() int64 { return j.Total() }

// splice moves bytes between descriptors without blocking; off < 0: to is a pipe.
func splice(from, to int, off int64) (int, error) {
	at := &off
	if off < 0 {
		at = nil
	}
	for {
		n, err := unix.Splice(from, nil, to, at, spliceSize, unix.SPLICE_F_NONBLOCK|unix.SPLICE_F_MOVE)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return 0, err
		}
		return int(n), nil
	}
}

// ReadAvailable appends what a pipe holds to b, up to limit bytes in all. eof tells that every writer has gone.
func ReadAvailable(fd int, b []byte, limit int) (out []byte, eof bool, err error) {
	for len(b) < limit {
		if len(b) == cap(b) {
			b = append(b, 0)[:len(b)]
		}
		n, err := unix.Read(fd, b[len(b):min(cap(b), limit)])
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			return b, false, nil
		case err != nil:
			return b, false, err
		case n == 0:
			return b, true, nil
		default:
			b = b[:len(b)+n]
		}
	}
	return b, false, nil
}
