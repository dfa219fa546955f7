package container

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"github.com/dsec-io/dsec/internal/backend/container/record"
	"github.com/dsec-io/dsec/internal/edge"
	"github.com/dsec-io/dsec/internal/linux/cgroup"
	"github.com/dsec-io/dsec/internal/linux/pidfd"
)

// Adopt takes over a sandbox that lives, from what was persisted of it.
func (b *Backend) Adopt(ctx context.Context, id string, raw json.RawMessage) (edge.Box, error) {
	st, err := record.Decode(raw)
	if err != nil {
		return nil, err
	}
	fd, err := st.Open(b.boot)
	if errors.Is(err, record.ErrGone) {
		return nil, b.whyGone(ctx, st.Shard, id)
	}
	if err != nil {
		return nil, err
	}
	x, err := b.adopt(ctx, id, st, fd)
	if err == nil {
		return x, nil
	}
	closeFD(fd)
	if errors.Is(err, record.ErrGone) {
		return nil, b.whyGone(ctx, st.Shard, id)
	}
	return nil, err
}

// takeRange takes an adopted sandbox's range of ids, until u is run.
func (b *Backend) takeRange(id string, base uint32, u *undo) {
	if err := b.cfg.IDs.Take(base); err != nil {
		b.log.Warn("id range of an adopted sandbox", slog.String("sandbox", id), slog.Any("err", err))
		return
	}
	u.push(func() { b.cfg.IDs.Release(base) })
}

func (b *Backend) adopt(ctx context.Context, id string, st *record.State, fd int) (*box, error) {
	var u undo
	defer u.run()
	sh, err := b.adoptShard(ctx, st)
	if err != nil {
		return nil, err
	}
	u.push(sh.leave)
	if err := b.cfg.Faults.At("adopt:groups"); err != nil {
		return nil, err
	}
	b.takeRange(id, st.Base, &u)
	groups, err := sh.groups.OpenBox(id)
	if err != nil {
		return nil, err
	}
	x, err := b.newBox(sh, id, st, groups, fd)
	if err != nil {
		return nil, err
	}
	conn, err := sh.connection(ctx)
	if err != nil {
		x.letGo()
		return nil, err
	}
	// Registered first: a shard that dies now is taught by its reconnection.
	x.register()
	known, err := knownBoxes(ctx, conn)
	if err == nil {
		err = b.cfg.Faults.At("adopt:announce")
	}
	if err == nil && !known[id] && x.isDead() { // its shard has ended it at the last moment
		err = record.ErrGone
	}
	if err == nil && !known[id] {
		err = x.addTo(ctx, conn)
	}
	if err == nil && !known[id] {
		x.teachPause(ctx, conn)
	}
	if err != nil {
		x.unregister()
		x.letGo()
		return nil, err
	}
	u.release()
	return x, nil
}

// adoptShard finds the shard that st names, or starts it again, and takes a place in it.
func (b *Backend) adoptShard(ctx context.Context, st *record.State) (*shard, error) {
	b.mu.Lock()
	sh := b.shards[st.Shard]
	first := sh == nil
	if first {
		sh = b.newShard(st.Shard, st.Project, st.Own)
		sh.uid = st.Owner
		b.shards[st.Shard] = sh
	}
	b.mu.Unlock()
	if first {
		b.goTask(func(life context.Context) { b.finishStart(sh, b.startKnown(life, sh)) })
	}
	select {
	case <-sh.started:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if sh.err != nil {
		return nil, fmt.Errorf("take over %s: %w", sh.name, sh.err)
	}
	if sh.uid != st.Owner || sh.project != st.Project {
		return nil, fmt.Errorf("%s is another project's by now", sh.name)
	}
	if !sh.keepPlace() {
		return nil, fmt.Errorf("%s has ended", sh.name)
	}
	return sh, nil
}

// startKnown connects to a shard of an earlier process, or starts it again under the same owner.
func (b *Backend) startKnown(ctx context.Context, sh *shard) error {
	if err := b.cfg.Faults.At("adopt:shard"); err != nil {
		return err
	}
	if err := b.cfg.IDs.TakeOwner(sh.uid); err != nil {
		b.log.Warn("owner id of an adopted shard", slog.String("shard", sh.name), slog.Any("err", err))
	}
	if err := b.openGroups(sh); err != nil {
		return err
	}
	if err := b.awaitProcess(ctx, sh); err != nil {
		return errors.Join(err, sh.groups.Close())
	}
	if err := sh.connect(ctx); err != nil {
		return errors.Join(err, sh.groups.Close())
	}
	b.goTask(sh.stayConnected)
	return nil
}

// Clean ends and removes what is left of a sandbox, whatever its state says or doesn't.
func (b *Backend) Clean(ctx context.Context, id string, raw json.RawMessage) error {
	b.mu.Lock()
	x := b.boxes[id]
	b.mu.Unlock()
	if x != nil {
		return x.Stop(ctx)
	}
	st, err := record.Decode(raw)
	if err != nil {
		b.log.Warn("state of a sandbox can't be read", slog.String("sandbox", id), slog.Any("err", err))
		st = &record.State{}
	}
	if fd, err := st.Open(b.boot); err == nil {
		err = errors.Join(pidfd.Kill(fd), pidfd.Wait(ctx, fd))
		pidfd.Reap(fd)
		closeFD(fd)
		if err != nil {
			return err
		}
	} else if !errors.Is(err, record.ErrGone) {
		return err
	}
	if err := b.cfg.Faults.At("clean:groups"); err != nil {
		return err
	}
	if err := b.cleanGroups(ctx, id); err != nil {
		return err
	}
	if name := filepath.Base(id); name == id && id[0] != '.' {
		b.discard(b.upper(id).dir)
	}
	if st.Base != 0 && b.cfg.IDs.Take(st.Base) == nil {
		b.cfg.IDs.Release(st.Base)
	}
	return nil
}

// List tells which sandboxes have groups.
func (b *Backend) List() ([]string, error) {
	shards, err := b.cfg.Cgroups.List()
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, sh := range shards {
		ids = append(ids, sh.Boxes...)
	}
	return ids, nil
}

// cleanGroups removes a sandbox's groups, and with them its processes, from whichever shard has them.
func (b *Backend) cleanGroups(ctx context.Context, id string) error {
	list, err := b.cfg.Cgroups.List()
	if err != nil {
		return err
	}
	for _, g := range list {
		if !slices.Contains(g.Boxes, id) {
			continue
		}
		if err := b.withGroups(g.Shard, func(sh *cgroup.Shard) error {
			bx, err := sh.OpenBox(id)
			if errors.Is(err, os.ErrNotExist) {
				return nil
			}
			if err != nil {
				return err
			}
			return bx.Remove(ctx)
		}); err != nil {
			return err
		}
	}
	return nil
}

// withGroups calls f with a shard's groups. Those of a shard that isn't known (yet) are opened as root's own; whoever
// takes the shard over gives them to its uid again.
func (b *Backend) withGroups(shard string, f func(*cgroup.Shard) error) error {
	b.mu.Lock()
	sh := b.shards[shard]
	b.mu.Unlock()
	if sh != nil {
		<-sh.started
		if sh.err == nil {
			return f(sh.groups)
		}
	}
	g, err := b.cfg.Cgroups.Shard(shard, 0)
	if err != nil {
		return err
	}
	return errors.Join(f(g), g.Close())
}
