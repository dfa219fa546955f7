package ports

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/chronus/account"
	"github.com/dsec-io/dsec/internal/chronus/launch"
	"github.com/dsec-io/dsec/internal/linux/pidfd"
	"github.com/dsec-io/dsec/internal/spawn"
)

// Place is the sandbox whose ports are dialled.
type Place interface {
	// Account finds a user of the sandbox; "" is the sandbox's own. While the sandbox is paused it fails with api.CodeFrozen.
	Account(who string) (*account.Account, error)
	// With runs f while the box's descriptors stay open.
	With(f func(launch.Box) error) error
	// Visit is With for an f that makes a child that joins the sandbox. While the sandbox is paused it fails with
	// api.CodeFrozen before f is run.
	Visit(f func(launch.Box) error) error
	// Ended is closed when the sandbox has been removed.
	Ended() <-chan struct{}
}

// Limits on connections that are open at one time. Each holds a descriptor, and up to the credit of its stream (256 KiB
// each way) while one side doesn't read.
const (
	maxPerBox = 1024
	maxAll    = 4096
)

const chunkSize = 64 << 10

// Server serves the method "port.dial" of a shard.
type Server struct {
	launcher *launch.Launcher
	scripts  sync.Pool // *spawn.Script
	chunks   sync.Pool // *[]byte

	// mu guards what follows.
	mu    sync.Mutex
	boxes map[string]int // how many connections each has
	count int
}

// New makes a Server whose helpers l runs.
func New(l *launch.Launcher) *Server {
	return &Server{
		launcher: l,
		scripts:  sync.Pool{New: func() any { return new(spawn.Script) }},
		chunks:   sync.Pool{New: func() any { b := make([]byte, chunkSize); return &b }},
		boxes:    make(map[string]int),
	}
}

// Serve serves one stream of the method port.dial, until the connection has ended.
func (s *Server) Serve(ctx context.Context, st *aether.Stream, p Place) error {
	open := st.Open()
	port, err := strconv.ParseUint(string(open.Body), 10, 16)
	if err != nil || port == 0 {
		return api.FieldError(api.CodeInvalid, "port", "ports go from 1 to 65535", "%q isn't a port", launch.Shorten(open.Body))
	}
	inner, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	c := &conn{server: s, st: st, place: p, port: uint16(port), cancel: cancel}
	if err := s.enter(open.Sandbox); err != nil {
		return err
	}
	defer s.leave(open.Sandbox)
	err = c.run(ctx, inner)
	switch {
	case errors.Is(err, errGone):
		return nil // nobody waits any more
	case errors.Is(err, errDropped):
		return died()
	}
	return err
}

// enter counts a connection, if there is room for it.
func (s *Server) enter(box string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.boxes[box] >= maxPerBox || s.count >= maxAll {
		e := api.Errorf(api.CodeTooMany, "%d connections to ports are open, %d of them to this sandbox", s.count, s.boxes[box])
		e.RetryMS, e.Hint = 500, fmt.Sprintf("close some: a sandbox can have %d", maxPerBox)
		return e
	}
	s.boxes[box]++
	s.count++
	return nil
}

func (s *Server) leave(box string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count--
	if s.boxes[box]--; s.boxes[box] == 0 {
		delete(s.boxes, box)
	}
}

// ended tells whether a sandbox has ended or is ending, as its init shows: the kernel takes init's namespaces away first.
// A sandbox that is killed as a whole may lose its other processes before, so who has time asks patiently.
func ended(p Place, patient bool) bool {
	gone := false
	err := p.With(func(b launch.Box) error {
		if patient {
			gone = b.Dying()
			return nil
		}
		fd, err := pidfd.UserNS(b.PIDFD)
		if err == nil {
			_ = unix.Close(fd)
		}
		return err
	})
	return gone || err != nil
}
