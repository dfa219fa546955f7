package keeper

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/internal/linux/proc"
)

// Back-off of restarts: at once, unless a shard has died more than burst times within window.
const (
	burst       = 5
	window      = 10 * time.Second
	firstDelay  = 100 * time.Millisecond
	longest     = 10 * time.Second
	stopTimeout = 2 * time.Second // how long stop waits for a killed shard
)

// shard is a shard as its keeper sees it.
type shard struct {
	spec        ShardSpec
	pid         int // 0: down
	pidfd       int
	startTime   uint64
	sock        *socket // nil: down
	items       map[string]*item
	descriptors int       // of the items
	queue       []message // not sent yet, for want of room in the socket
	deaths      []time.Time
	due         time.Time // when to start it again; zero: it runs
}

// addShard starts or adopts the shard that m describes.
func (s *server) addShard(m *message) (*shard, error) {
	sh := &shard{pidfd: -1, items: make(map[string]*item)}
	fds := m.fds
	adopt := m.kind == kindAdopt
	if adopt {
		if len(fds) < 2 {
			closeAll(fds)
			return nil, errors.New("adopt without pidfd and socket")
		}
		fds = fds[2:]
	}
	err := sh.spec.unpack(m, fds)
	if err == nil && s.shards[sh.spec.Name] != nil {
		err = fmt.Errorf("shard %s exists", sh.spec.Name)
	}
	if err == nil {
		if adopt {
			err = s.attach(sh, pidOf(m.fds[0]), m.fds[0], m.fds[1])
		} else {
			err = s.start(sh)
		}
	}
	if err != nil {
		closeAll(m.fds)
		return nil, err
	}
	s.shards[sh.spec.Name] = sh
	return sh, nil
}

// start makes the process of sh and hands its items back.
func (s *server) start(sh *shard) error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("make socket pair: %w", err)
	}
	pid, err := spawnShard(&sh.spec, pair[1], s.opts.EmptyDir)
	_ = unix.Close(pair[1])
	if err != nil {
		_ = unix.Close(pair[0])
		return fmt.Errorf("start shard %s: %w", sh.spec.Name, err)
	}
	pidfd, err := unix.PidfdOpen(pid, 0) // our unreaped child: the number is its own
	if err == nil {
		err = s.attach(sh, pid, pidfd, pair[0])
	}
	if err != nil {
		_ = unix.Kill(pid, unix.SIGKILL)
		closeAll([]int{pidfd, pair[0]})
		return err
	}
	s.handBack(sh)
	return nil
}

// attach takes over a shard's pidfd and socket. On error they stay the caller's.
func (s *server) attach(sh *shard, pid, pidfd, sock int) error {
	begun, err := proc.StartTime(pid)
	if err != nil {
		return fmt.Errorf("shard %s, pid %d: %w", sh.spec.Name, pid, err)
	}
	if err := s.watch(pidfd, unix.EPOLLIN, func(uint32) { s.shardDied(sh) }); err != nil {
		return err
	}
	err = s.watch(sock, unix.EPOLLIN, func(events uint32) {
		if events&^unix.EPOLLOUT != 0 {
			s.serveShard(sh)
		}
		if events&unix.EPOLLOUT != 0 {
			s.flush(sh)
		}
	})
	if err != nil {
		s.unwatch(pidfd)
		return err
	}
	sh.pid, sh.pidfd, sh.startTime, sh.sock, sh.due = pid, pidfd, begun, newSocket(sock), time.Time{}
	return nil
}

// detach takes everything in that a dead shard has said and forgets its process.
func (s *server) detach(sh *shard) {
	s.serveShard(sh)
	raw, err := WaitPIDFD(sh.pidfd, true)
	s.opts.Logger.Info("shard ended", slog.String("shard", sh.spec.Name), slog.Int("pid", sh.pid), slog.Int("wait_status", int(raw)), slog.Any("err", err))
	s.unwatch(sh.sock.fd)
	s.unwatch(sh.pidfd)
	closeAll([]int{sh.sock.fd, sh.pidfd})
	sh.pid, sh.pidfd, sh.sock, sh.queue = 0, -1, nil, nil
}

// shardDied restarts sh, now or when its back-off says so.
func (s *server) shardDied(sh *shard) {
	if sh.sock == nil {
		return
	}
	pid, begun := sh.pid, sh.startTime
	s.detach(sh)
	s.orphan(sh)
	s.tell(EventDied, sh.spec.Name, pid, begun)
	sh.due = time.Now().Add(sh.delay(time.Now()))
}

// delay is the back-off after a death at now.
func (sh *shard) delay(now time.Time) time.Duration {
	recent := sh.deaths[:0]
	for _, t := range sh.deaths {
		if now.Sub(t) < window {
			recent = append(recent, t)
		}
	}
	sh.deaths = append(recent, now)
	over := len(sh.deaths) - burst
	if over <= 0 {
		return 0
	}
	return min(firstDelay<<min(over-1, 10), longest)
}

// startDueShards starts what is due and returns the time-out until the next, in milliseconds as epoll wants it.
func (s *server) startDueShards(now time.Time) int {
	timeout := -1
	for _, sh := range s.shards {
		if sh.due.IsZero() {
			continue
		}
		if !sh.due.After(now) {
			if err := s.start(sh); err != nil {
				delay := sh.delay(now)
				sh.due = now.Add(max(delay, firstDelay))
				s.opts.Logger.Error("shard not restarted", slog.String("shard", sh.spec.Name), slog.Any("err", err))
				if delay == longest {
					s.tell(EventGivenUp, sh.spec.Name, 0, 0)
				}
			} else {
				s.tell(EventRestarted, sh.spec.Name, sh.pid, sh.startTime)
				continue
			}
		}
		wait := int(sh.due.Sub(now)/time.Millisecond) + 1
		if timeout < 0 || wait < timeout {
			timeout = wait
		}
	}
	return timeout
}

// stopShard kills sh and gives up all that it had.
func (s *server) stopShard(sh *shard) {
	delete(s.shards, sh.spec.Name)
	if sh.sock != nil {
		_ = unix.PidfdSendSignal(sh.pidfd, unix.SIGKILL, nil, 0)
		// It dies within milliseconds; the caller wants to remove its cgroup next.
		poll := []unix.PollFd{{Fd: int32(sh.pidfd), Events: unix.POLLIN}}
		for end := time.Now().Add(stopTimeout); time.Now().Before(end); {
			if n, err := unix.Poll(poll, int(time.Until(end)/time.Millisecond)+1); n > 0 || !errors.Is(err, unix.EINTR) {
				break
			}
		}
		s.detach(sh)
	}
	for key := range sh.items {
		s.del(sh, key)
	}
	for _, fd := range sh.spec.fds() {
		if *fd >= 0 {
			_ = unix.Close(*fd)
		}
	}
}
