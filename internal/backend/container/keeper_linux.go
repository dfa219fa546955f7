package container

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/aether/unixfd"
	"github.com/dsec-io/dsec/internal/keeper"
	"github.com/dsec-io/dsec/internal/linux/cgroup"
	"github.com/dsec-io/dsec/internal/linux/pidfd"
	"golang.org/x/sys/unix"
)

func (b *Backend) keeperSocket() string { return filepath.Join(b.cfg.RunDir, "keeper.sock") }

// connectKeeper connects to the instance's keeper, and starts it if there is none.
func (b *Backend) connectKeeper(ctx context.Context) error {
	client, err := keeper.Dial(ctx, b.keeperSocket())
	if err != nil {
		if client, err = b.startKeeper(ctx); err != nil {
			return err
		}
	}
	b.setKeeper(client)
	return nil
}

func (b *Backend) startKeeper(ctx context.Context) (*keeper.Client, error) {
	dir, err := b.cfg.Cgroups.Keeper()
	if err != nil {
		return nil, err
	}
	defer unix.Close(dir)
	empty := filepath.Join(b.cfg.RunDir, "empty")
	return keeper.Start(ctx, keeper.Config{
		Socket: b.keeperSocket(), EmptyDir: empty, Program: b.node.aether, Log: b.shardLog, CgroupDir: dir,
		Argv: []string{"dsec-aether", "keeper", "-name", b.cfg.InstanceID, "-empty", empty},
	})
}

func (b *Backend) setKeeper(c *keeper.Client) {
	b.mu.Lock()
	old := b.keeper
	b.keeper = c
	b.mu.Unlock()
	if old != nil {
		_ = old.Close()
	}
}

func (b *Backend) keeperClient() *keeper.Client {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.keeper
}

// watchKeeper starts a new keeper whenever the keeper dies, and gives it the shards that live.
func (b *Backend) watchKeeper(ctx context.Context) {
	pause := redialPause
	for {
		client := b.keeperClient()
		err := client.Watch(ctx, nil, func(e keeper.Event) {
			b.log.Warn("shard event", slog.String("shard", e.Name), slog.Int64("event", int64(e.Type)), slog.Int("pid", e.PID))
		})
		if ctx.Err() != nil {
			return
		}
		b.log.Error("keeper is lost", slog.Any("err", err))
		for {
			err := b.connectKeeper(ctx)
			if err == nil {
				break
			}
			b.log.Error("keeper can't be started", slog.Any("err", err))
			select {
			case <-ctx.Done():
				return
			case <-time.After(pause):
			}
			pause = min(2*pause, longestPause)
		}
		pause = redialPause
		b.readoptAll(ctx)
	}
}

// readoptAll gives a new keeper all shards. One that died together with the old keeper is started anew. What fails is
// tried again, because a shard may die at any moment of it, until this keeper is lost too.
func (b *Backend) readoptAll(ctx context.Context) {
	b.mu.Lock()
	var left []*shard
	for _, sh := range b.shards {
		left = append(left, sh)
	}
	b.mu.Unlock()
	for pause := redialPause; ; pause = min(2*pause, longestPause) {
		var failed []*shard
		for _, sh := range left {
			select {
			case <-sh.started:
			case <-ctx.Done():
				return
			case <-time.After(pause): // whoever starts it may be waiting for yet another keeper
				failed = append(failed, sh)
				continue
			}
			if sh.err != nil || sh.isEnded() {
				continue
			}
			if err := b.ensureProcess(ctx, sh); err != nil {
				b.log.Error("shard not given to the new keeper", slog.String("shard", sh.name), slog.Any("err", err))
				failed = append(failed, sh)
			}
		}
		if left = failed; len(left) == 0 {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		if _, err := b.keeperClient().List(); err != nil {
			return
		}
	}
}

// ensureProcess makes sure that the shard runs and that the keeper is its parent or has adopted it.
func (b *Backend) ensureProcess(ctx context.Context, sh *shard) error {
	list, err := b.keeperClient().List()
	if err != nil {
		return err
	}
	for _, k := range list {
		if k.Name == sh.name {
			return nil
		}
	}
	err = b.adoptProcess(ctx, sh)
	if errors.Is(err, errNoProcess) {
		return b.startProcess(sh)
	}
	return err
}

var errNoProcess = errors.New("shard doesn't run")

// spec is what the keeper has to know about a shard. The caller closes the listener.
func (b *Backend) shardSpec(sh *shard, listener int) *keeper.ShardSpec {
	d := sh.groups.Dirs()
	argv := []string{"dsec-aether", "shard", "-name", sh.name}
	if b.cfg.TestHooks {
		argv = append(argv, "-test-hooks")
	}
	return &keeper.ShardSpec{
		Name: sh.name, UID: int(sh.uid), Argv: argv,
		Listener: listener, Log: b.shardLog, Program: b.node.aether, SelfDir: sh.groups.Self(),
		CgroupV2: d.V2, CgroupMemory: d.Memory, CgroupCPU: d.CPU, CgroupPIDs: d.PIDs,
	}
}

// awaitProcess is ensureProcess for those who can wait for watchKeeper to start another keeper.
func (b *Backend) awaitProcess(ctx context.Context, sh *shard) error {
	for {
		err := b.ensureProcess(ctx, sh)
		if err == nil || !errors.Is(err, keeper.ErrLost) {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, context.Cause(ctx))
		case <-time.After(redialPause):
		}
	}
}

// startProcess has the keeper start the shard on a new socket.
func (b *Backend) startProcess(sh *shard) error {
	if err := b.cfg.Faults.At("shard:process"); err != nil {
		return err
	}
	if err := unlink(sh.socket()); err != nil {
		return err
	}
	l, err := unixfd.Listen(sh.socket(), 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }() // the keeper has its copy, or none is needed
	_, err = b.keeperClient().Start(b.shardSpec(sh, l.FD()))
	return err
}

// stopProcess ends the shard's process.
func (b *Backend) stopProcess(sh *shard) error {
	return errors.Join(b.keeperClient().Stop(sh.name), unlink(sh.socket()))
}

// adoptProcess gives a shard that lives to a keeper that didn't start it: a copy of its listening socket, which only it
// still has, and a new connection between the two.
func (b *Backend) adoptProcess(ctx context.Context, sh *shard) error {
	pid, err := onlyProcess(sh.groups)
	if err != nil {
		return err
	}
	fd, err := pidfd.Open(pid)
	if errors.Is(err, unix.ESRCH) {
		return errNoProcess
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	// Before the listener is copied: with the copy open nobody would be told of the death of a shard that hasn't answered.
	conn, err := b.callConn(ctx, sh)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	listener, err := pidfd.Take(fd, keeper.FDListener)
	if errors.Is(err, unix.ESRCH) {
		return errNoProcess
	}
	if err != nil {
		return err
	}
	defer unix.Close(listener)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("make socket pair: %w", err)
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	if _, err := b.keeperClient().Adopt(b.shardSpec(sh, listener), fd, pair[0]); err != nil {
		return err
	}
	// After the keeper has its end: what the shard puts at once then finds a reader.
	if _, err := aether.Unary(ctx, conn, aether.Open{Method: "keeper", FDs: []int{pair[1]}}); err != nil {
		return fmt.Errorf("give %s its new keeper: %w", sh.name, err)
	}
	b.log.Info("shard given to the new keeper", slog.String("shard", sh.name), slog.Int("pid", pid))
	return nil
}

// callConn makes a connection for one call: the shard's own may not be up yet.
func (b *Backend) callConn(ctx context.Context, sh *shard) (*aether.Conn, error) {
	raw, err := unixfd.Dial(ctx, sh.socket(), unixfd.Options{})
	if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ENOENT) {
		return nil, errNoProcess
	}
	if err != nil {
		return nil, err
	}
	return aether.Client(raw, aether.Options{Name: "edge"})
}

// onlyProcess reads which process lives in the shard's own group. The shard can't move there what isn't its child.
func onlyProcess(g *cgroup.Shard) (int, error) {
	fd, err := unix.Openat(g.Self(), "cgroup.procs", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("look for the shard's process: %w", err)
	}
	f := os.NewFile(uintptr(fd), "cgroup.procs")
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, 64<<10))
	if err != nil {
		return 0, fmt.Errorf("look for the shard's process: %w", err)
	}
	pids := bytes.Fields(text)
	if len(pids) == 0 {
		return 0, errNoProcess
	}
	// The oldest: helpers that are being born have higher numbers, but for a wrap, and go within microseconds.
	return strconv.Atoi(string(pids[0]))
}

// removeLeftShards ends shards that an earlier process of this instance left and that no sandbox here needs.
func (b *Backend) removeLeftShards(ctx context.Context) error {
	client := b.keeperClient()
	list, err := client.List()
	if err != nil {
		return err
	}
	known := func(name string) bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.shards[name] != nil
	}
	for _, k := range list {
		if !known(k.Name) {
			err = errors.Join(err, client.Stop(k.Name))
		}
	}
	groups, lerr := b.cfg.Cgroups.List()
	err = errors.Join(err, lerr)
	for _, g := range groups {
		if known(g.Shard) {
			continue
		}
		err = errors.Join(err, b.withGroups(g.Shard, func(sh *cgroup.Shard) error { return sh.Remove(ctx) }))
	}
	return err
}

// removeAll ends keeper and shards, when the last sandbox has gone, and removes the instance's groups and sockets.
func (b *Backend) removeAll(ctx context.Context) error {
	err := cgroup.RemoveAll(ctx, b.cfg.InstanceID)
	socks, gerr := filepath.Glob(filepath.Join(b.cfg.RunDir, "*.sock"))
	err = errors.Join(err, gerr)
	for _, s := range socks {
		if base := filepath.Base(s); base == "keeper.sock" || isShardSocket(base) {
			err = errors.Join(err, unlink(s))
		}
	}
	return err
}

func isShardSocket(base string) bool {
	var n int
	_, err := fmt.Sscanf(base, "s%d.sock", &n)
	return err == nil
}

// dup copies a file's descriptor out of Go's hands.
func dup(f *os.File) (int, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("copy descriptor: %w", err)
	}
	return fd, nil
}
