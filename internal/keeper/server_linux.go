package keeper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"
)

// fdListener is where a keeper finds its listening socket when it starts.
const fdListener = 3

// Options of a keeper process.
type Options struct {
	EmptyDir string // becomes the shards' root
	Logger   *slog.Logger
}

// server is the keeper: one loop over epoll, on one goroutine.
type server struct {
	opts    Options
	epoll   int
	on      map[int]func(events uint32) // by descriptor
	clients map[int]*client
	shards  map[string]*shard
	budget  int                // descriptors of one shard's items
	orphans map[*item]struct{} // items whose process is no child of a living shard and whose status nobody has told
}

// client is a connection of an edge.
type client struct {
	sock     *socket
	watching bool
}

// Run serves on the listening socket at descriptor 3 until ctx is done. Shards and their processes go on when it returns.
func Run(ctx context.Context, opts Options) error {
	prepareProcess()
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return fmt.Errorf("make epoll: %w", err)
	}
	s := &server{
		opts: opts, epoll: ep, budget: Budget(),
		on:      make(map[int]func(uint32)),
		clients: make(map[int]*client),
		shards:  make(map[string]*shard),
		orphans: make(map[*item]struct{}),
	}
	defer s.close()
	wake, stop, err := wakeOnSignals(ctx)
	if err != nil {
		return err
	}
	defer stop()
	unix.CloseOnExec(fdListener)
	if err := unix.SetNonblock(fdListener, true); err != nil {
		return fmt.Errorf("listener: %w", err)
	}
	if err := errors.Join(
		s.watch(fdListener, unix.EPOLLIN, func(uint32) { s.accept() }),
		s.watch(wake, unix.EPOLLIN, func(uint32) { drainEvent(wake); s.reapStrays() }),
	); err != nil {
		return err
	}
	return s.loop(ctx)
}

// prepareProcess makes the keeper what it has to be. Each step is of use without the others, so failures aren't fatal.
func prepareProcess() {
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	for _, score := range []string{"-1000", "-999", "-500", "0"} { // below the current value only with CAP_SYS_RESOURCE
		if os.WriteFile("/proc/self/oom_score_adj", []byte(score), 0) == nil {
			break
		}
	}
}

// wakeOnSignals returns an eventfd that becomes readable at SIGCHLD and at the end of ctx.
func wakeOnSignals(ctx context.Context) (int, func(), error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return -1, nil, fmt.Errorf("make eventfd: %w", err)
	}
	ch := make(chan os.Signal, 1) // one pending notice is enough: the loop then looks at everything
	signal.Notify(ch, unix.SIGCHLD)
	done, joined := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(joined)
		one := []byte{1, 0, 0, 0, 0, 0, 0, 0}
		ended := ctx.Done()
		for {
			select {
			case <-done:
				return
			case <-ended:
				ended = nil
			case <-ch:
			}
			_, _ = unix.Write(fd, one) // EAGAIN: readable already
		}
	}()
	return fd, func() {
		signal.Stop(ch)
		close(done)
		<-joined
		_ = unix.Close(fd)
	}, nil
}

func drainEvent(fd int) {
	var b [8]byte
	_, _ = unix.Read(fd, b[:])
}

func (s *server) loop(ctx context.Context) error {
	events := make([]unix.EpollEvent, 64)
	for ctx.Err() == nil {
		n, err := unix.EpollWait(s.epoll, events, s.startDueShards(time.Now()))
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for events: %w", err)
		}
		for _, e := range events[:max(n, 0)] {
			// Looked up for each event: an earlier one of the batch may have closed the descriptor.
			if f := s.on[int(e.Fd)]; f != nil {
				f(e.Events)
			}
		}
	}
	return context.Cause(ctx)
}

func (s *server) watch(fd int, events uint32, f func(uint32)) error {
	op := unix.EPOLL_CTL_ADD
	if s.on[fd] != nil {
		op = unix.EPOLL_CTL_MOD
	}
	if err := unix.EpollCtl(s.epoll, op, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)}); err != nil {
		return fmt.Errorf("watch descriptor %d: %w", fd, err)
	}
	s.on[fd] = f
	return nil
}

// unwatch is called before a descriptor is closed: a copy of it elsewhere would keep it in the epoll set.
func (s *server) unwatch(fd int) {
	if s.on[fd] == nil {
		return
	}
	delete(s.on, fd)
	_ = unix.EpollCtl(s.epoll, unix.EPOLL_CTL_DEL, fd, nil)
}

func (s *server) close() {
	for fd := range s.clients {
		s.dropClient(fd)
	}
	_ = unix.Close(s.epoll)
}

func (s *server) accept() {
	fd, _, err := unix.Accept4(fdListener, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
	if err != nil {
		return // EAGAIN, or the client has gone again
	}
	// The socket's folder is closed to others; this is the second lock on the same door.
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil || int(cred.Uid) != os.Geteuid() {
		_ = unix.Close(fd)
		return
	}
	s.clients[fd] = &client{sock: newSocket(fd)}
	if err := s.watch(fd, unix.EPOLLIN, func(uint32) { s.serveClient(fd) }); err != nil {
		s.dropClient(fd)
	}
}

func (s *server) dropClient(fd int) {
	s.unwatch(fd)
	delete(s.clients, fd)
	_ = unix.Close(fd)
}

// serveClient handles one request.
func (s *server) serveClient(fd int) {
	c := s.clients[fd]
	m, err := c.sock.recv(unix.MSG_DONTWAIT)
	if errors.Is(err, unix.EAGAIN) {
		return
	}
	if err == nil {
		err = s.request(c, &m)
	}
	if err != nil {
		s.dropClient(fd)
	}
}

// request answers m; an error ends the connection.
func (s *server) request(c *client, m *message) error {
	reply := func(r message) error { return c.sock.send(&r, unix.MSG_DONTWAIT) }
	switch m.kind {
	case kindHello:
		return reply(message{kind: kindHello, nums: [3]int64{protocolVersion, int64(os.Getpid())}})
	case kindStart, kindAdopt:
		sh, err := s.addShard(m)
		if err != nil {
			s.opts.Logger.Error("shard not started", slog.String("shard", m.name), slog.Any("err", err))
			return reply(message{kind: kindFail, blob: []byte(err.Error())})
		}
		return reply(message{kind: kindOK, nums: [3]int64{int64(sh.pid), int64(sh.startTime)}})
	case kindStop:
		closeAll(m.fds)
		if sh := s.shards[m.name]; sh != nil {
			s.stopShard(sh)
		}
		return reply(message{kind: kindOK})
	case kindList:
		closeAll(m.fds)
		for _, sh := range s.shards {
			r := message{kind: kindShard, name: sh.spec.Name, nums: [3]int64{int64(sh.pid), int64(sh.startTime), int64(sh.spec.UID)}}
			if err := reply(r); err != nil {
				return err
			}
		}
		return reply(message{kind: kindEnd})
	case kindWatch:
		closeAll(m.fds)
		c.watching = true
		return reply(message{kind: kindOK})
	default:
		closeAll(m.fds)
		return fmt.Errorf("unexpected request %d", m.kind)
	}
}

// tell reports an event to every watching client; one that doesn't read is dropped and thereby knows.
func (s *server) tell(t EventType, name string, pid int, startTime uint64) {
	for fd, c := range s.clients {
		if !c.watching {
			continue
		}
		m := message{kind: kindEvent, name: name, nums: [3]int64{int64(t), int64(pid), int64(startTime)}}
		if err := c.sock.send(&m, unix.MSG_DONTWAIT); err != nil {
			s.dropClient(fd)
		}
	}
}
