package aether

import (
	"context"
	"errors"
	"sync"
)

// AfterOver has f called once when the stream is over, which is when Done is closed; at once if it is. It saves who only
// wants to cancel something a goroutine per stream. f is called with the connection locked: it may not use streams, nor
// wait.
func (s *Stream) AfterOver(f func()) {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	if s.over {
		f()
		return
	}
	s.afterOver = append(s.afterOver, f)
}

// saidAll tells whether the peer has ended its side, and everything from it has been received.
func (s *Stream) saidAll() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.in.n == 0 && errors.Is(s.recvErr, errEOF)
}

// upward is the way from a client that has said all to its server: only a reset is left to be passed on.
type upward struct {
	client, server *Stream

	// The lock of the client's connection guards what follows.
	over  bool
	err   error // the client's reset
	reset sync.WaitGroup
}

// watchReset passes a reset of the client on until end.
func watchReset(ctx context.Context, client, server *Stream) *upward {
	u := &upward{client: client, server: server}
	client.AfterOver(func() {
		err := client.sendErr
		if u.over || err == nil || errors.Is(err, ErrClosed) {
			return
		}
		u.err = err
		u.reset.Go(func() { server.Reset(passOn(ctx, err)) })
	})
	return u
}

// end stops watching, and returns the reset that was passed on.
func (u *upward) end() error {
	u.client.conn.mu.Lock()
	u.over = true
	err := u.err
	u.client.conn.mu.Unlock()
	u.reset.Wait()
	return err
}
