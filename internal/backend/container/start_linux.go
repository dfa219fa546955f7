package container

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/backend/container/record"
	"github.com/dsec-io/dsec/internal/backend/container/shortage"
	"github.com/dsec-io/dsec/internal/edge"
	"github.com/dsec-io/dsec/internal/image"
	"github.com/dsec-io/dsec/internal/linux/cgroup"
	"github.com/dsec-io/dsec/internal/linux/pidfd"
	"github.com/dsec-io/dsec/internal/linux/proc"
	"github.com/dsec-io/dsec/internal/spawn"
	"golang.org/x/sys/unix"
)

// Start makes a sandbox. It returns when the sandbox's shard has taken it, so that an exec would be answered.
func (b *Backend) Start(ctx context.Context, p edge.BoxParams) (edge.Box, error) {
	x, err := b.start(ctx, p)
	if err != nil {
		return nil, shortage.Refusal(err)
	}
	return x, nil
}

func (b *Backend) start(ctx context.Context, p edge.BoxParams) (_ *box, err error) {
	if x := b.taken(p.ID); x != nil {
		return x, b.hand(ctx, x, &p)
	}
	im, err := b.image(ctx, p.Spec.Image)
	if err != nil {
		return nil, err
	}
	defer func() { _ = im.Close() }() // the backend keeps a share of its own
	sh, err := b.place(ctx, p.Project, p.Spec.Isolation == "own")
	if err != nil {
		return nil, err
	}
	kind := b.kindOf(p.Spec, im.Digest())
	sh.want(kind)
	x, err := b.make(ctx, sh, order{id: p.ID, kind: kind, image: im, persist: p.Persist, ends: endOf(p.Spec.TTL)})
	if err != nil {
		sh.leave()
		return nil, err
	}
	return x, nil
}

// order is what one sandbox is made from.
type order struct {
	id      string
	kind    boxKind
	image   *image.Image
	persist func(json.RawMessage) error
	ends    int64 // see record.State
}

// make makes a sandbox in a shard that has a place for it.
func (b *Backend) make(ctx context.Context, sh *shard, o order) (_ *box, err error) {
	var u undo
	defer u.run()
	sl, err := sh.takeSlot(o.kind.root) //nolint:contextcheck // a claim of ids is bounded by itself
	if err != nil {
		return nil, err
	}
	announced := false
	u.push(func() {
		if announced {
			sh.pruneSoon() // it may have been told, and not of the end
		}
	})
	kept := false // a running sandbox keeps its range, and its namespace by itself
	u.push(func() {
		if !kept {
			sh.returnSlot(sl)
		}
	})
	st := &record.State{
		Boot: b.boot, Shard: sh.name, Project: sh.project, Own: sh.own, Owner: sh.uid, Base: sl.base,
		User: o.kind.user, Hostname: o.kind.root.hostname, CPUs: o.kind.cpus, Ends: o.ends,
	}
	if err := o.persist(st.Encode()); err != nil {
		return nil, err
	}
	up := b.upper(o.id)
	u.push(func() { b.discard(up.dir) })
	groups, root, err := b.ground(sh, &o, up, sl) //nolint:contextcheck // only its undoing waits, bounded
	if groups != nil {
		u.push(func() { b.settle(ctx, o.id, groups.Remove) })
	}
	if root >= 0 {
		defer unix.Close(root)
	}
	if err != nil {
		return nil, err
	}
	fd, err := b.birth(ctx, &o, &u, birth{slot: sl, groups: groups, root: root, state: st})
	if err != nil {
		return nil, err
	}
	if err := o.persist(st.Encode()); err != nil {
		return nil, err
	}
	x, err := b.newBox(sh, o.id, st, groups, fd)
	if err != nil {
		return nil, err
	}
	x.fresh = true
	u.push(func() { x.letGo() })
	x.register()
	u.push(x.unregister)
	announced = true
	if err := x.announce(ctx); err != nil {
		return nil, err
	}
	x.mu.Lock()
	x.fresh = false
	x.mu.Unlock()
	kept = true
	closeFD(sl.userns)
	u.release()
	return x, nil
}

func (b *Backend) newGroups(sh *shard, o *order) (*cgroup.Box, error) {
	if err := b.cfg.Faults.At("create:groups"); err != nil {
		return nil, err
	}
	return sh.groups.Box(o.id, o.kind.limits)
}

// announce adds the sandbox to its shard.
func (x *box) announce(ctx context.Context) error {
	if err := x.b.cfg.Faults.At("create:announce"); err != nil {
		return err
	}
	conn, err := x.sh.connection(ctx)
	if err == nil {
		err = x.addTo(ctx, conn)
	}
	if errors.Is(err, aether.ErrConnLost) && ctx.Err() == nil {
		_, err = x.sh.connection(ctx) // the next shard is told of all sandboxes before it is up
	}
	if err == nil {
		err = x.b.cfg.Faults.At("create:announced")
	}
	if err == nil && x.isDead() {
		err = errors.New("init has died at once")
	}
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		x.tellShard(context.WithoutCancel(ctx))
	}
	return err
}

// birth is what init is made of.
type birth struct {
	slot   *slot
	groups *cgroup.Box
	root   int           // stays the caller's
	state  *record.State // gets the process
}

// birth makes the sandbox's init, and returns init's pidfd, which is u's until u is released.
func (b *Backend) birth(ctx context.Context, o *order, u *undo, in birth) (_ int, err error) {
	if err := b.cfg.Faults.At("create:join"); err != nil {
		return -1, err
	}
	join, err := in.groups.JoinFDs()
	if err != nil {
		return -1, err
	}
	defer func() { _ = join.Close() }() // read from and written to by others only
	if ctx.Err() != nil {
		return -1, context.Cause(ctx)
	}
	uid, gid := workdirOwner(o.kind.user)
	pl := plan{
		node: b.node, userns: in.slot.userns, root: in.root, join: join, hostname: in.state.Hostname,
		workdir: o.kind.workdir, uid: uid, gid: gid, cpus: int(in.state.CPUs),
	}
	pid, err := b.makeInit(&pl)
	if err != nil {
		return -1, fmt.Errorf("make init: %w", err)
	}
	// Our unreaped child: until it is reaped its number is its own.
	fd, err := b.openInit(pid)
	if err != nil {
		endChild(pid)
		return -1, err
	}
	u.push(func() {
		endInit(ctx, fd)
		closeFD(fd)
	})
	if err := b.cfg.Faults.At("create:identity"); err != nil {
		return -1, err
	}
	if in.state.StartTime, err = proc.StartTime(pid); err != nil {
		return -1, err
	}
	in.state.PID = pid
	return fd, nil
}

func (b *Backend) makeInit(pl *plan) (int, error) {
	if err := b.cfg.Faults.At("create:init"); err != nil {
		return 0, err
	}
	return pl.create(b.watch)
}

func (b *Backend) openInit(pid int) (int, error) {
	if err := b.cfg.Faults.At("create:pidfd"); err != nil {
		return -1, err
	}
	return pidfd.Open(pid)
}

// endChild ends a child of ours that nobody else has seen. The removal of its group would kill it, and leave it unreaped.
func endChild(pid int) {
	if unix.Kill(pid, unix.SIGKILL) == nil {
		_, _ = spawn.Wait(pid) // how it ended is known
	}
}

// endInit takes back a birth.
func endInit(ctx context.Context, fd int) {
	ctx, cancel := settling(ctx)
	defer cancel()
	if pidfd.Kill(fd) == nil && pidfd.Wait(ctx, fd) == nil {
		pidfd.Reap(fd)
	}
}

// settle takes something back after the request's end, and tells when it can't.
func (b *Backend) settle(ctx context.Context, id string, f func(context.Context) error) {
	ctx, cancel := settling(ctx)
	defer cancel()
	if err := f(ctx); err != nil {
		b.log.Warn("left of a sandbox that wasn't made", slog.String("sandbox", id), slog.Any("err", err))
	}
}

// shownCPUs is how many processors a sandbox sees; 0: all.
func (b *Backend) shownCPUs(r api.Resources) int32 {
	if r.CPU == nil {
		return 0
	}
	n := cgroup.CPUs(*r.CPU)
	if n >= b.node.cpus {
		return 0
	}
	return int32(n)
}

// workdirOwner is the owner of a working directory that has to be made: the sandbox's user where that is a number.
// Names mean something in the image only, and are looked up when a command runs.
func workdirOwner(user string) (uid, gid uint32) {
	u, g, both := strings.Cut(user, ":")
	id, err := strconv.ParseUint(u, 10, 32)
	if err != nil {
		return 0, 0
	}
	uid, gid = uint32(id), uint32(id)
	if both {
		if id, err := strconv.ParseUint(g, 10, 32); err == nil {
			gid = uint32(id)
		}
	}
	return uid, gid
}
