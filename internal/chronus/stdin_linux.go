package chronus

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// stdin is the way into a command: the write end of its pipe, or the master of its terminal.
type stdin struct {
	p    *process
	file *os.File // non-blocking; nil: a terminal, whose master is the process's source
	fd   int

	// mu guards what follows. It isn't held over writes.
	mu      sync.Mutex
	closed  bool // no further input is taken
	pending int  // writers at work
	early   bool // input was offered that the command didn't take
	kept    bool // the keeper has a copy, which has to be closed too
}

func newStdin(p *process, fd int) (*stdin, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, fmt.Errorf("stdin: %w", err)
	}
	return &stdin{p: p, file: os.NewFile(uintptr(fd), "stdin"), fd: fd}, nil
}

// newTerminalInput writes to the terminal that p has as its source.
func newTerminalInput(p *process) *stdin { return &stdin{p: p, fd: -1} }

// number is the descriptor for the keeper, -1 if there is none to keep.
func (s *stdin) number() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.file == nil {
		return -1
	}
	s.kept = true
	return s.fd
}

// write gives data to the command and returns when it has been taken into the pipe, or won't be.
func (s *stdin) write(ctx context.Context, data []byte) (taken bool) {
	s.mu.Lock()
	if s.closed {
		s.early = s.early || len(data) > 0
		s.mu.Unlock()
		return len(data) == 0
	}
	s.pending++
	s.mu.Unlock()
	err := s.writeAll(ctx, data)
	s.mu.Lock()
	s.pending--
	s.early = s.early || err != nil
	s.mu.Unlock()
	if err != nil && s.file != nil && ctx.Err() == nil {
		s.close(ctx) // EPIPE: the command has closed its end
	}
	return err == nil
}

func (s *stdin) writeAll(ctx context.Context, data []byte) error {
	file := s.output()
	for {
		n, err := file.Write(data)
		if data = data[n:]; len(data) == 0 || !errors.Is(err, os.ErrDeadlineExceeded) || ctx.Err() != nil {
			return err
		}
		time.Sleep(time.Millisecond) // another caller's goroutine is being hurried
	}
}

func (s *stdin) output() *os.File {
	if s.file == nil {
		return s.p.src[0].File()
	}
	return s.file
}

// hurry makes writes that wait for the command return, until it is taken back.
func (s *stdin) hurry(on bool) {
	var at time.Time
	if on {
		at = time.Unix(1, 0)
	}
	_ = s.output().SetWriteDeadline(at) // closed: nobody waits
}

const endOfTransmission = 4 // what Ctrl-D types

// close ends the input after what has been written.
func (s *stdin) close(ctx context.Context) {
	if s.file == nil {
		s.write(ctx, []byte{endOfTransmission})
		return
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.closed = true
	kept := s.kept
	s.mu.Unlock()
	s.p.closing(func() { _ = s.file.Close() })
	if kept {
		s.p.put() // the command sees the end only when the keeper has closed its copy too
	}
}

// finish is for the command's end: it stops writers and tells whether input was left over. Whoever said nothing of
// keeping the process open has sent all of the input or is about to, so then a missing end counts too.
func (s *stdin) finish() (early bool) {
	s.mu.Lock()
	already := s.closed
	s.closed = true
	early = s.early || s.pending > 0 || !already && !s.p.meta.Keep
	s.mu.Unlock()
	if !already && s.file != nil {
		s.p.closing(func() { _ = s.file.Close() })
	}
	return early
}
