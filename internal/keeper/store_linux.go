package keeper

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// NoWait is the Wait of an item none of whose descriptors is waited for.
const NoWait = -1

// Item is what a shard has put into its keeper.
type Item struct {
	Key  string
	Blob []byte // opaque to the keeper; at most 32 KiB
	FDs  []int  // at most 16; Put sends copies, the caller's stay open
	Wait int    // index in FDs of the pidfd whose exit status matters, or NoWait

	// Status is the raw wait status if the keeper knows that the process has ended. Only in what Items returns.
	Status *int32
}

// sendTimeout bounds how long a shard waits for a keeper that doesn't read.
const sendTimeout = time.Second

// Store is a shard's connection to its keeper. It is safe for concurrent use.
type Store struct {
	sock *socket // in: used by Items, then by Run alone

	// mu guards sending on sock and err.
	mu  sync.Mutex
	err error
}

// OpenStore takes over fd, the shard's end of the socket. Descriptors that arrive below lowest are refused: a shard
// uses low numbers as transfer slots, and one that landed there would be overwritten by the next exec.
func OpenStore(fd, lowest int) (*Store, error) {
	tv := unix.NsecToTimeval(sendTimeout.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &tv); err != nil {
		return nil, fmt.Errorf("set send timeout of the keeper socket: %w", err)
	}
	s := &Store{sock: newSocket(fd)}
	s.sock.most = lowest
	return s, nil
}

// Items receives what an earlier shard had put. It is called once, before Run, and only by a shard that the keeper has
// started; one that is handed a new keeper's socket puts its items instead.
func (s *Store) Items() ([]Item, error) {
	var items []Item
	for {
		m, err := s.sock.recv(0)
		if err != nil {
			return items, fmt.Errorf("receive items from the keeper: %w", err)
		}
		switch m.kind {
		case kindItem:
			items = append(items, Item{Key: m.name, Blob: m.blob, FDs: m.fds, Wait: int(m.flags) - 1})
		case kindStatus:
			for i := range items {
				if items[i].Key == m.name {
					items[i].Status = new(int32(m.nums[0]))
				}
			}
		case kindEnd:
			return items, nil
		default:
			closeAll(m.fds)
		}
	}
}

// Put stores it, in place of an item of the same key.
func (s *Store) Put(it Item) error {
	if it.Wait < NoWait || it.Wait >= len(it.FDs) {
		return fmt.Errorf("put %s: wait index %d of %d descriptors", it.Key, it.Wait, len(it.FDs))
	}
	return s.send(&message{kind: kindPut, name: it.Key, flags: uint32(it.Wait + 1), blob: it.Blob, fds: it.FDs})
}

// Del forgets an item.
func (s *Store) Del(key string) error { return s.send(&message{kind: kindDel, name: key}) }

// Status tells the keeper the raw wait status of an item's process. It is called before the process is reaped, so that
// at every moment somebody knows the status.
func (s *Store) Status(key string, raw int32) error {
	return s.send(&message{kind: kindStatus, name: key, nums: [3]int64{int64(raw)}})
}

func (s *Store) send(m *message) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	if err := s.sock.send(m, 0); err != nil {
		for _, lost := range []error{unix.EPIPE, unix.ECONNRESET, unix.ENOTCONN, unix.EAGAIN} {
			if errors.Is(err, lost) {
				s.err = fmt.Errorf("keeper is lost: %w", err)
			}
		}
		return fmt.Errorf("send %s to the keeper: %w", m.name, err)
	}
	return nil
}

// Run calls status for each status that the keeper tells, until the socket ends (an error that says why) or ctx is
// done and Close has been called.
func (s *Store) Run(ctx context.Context, status func(key string, raw int32)) error {
	stop := context.AfterFunc(ctx, func() { _ = unix.Shutdown(s.sock.fd, unix.SHUT_RDWR) })
	defer stop()
	for {
		m, err := s.sock.recv(0)
		if err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return fmt.Errorf("receive from the keeper: %w", err)
		}
		closeAll(m.fds)
		if m.kind == kindStatus {
			status(m.name, int32(m.nums[0]))
		}
	}
}

// Close ends the connection. Run, if it runs, has returned before. A number below the lowest that may be received
// isn't freed but becomes /dev/null again: the next descriptor that comes would land in the hole.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = errors.New("keeper connection is closed")
	}
	if s.sock.fd < s.sock.most {
		return unix.Dup3(FDNull, s.sock.fd, unix.O_CLOEXEC)
	}
	return unix.Close(s.sock.fd)
}
