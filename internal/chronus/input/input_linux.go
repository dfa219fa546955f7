// Package input is the way into a command: the write end of its pipe, or the master of its terminal.
//
// An [Input] is safe for concurrent use.
package input

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Command is whose input it is.
type Command struct {
	Keep     bool            // it outlives who gives the input, who may stop without an end
	Terminal func() *os.File // the master, where it has a terminal
	Closing  func(f func())  // runs f, which closes a descriptor, while none is on its way to the keeper
	Put      func()          // gives the keeper the command as it is now
}

// Input is one command's.
type Input struct {
	of   Command
	file *os.File // non-blocking; nil: a terminal, whose master is the process's source
	fd   int

	// mu guards what follows. It isn't held over writes.
	mu      sync.Mutex
	closed  bool // no further input is taken
	pending int  // writers at work
	early   bool // input was offered that the command didn't take
	kept    bool // the keeper has a copy, which has to be closed too
}

// New takes over the write end of a pipe. Kept says that the keeper has a copy of it.
func New(of Command, fd int, kept bool) (*Input, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, fmt.Errorf("stdin: %w", err)
	}
	return &Input{of: of, file: os.NewFile(uintptr(fd), "stdin"), fd: fd, kept: kept}, nil
}

// OfTerminal writes to the command's terminal.
func OfTerminal(of Command) *Input { return &Input{of: of, fd: -1} }

// Number is the descriptor for the keeper, -1 if there is none to keep.
func (s *Input) Number() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.file == nil {
		return -1
	}
	s.kept = true
	return s.fd
}

// Write gives data to the command and returns when it has been taken into the pipe, or won't be.
func (s *Input) Write(ctx context.Context, data []byte) (taken bool) {
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
		s.Close(ctx) // EPIPE: the command has closed its end
	}
	return err == nil
}

func (s *Input) writeAll(ctx context.Context, data []byte) error {
	file := s.output()
	for {
		n, err := file.Write(data)
		if data = data[n:]; len(data) == 0 || !errors.Is(err, os.ErrDeadlineExceeded) || ctx.Err() != nil {
			return err
		}
		time.Sleep(time.Millisecond) // another caller's goroutine is being hurried
	}
}

func (s *Input) output() *os.File {
	if s.file == nil {
		return s.of.Terminal()
	}
	return s.file
}

// Hurry makes writes that wait for the command return, until it is taken back.
func (s *Input) Hurry(on bool) {
	var at time.Time
	if on {
		at = time.Unix(1, 0)
	}
	_ = s.output().SetWriteDeadline(at) // closed: nobody waits
}

const endOfTransmission = 4 // what Ctrl-D types

// Close ends the input after what has been written.
func (s *Input) Close(ctx context.Context) {
	if s.file == nil {
		s.Write(ctx, []byte{endOfTransmission})
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
	s.of.Closing(func() { _ = s.file.Close() })
	if kept {
		s.of.Put() // the command sees the end only when the keeper has closed its copy too
	}
}

// Finish is for the command's end: it stops writers and tells whether input was left over. Whoever said nothing of
// keeping the process open has sent all of the input or is about to, so then a missing end counts too.
func (s *Input) Finish() (early bool) {
	s.mu.Lock()
	already := s.closed
	s.closed = true
	early = s.early || s.pending > 0 || !already && !s.of.Keep
	s.mu.Unlock()
	if !already && s.file != nil {
		s.of.Closing(func() { _ = s.file.Close() })
	}
	return early
}
