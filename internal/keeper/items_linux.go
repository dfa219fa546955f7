package keeper

import (
	"errors"
	"log/slog"
	"maps"
	"slices"

	"golang.org/x/sys/unix"
)

// Limits per shard, so that a shard that goes wrong can't use up its keeper.
const (
	maxItems = 65536
	maxBlob  = 32 << 10
)

// Budget is how many descriptors a shard may have in its keeper, which has the same limit of open files as the shard: a
// part of it, because several shards share one keeper, and because starting a shard again takes some.
func Budget() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0
	}
	const part = 8
	return int(min(limit.Cur, 1<<20)) / part
}

// item is one thing that a shard has put.
type item struct {
	key    string
	flags  uint32 // 1 + index of the pidfd in fds; 0: none
	blob   []byte
	fds    []int
	known  bool // status is valid
	status int32
}

func (it *item) pidfd() int {
	if it.flags == 0 || int(it.flags) > len(it.fds) {
		return -1
	}
	return it.fds[it.flags-1]
}

func (it *item) message() message {
	return message{kind: kindItem, name: it.key, flags: it.flags, blob: it.blob, fds: it.fds}
}

// serveShard handles what a shard has sent. It reads all there is, so that it can be used on a dead shard's socket too.
func (s *server) serveShard(sh *shard) {
	for {
		m, err := sh.sock.recv(unix.MSG_DONTWAIT)
		if errors.Is(err, unix.EAGAIN) {
			return
		}
		if errors.Is(err, errTruncated) {
			s.opts.Logger.Error("item lost: the keeper is out of descriptors", slog.String("shard", sh.spec.Name))
			continue
		}
		if err != nil {
			s.unwatch(sh.sock.fd) // its end is told by the pidfd
			return
		}
		switch m.kind {
		case kindPut:
			s.put(sh, &m)
		case kindDel:
			closeAll(m.fds)
			s.del(sh, m.name)
		case kindStatus:
			closeAll(m.fds)
			if it := sh.items[m.name]; it != nil && !it.known {
				it.known, it.status = true, int32(m.nums[0])
			}
		default:
			closeAll(m.fds)
		}
	}
}

func (s *server) put(sh *shard, m *message) {
	old := sh.items[m.name]
	if old == nil && len(sh.items) >= maxItems || len(m.blob) > maxBlob || sh.descriptors+len(m.fds) > s.budget {
		closeAll(m.fds)
		s.opts.Logger.Error("item refused", slog.String("shard", sh.spec.Name), slog.Int("items", len(sh.items)), slog.Int("descriptors", sh.descriptors), slog.Int("bytes", len(m.blob)))
		return
	}
	sh.descriptors += len(m.fds)
	it := &item{key: m.name, flags: m.flags, blob: m.blob, fds: m.fds}
	if old == nil {
		sh.items[m.name] = it
		return
	}
	it.known, it.status = old.known, old.status
	_, waited := s.orphans[old]
	s.del(sh, m.name)
	sh.items[m.name] = it
	if waited {
		s.orphan(sh)
	}
}

func (s *server) del(sh *shard, key string) {
	it := sh.items[key]
	if it == nil {
		return
	}
	delete(sh.items, key)
	sh.descriptors -= len(it.fds)
	s.disown(it)
	closeAll(it.fds)
}

// disown stops waiting for it.
func (s *server) disown(it *item) {
	if _, ok := s.orphans[it]; ok {
		delete(s.orphans, it)
		s.unwatch(it.pidfd())
	}
}

// orphan begins to wait for the processes of a dead shard's items: they are this process's children now, or those of
// whoever was nearer.
func (s *server) orphan(sh *shard) {
	for _, it := range sh.items {
		if it.known || it.pidfd() < 0 {
			continue
		}
		if _, ok := s.orphans[it]; ok {
			continue
		}
		s.orphans[it] = struct{}{}
		if err := s.watch(it.pidfd(), unix.EPOLLIN, func(uint32) { s.check(sh, it) }); err != nil {
			s.opts.Logger.Error("process of an item not watched", slog.String("shard", sh.spec.Name), slog.Any("err", err))
		}
	}
}

// check finds out whether the process of it has ended and how.
func (s *server) check(sh *shard, it *item) {
	if it.known || it.pidfd() < 0 {
		return
	}
	raw, err := WaitPIDFD(it.pidfd(), true)
	switch {
	case errors.Is(err, ErrRunning):
		return
	case errors.Is(err, ErrNotChild):
		var ok bool
		if raw, ok = ExitInfo(it.pidfd()); !ok {
			// Ended under another parent that hasn't reaped it yet, or alive under a living shard. The kernel raises
			// EPOLLHUP, which is always reported, once it is reaped.
			if _, orphan := s.orphans[it]; orphan {
				_ = s.watch(it.pidfd(), 0, s.on[it.pidfd()])
			}
			return
		}
	case err != nil:
		s.opts.Logger.Error("wait for the process of an item", slog.String("shard", sh.spec.Name), slog.Any("err", err))
		s.disown(it)
		return
	}
	it.known, it.status = true, raw
	s.disown(it)
	sh.queue = append(sh.queue, message{kind: kindStatus, name: it.key, nums: [3]int64{int64(raw)}})
	s.flush(sh)
}

// reapStrays reaps what no item speaks of: helpers and short commands whose shard died. Whatever an item speaks of has
// given its status before, because it had ended when it was seen here.
func (s *server) reapStrays() {
	for {
		pid, _, err := waitid(unix.P_ALL, 0, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT)
		if err != nil || pid == 0 {
			return
		}
		for _, sh := range slices.Collect(maps.Values(s.shards)) {
			if sh.pid == pid {
				s.shardDied(sh)
				continue
			}
			for _, it := range sh.items {
				s.check(sh, it)
			}
		}
		_, _, _ = waitid(unix.P_PID, pid, unix.WEXITED|unix.WNOHANG)
	}
}

// handBack queues every item, with its status where that is known, and the end mark.
func (s *server) handBack(sh *shard) {
	sh.queue = sh.queue[:0]
	for _, key := range slices.Sorted(maps.Keys(sh.items)) {
		it := sh.items[key]
		sh.queue = append(sh.queue, it.message())
		if it.known {
			sh.queue = append(sh.queue, message{kind: kindStatus, name: it.key, nums: [3]int64{int64(it.status)}})
		}
	}
	sh.queue = append(sh.queue, message{kind: kindEnd})
	s.flush(sh)
}

// flush sends what is queued for sh as far as the socket takes it; the rest goes when it has room again.
func (s *server) flush(sh *shard) {
	if sh.sock == nil {
		return // down: handBack tells everything to the next one
	}
	for len(sh.queue) > 0 {
		m := &sh.queue[0]
		// An item that was deleted meanwhile has no descriptors any more.
		if it := sh.items[m.name]; m.kind != kindItem || it != nil && slices.Equal(it.fds, m.fds) {
			err := sh.sock.send(m, unix.MSG_DONTWAIT)
			if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.ETOOMANYREFS) {
				_ = s.watch(sh.sock.fd, unix.EPOLLIN|unix.EPOLLOUT, s.on[sh.sock.fd])
				return
			}
			if err != nil {
				break // it is dying: its pidfd tells
			}
		}
		sh.queue = sh.queue[1:]
	}
	sh.queue = nil
	_ = s.watch(sh.sock.fd, unix.EPOLLIN, s.on[sh.sock.fd])
}
