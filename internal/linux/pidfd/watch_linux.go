package pidfd

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// Watcher tells of the end of any number of processes, on one goroutine and one descriptor of its own.
type Watcher struct {
	epoll, wake int
	joined      chan struct{}

	// mu guards the rest.
	mu     sync.Mutex
	next   uint64
	ended  map[uint64]func()
	closed bool
}

// NewWatcher starts a Watcher.
func NewWatcher() (*Watcher, error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make epoll: %w", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		_ = unix.Close(ep)
		return nil, fmt.Errorf("make eventfd: %w", err)
	}
	w := &Watcher{epoll: ep, wake: wake, joined: make(chan struct{}), ended: make(map[uint64]func())}
	if err := w.add(wake, 0, unix.EPOLLIN); err != nil {
		_ = unix.Close(ep)
		_ = unix.Close(wake)
		return nil, err
	}
	go w.run()
	return w, nil
}

func (w *Watcher) add(fd int, id uint64, events uint32) error {
	e := unix.EpollEvent{Events: events}
	*token(&e) = id
	if err := unix.EpollCtl(w.epoll, unix.EPOLL_CTL_ADD, fd, &e); err != nil {
		return fmt.Errorf("watch process: %w", err)
	}
	return nil
}

// Add calls ended, once and on the Watcher's goroutine, when the process behind the pidfd has ended. ended must not
// block. The returned stop takes fd out again, so that it can be closed; ended may still be running when it returns.
func (w *Watcher) Add(fd int, ended func()) (stop func(), err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil, errors.New("watcher is closed")
	}
	w.next++
	id := w.next
	// One shot: a dead process's pidfd stays readable.
	if err := w.add(fd, id, unix.EPOLLIN|unix.EPOLLONESHOT); err != nil {
		return nil, err
	}
	w.ended[id] = ended
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.ended, id)
		if !w.closed {
			_ = unix.EpollCtl(w.epoll, unix.EPOLL_CTL_DEL, fd, nil)
		}
	}, nil
}

func (w *Watcher) run() {
	defer close(w.joined)
	events := make([]unix.EpollEvent, 64)
	for {
		n, err := unix.EpollWait(w.epoll, events, -1)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return
		}
		for i := range n {
			id := *token(&events[i])
			if id == 0 {
				return
			}
			if f := w.take(id); f != nil {
				f()
			}
		}
	}
}

func (w *Watcher) take(id uint64) func() {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := w.ended[id]
	delete(w.ended, id)
	return f
}

// Close stops the Watcher and waits for its goroutine. Processes that end later aren't told of.
func (w *Watcher) Close() {
	w.mu.Lock()
	already := w.closed
	w.closed = true
	w.mu.Unlock()
	if already {
		return
	}
	_, _ = unix.Write(w.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	<-w.joined
	_ = unix.Close(w.epoll)
	_ = unix.Close(w.wake)
}
