package container

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/backend/container/record"
	"github.com/dsec-io/dsec/internal/edge"
	"github.com/dsec-io/dsec/internal/linux/cgroup"
	"github.com/dsec-io/dsec/internal/linux/pidfd"
)

// box is a living sandbox. Its one descriptor is init's pidfd.
type box struct {
	b      *Backend
	sh     *shard
	id     string
	groups *cgroup.Box
	done   chan struct{}
	unhook func() // takes the pidfd out of the watcher

	kind boxKind   // of a sandbox that was made ahead
	made time.Time // when that was

	// stopping is held while Stop works, so that a second call waits for the first.
	stopping sync.Mutex

	// mu guards what follows.
	mu    sync.Mutex
	st    record.State
	pidfd int // -1: closed
	gone  bool
	fresh bool // it is being made: nothing has been done in it
}

// newBox takes over the pidfd of a living init, on success.
func (b *Backend) newBox(sh *shard, id string, st *record.State, groups *cgroup.Box, fd int) (*box, error) {
	if err := b.cfg.Faults.At("box:watch"); err != nil {
		return nil, err
	}
	x := &box{b: b, sh: sh, id: id, st: *st, groups: groups, pidfd: fd, done: make(chan struct{})}
	unhook, err := b.watcher.Add(fd, func() {
		x.mu.Lock()
		if x.pidfd >= 0 {
			pidfd.Reap(x.pidfd)
		}
		x.mu.Unlock()
		close(x.done)
	})
	if err != nil {
		return nil, err
	}
	x.unhook = unhook
	return x, nil
}

// register makes the sandbox known here and in its shard.
func (x *box) register() {
	x.b.mu.Lock()
	x.b.boxes[x.id] = x
	x.b.mu.Unlock()
	x.sh.mu.Lock()
	x.sh.boxes[x.id] = x
	x.sh.mu.Unlock()
	if err := x.groups.Guard(x.hit); err != nil {
		x.b.log.Warn("limits that a sandbox meets aren't told", slog.String("sandbox", x.id), slog.Any("err", err))
	}
}

// hit tells that the sandbox has met a limit.
func (x *box) hit(h cgroup.Hit) {
	if x.b.cfg.Notify == nil {
		return
	}
	limit, peak := x.sh.groups.Dirs().MemoryBounds(x.id)
	if h.OOMKills > 0 {
		x.b.cfg.Notify(x.id, OutOfMemory, map[string]any{"kills": h.OOMKills, "total": h.Total, "limit_bytes": limit, "peak_bytes": peak})
	}
	if h.PIDsRefused > 0 {
		x.b.cfg.Notify(x.id, PIDsLimit, map[string]any{"refused": h.PIDsRefused, "total": h.Total})
	}
}

func (x *box) unregister() {
	x.groups.Unguard()
	x.b.mu.Lock()
	if x.b.boxes[x.id] == x {
		delete(x.b.boxes, x.id)
	}
	x.b.mu.Unlock()
	x.sh.mu.Lock()
	delete(x.sh.boxes, x.id)
	x.sh.mu.Unlock()
}

// addTo tells the shard of the sandbox.
func (x *box) addTo(ctx context.Context, conn *aether.Conn) error {
	x.mu.Lock()
	st, fd, fresh := x.st, x.pidfd, x.fresh
	x.mu.Unlock()
	m := aether.AddBox{Name: x.id, User: st.User, Hostname: st.Hostname, CPUs: st.CPUs, Ends: st.Ends, Fresh: fresh}
	if fd < 0 {
		return nil
	}
	_, err := aether.Unary(ctx, conn, aether.Open{Method: "add", Sandbox: x.id, Project: st.Project, Body: m.AppendTo(nil), FDs: []int{fd}})
	if err != nil {
		return fmt.Errorf("add %s to %s: %w", x.id, x.sh.name, err)
	}
	return nil
}

func (x *box) isDead() bool {
	select {
	case <-x.done:
		return true
	default:
		return false
	}
}

// State is what Adopt and Clean of a later process need.
func (x *box) State() json.RawMessage {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.st.Encode()
}

// Done is closed when init has died.
func (x *box) Done() <-chan struct{} { return x.done }

// Open opens a stream to the sandbox's aether. While the shard is being restarted it waits.
func (x *box) Open(ctx context.Context, o aether.Open) (*aether.Stream, error) {
	o.Sandbox = x.id
	for first := true; ; first = false {
		conn, err := x.sh.connection(ctx)
		if err != nil {
			return nil, fmt.Errorf("reach the aether of %s: %w", x.id, err) // the edge knows what that means for the request
		}
		s, err := conn.Open(ctx, o)
		if err != nil && first && errors.Is(err, aether.ErrConnLost) {
			continue
		}
		return s, err
	}
}

// SetLimits changes the limits, and how many processors the sandbox sees. A limit that is absent is lifted.
func (x *box) SetLimits(ctx context.Context, r api.Resources) error {
	if err := x.b.cfg.Faults.At("limits:set"); err != nil {
		return err
	}
	err := x.groups.SetLimits(limits(r))
	if used, ok := errors.AsType[*cgroup.InUseError](err); ok {
		return api.FieldError(api.CodeConflict, "resources.memory_mb", "end what uses it, or ask for more",
			"%d bytes of memory are in use and can't be taken back; the new limit is %d", used.Usage, used.Limit)
	}
	if err != nil {
		return err
	}
	cpus := x.b.shownCPUs(r)
	x.mu.Lock()
	same, fd := x.st.CPUs == cpus, x.pidfd
	x.st.CPUs = cpus
	x.mu.Unlock()
	if same || fd < 0 {
		return nil
	}
	// What is shown is a help for programs that size themselves; the limit itself holds already.
	err = x.b.showCPUs(fd, int(cpus))
	if conn, cerr := x.sh.connection(ctx); cerr == nil {
		err = errors.Join(err, x.addTo(ctx, conn))
	}
	if err != nil {
		x.b.log.Warn("sandbox sees another number of processors than its limit", slog.String("sandbox", x.id), slog.Any("err", err))
	}
	return nil
}

func limits(r api.Resources) cgroup.Limits {
	var l cgroup.Limits
	if r.MemoryMB != nil {
		l.Memory = *r.MemoryMB << 20
	}
	if r.CPU != nil {
		l.CPU = *r.CPU
	}
	if r.PIDs != nil {
		l.PIDs = *r.PIDs
	}
	return l
}

// Usage reads the sandbox's counters.
func (x *box) Usage() (edge.Usage, error) {
	u, err := x.groups.Usage()
	if err != nil {
		return edge.Usage{}, err
	}
	return edge.Usage{
		MemoryBytes: u.Memory - u.Cache, CacheBytes: u.Cache, PeakBytes: u.MemoryPeak, CPUNanos: u.CPU.Nanoseconds(),
		ThrottledNanos: u.Throttled.Nanoseconds(), PIDs: u.PIDs, PIDsRefused: u.PIDsRefused, OOMKills: u.OOMKills,
	}, nil
}

// Stop ends the sandbox and removes everything it had.
func (x *box) Stop(ctx context.Context) error {
	x.stopping.Lock()
	defer x.stopping.Unlock()
	x.mu.Lock()
	gone, fd := x.gone, x.pidfd
	x.mu.Unlock()
	if gone {
		return nil
	}
	// The user namespace is used again. Only a living process can be asked for it.
	userns := -1
	if !x.isDead() {
		if ns, err := pidfd.UserNS(fd); err == nil {
			userns = ns
		}
	}
	if err := x.kill(ctx, fd); err != nil {
		closeFD(userns)
		return err
	}
	told := x.tellShard(ctx)
	if err := x.removeGroups(ctx); err != nil {
		closeFD(userns)
		return err
	}
	x.b.discard(x.b.upper(x.id).dir)
	x.forget()
	x.unregister()
	if !told {
		x.sh.pruneSoon()
	}
	if s := (&slot{base: x.st.Base, userns: userns}); userns >= 0 {
		x.sh.returnSlot(s)
	} else {
		x.b.dropSlot(s)
	}
	x.sh.leave()
	return nil
}

func (x *box) removeGroups(ctx context.Context) error {
	if err := x.b.cfg.Faults.At("end:groups"); err != nil {
		return err
	}
	return x.groups.Remove(ctx)
}

// kill ends every process of the sandbox and waits for init, whose end is the end of its pid namespace. Commands are
// children of the shard, which reaps them; so init ends in time only while the shard or the keeper lives.
func (x *box) kill(ctx context.Context, fd int) error {
	if err := x.b.cfg.Faults.At("end:kill"); err != nil {
		return err
	}
	err := errors.Join(x.groups.Kill(), pidfd.Kill(fd))
	if err := pidfd.Wait(ctx, fd); err != nil {
		return fmt.Errorf("stop %s: %w", x.id, err)
	}
	select {
	case <-x.done: // the watcher has reaped it
	case <-ctx.Done():
		return fmt.Errorf("stop %s: %w", x.id, context.Cause(ctx))
	}
	if err != nil {
		x.b.log.Warn("sandbox not killed at once", slog.String("sandbox", x.id), slog.Any("err", err))
	}
	return nil
}

// tellShard has the shard forget the sandbox, if it can be reached. The keeper knows it still, and would tell the next one.
func (x *box) tellShard(ctx context.Context) (told bool) {
	x.sh.mu.Lock()
	conn, up := x.sh.conn, x.sh.up
	x.sh.mu.Unlock()
	if !up {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if _, err := aether.Unary(ctx, conn, aether.Open{Method: "remove", Sandbox: x.id, Project: x.st.Project}); err != nil {
		x.b.log.Warn("shard doesn't forget a sandbox yet", slog.String("sandbox", x.id), slog.Any("err", err))
		return false
	}
	return true
}

// forget closes what this process holds of the sandbox.
func (x *box) forget() { closeFD(x.letGo()) }

// letGo gives the pidfd to the caller. The box is of no use any more.
func (x *box) letGo() int {
	x.unhook()
	x.mu.Lock()
	defer x.mu.Unlock()
	fd := x.pidfd
	x.gone, x.pidfd = true, -1
	return fd
}
