package keeper

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// ShardSpec is everything that the keeper needs to start a shard, now and again after its death.
//
// In the shard the descriptors have the numbers of the FD constants. A descriptor of -1 is absent.
type ShardSpec struct {
	Name string
	Argv []string // argv[0] included
	UID  int      // uid and gid that the shard runs as

	Listener int // listening Unix socket of the shard
	Log      int // its stdout and stderr
	Program  int // sealed memfd of dsec-aether, mode 0111
	SelfDir  int // O_PATH or O_RDONLY, cgroup v2 directory that the shard is born into; -1 only in tests

	CgroupV2, CgroupMemory, CgroupCPU, CgroupPIDs int // O_PATH directories of the shard in each hierarchy
}

// Descriptor numbers in a shard. Every other number below LowFDs is /dev/null, and so is an absent descriptor's: a shard
// passes descriptors on through low numbers, so nothing else may ever get one, not even the Go runtime's own.
const (
	FDListener     = 3
	FDStore        = 4
	FDNull         = 5 // /dev/null
	FDCgroupV2     = 6
	FDCgroupMemory = 7
	FDCgroupCPU    = 8
	FDCgroupPIDs   = 9
	LowFDs         = 64
)

// fds lists the descriptors in the order of their bits in a message's flags.
func (s *ShardSpec) fds() []*int {
	return []*int{
		&s.Listener, &s.Log, &s.Program, &s.SelfDir,
		&s.CgroupV2, &s.CgroupMemory, &s.CgroupCPU, &s.CgroupPIDs,
	}
}

// pack makes the message that carries s.
func (s *ShardSpec) pack(k kind) *message {
	m := &message{kind: k, name: s.Name, nums: [3]int64{int64(s.UID)}}
	for _, a := range s.Argv {
		m.blob = append(append(m.blob, a...), 0)
	}
	for i, fd := range s.fds() {
		if *fd >= 0 {
			m.flags |= 1 << i
			m.fds = append(m.fds, *fd)
		}
	}
	return m
}

// unpack takes the descriptors of m over into s.
func (s *ShardSpec) unpack(m *message, fds []int) error {
	s.Name, s.UID = m.name, int(m.nums[0])
	for a := range bytes.SplitSeq(bytes.TrimSuffix(m.blob, []byte{0}), []byte{0}) {
		s.Argv = append(s.Argv, string(a))
	}
	for i, fd := range s.fds() {
		*fd = -1
		if m.flags&(1<<i) == 0 {
			continue
		}
		if len(fds) == 0 {
			return fmt.Errorf("shard %s: a descriptor is missing", s.Name)
		}
		*fd, fds = fds[0], fds[1:]
	}
	if len(fds) > 0 || s.Listener < 0 || s.Program < 0 || s.Name == "" || s.UID <= 0 {
		return fmt.Errorf("shard %q: uid %d, listener %d, program %d", s.Name, s.UID, s.Listener, s.Program)
	}
	return nil
}

// Shard is a running shard as the keeper lists it.
type Shard struct {
	Name      string
	PID       int    // 0 while it is down and about to be restarted
	StartTime uint64 // field 22 of /proc/PID/stat: with PID the identity
	UID       int
}

// EventType is what happened to a shard.
type EventType int64

// What Watch reports.
const (
	EventDied      EventType = 1 // PID is the dead one's
	EventRestarted EventType = 2
	EventGivenUp   EventType = 3 // it can't be started any more; the keeper goes on trying at the back-off's longest interval
)

// Event is one change of a shard that nobody asked for.
type Event struct {
	Type EventType
	Shard
}

// callTimeout bounds one request to the keeper, which answers from memory but for the start of a process.
const callTimeout = 10 * time.Second

// Client is the edge's connection to a keeper. It is safe for concurrent use.
type Client struct {
	path string
	pid  int

	// mu guards what follows: one request at a time.
	mu      sync.Mutex
	sock    *socket
	err     error
	watches map[int]struct{} // sockets of Watch
}

// Dial connects to the keeper that listens on path.
func Dial(ctx context.Context, path string) (*Client, error) {
	sock, pid, err := dial(ctx, path)
	if err != nil {
		return nil, err
	}
	return &Client{path: path, pid: pid, sock: sock, watches: make(map[int]struct{})}, nil
}

func dial(ctx context.Context, path string) (*socket, int, error) {
	if err := ctx.Err(); err != nil {
		return nil, 0, err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, 0, fmt.Errorf("make keeper socket: %w", err)
	}
	s := newSocket(fd)
	tv := unix.NsecToTimeval(callTimeout.Nanoseconds())
	err = errors.Join(
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &tv))
	if err == nil {
		err = unix.Connect(fd, &unix.SockaddrUnix{Name: path})
	}
	if err == nil {
		err = s.send(&message{kind: kindHello, nums: [3]int64{protocolVersion}}, 0)
	}
	var hello message
	if err == nil {
		hello, err = s.recv(0)
	}
	if err == nil && (hello.kind != kindHello || hello.nums[0] != protocolVersion) {
		err = fmt.Errorf("keeper speaks version %d, this program %d", hello.nums[0], protocolVersion)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, 0, fmt.Errorf("connect to keeper %s: %w", path, err)
	}
	return s, int(hello.nums[1]), nil
}

// PID is the keeper's process id.
func (c *Client) PID() int { return c.pid }

// Start starts a shard. The keeper takes copies of all descriptors; the caller keeps its own.
func (c *Client) Start(spec *ShardSpec) (Shard, error) {
	return c.shardCall(spec, spec.pack(kindStart))
}

// Adopt gives a living shard to a keeper that hasn't started it. pidfd names it; store is the keeper's end of a
// SEQPACKET pair whose other end the shard has got by its "keeper" method.
func (c *Client) Adopt(spec *ShardSpec, pidfd, store int) (Shard, error) {
	m := spec.pack(kindAdopt)
	m.fds = append([]int{pidfd, store}, m.fds...)
	return c.shardCall(spec, m)
}

func (c *Client) shardCall(spec *ShardSpec, m *message) (Shard, error) {
	r, err := c.call(m)
	if err != nil {
		return Shard{}, fmt.Errorf("shard %s: %w", spec.Name, err)
	}
	return Shard{Name: spec.Name, PID: int(r.nums[0]), StartTime: uint64(r.nums[1]), UID: spec.UID}, nil
}

// Stop kills a shard, closes what it had put and forgets it. A shard that isn't known is no error.
func (c *Client) Stop(name string) error {
	if _, err := c.call(&message{kind: kindStop, name: name}); err != nil {
		return fmt.Errorf("stop shard %s: %w", name, err)
	}
	return nil
}

// List names the shards.
func (c *Client) List() ([]Shard, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return nil, c.err
	}
	if err := c.sock.send(&message{kind: kindList}, 0); err != nil {
		return nil, c.loseLocked(err)
	}
	var list []Shard
	for {
		m, err := c.sock.recv(0)
		if err != nil {
			return nil, c.loseLocked(err)
		}
		switch m.kind {
		case kindShard:
			list = append(list, m.shard())
		case kindEnd:
			return list, nil
		default:
			return nil, c.loseLocked(fmt.Errorf("unexpected message %d in a list", m.kind))
		}
	}
}

func (m *message) shard() Shard {
	return Shard{Name: m.name, PID: int(m.nums[0]), StartTime: uint64(m.nums[1]), UID: int(m.nums[2])}
}

// ErrRefused is what the keeper answered "no" with; the connection is still good.
var ErrRefused = errors.New("keeper refused")

func (c *Client) call(m *message) (message, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return message{}, c.err
	}
	if err := c.sock.send(m, 0); err != nil {
		return message{}, c.loseLocked(err)
	}
	r, err := c.sock.recv(0)
	if err != nil {
		return message{}, c.loseLocked(err)
	}
	closeAll(r.fds)
	switch r.kind {
	case kindOK:
		return r, nil
	case kindFail:
		return message{}, fmt.Errorf("%w: %s", ErrRefused, r.blob)
	default:
		return message{}, c.loseLocked(fmt.Errorf("unexpected answer %d", r.kind))
	}
}

// ErrLost is the end of a connection to the keeper, which may have done what it was asked for.
var ErrLost = errors.New("keeper is lost")

// loseLocked gives the connection up: after a time-out an answer could belong to an older question. Watch ends, so that
// whoever replaces clients learns of it while the keeper lives, too.
func (c *Client) loseLocked(err error) error {
	if errors.Is(err, io.EOF) {
		err = errors.New("it has ended")
	}
	c.err = fmt.Errorf("%w: %s: %w", ErrLost, c.path, err)
	for fd := range c.watches {
		_ = unix.Shutdown(fd, unix.SHUT_RDWR)
	}
	return c.err
}

// watching notes the socket of a Watch, until its end closes it.
func (c *Client) watching(fd int) (end func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watches[fd] = struct{}{}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.watches, fd)
		_ = unix.Close(fd)
	}, c.err
}

// Watch reports the shards' deaths and restarts on a connection of its own until ctx is done or the keeper has ended:
// its return with ctx not done is the notice that the keeper is dead, or that this client is of no use any more. ready, when not nil, is called once events are
// being recorded.
func (c *Client) Watch(ctx context.Context, ready func(), event func(Event)) error {
	s, _, err := dial(ctx, c.path)
	if err != nil {
		return err
	}
	end, err := c.watching(s.fd)
	defer end()
	if err != nil {
		return err
	}
	var forever unix.Timeval
	if err := unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &forever); err != nil {
		return fmt.Errorf("watch keeper: %w", err)
	}
	if err := s.send(&message{kind: kindWatch}, 0); err != nil {
		return fmt.Errorf("watch keeper: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = unix.Shutdown(s.fd, unix.SHUT_RDWR) })
	defer stop()
	if m, err := s.recv(0); err != nil || m.kind != kindOK {
		return fmt.Errorf("watch keeper: answer %d: %w", m.kind, err)
	}
	if ready != nil {
		ready()
	}
	for {
		m, err := s.recv(0)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return fmt.Errorf("watch keeper: %w", err)
		}
		if m.kind == kindEvent {
			event(Event{Type: EventType(m.nums[0]), Shard: Shard{Name: m.name, PID: int(m.nums[1]), StartTime: uint64(m.nums[2])}})
		}
	}
}

// Close ends the connection; the keeper and its shards go on.
func (c *Client) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = fmt.Errorf("%w: its client is closed", ErrLost)
	}
	return unix.Close(c.sock.fd)
}
