package keeper

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/internal/spawn"
)

// Config says how a keeper is started.
type Config struct {
	Socket    string // path of its socket, below 100 bytes, in a folder of mode 0700
	EmptyDir  string // becomes the shards' root; made if need be
	Program   int    // sealed memfd of dsec-aether
	Log       int    // its stdout and stderr; -1: none
	CgroupDir int    // cgroup v2 directory it is born into; -1: the caller's
	Argv      []string
}

// emptyMode lets a shard look at its root and do nothing else.
const emptyMode = 0o555

// Start starts a keeper that outlives the caller (own session, no parent in the caller's tree) and connects to it. The
// descriptors stay the caller's.
func Start(ctx context.Context, cfg Config) (*Client, error) {
	if err := os.Mkdir(cfg.EmptyDir, emptyMode); err != nil && !os.IsExist(err) {
		return nil, fmt.Errorf("make the shards' root: %w", err)
	}
	listener, err := listen(cfg.Socket)
	if err != nil {
		return nil, err
	}
	err = launch(cfg, listener)
	// From here on the socket lives as long as the keeper: if that fails, connecting fails instead of waiting.
	_ = unix.Close(listener)
	if err != nil {
		return nil, fmt.Errorf("start keeper: %w", err)
	}
	return Dial(ctx, cfg.Socket)
}

// listen makes the keeper's socket in place of a dead one's.
func listen(path string) (int, error) {
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return -1, fmt.Errorf("remove the old keeper socket: %w", err)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("make keeper socket: %w", err)
	}
	err = unix.Bind(fd, &unix.SockaddrUnix{Name: path})
	if err == nil {
		err = unix.Listen(fd, 16)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("listen on %s: %w", path, err)
	}
	return fd, nil
}

func launch(cfg Config, listener int) error {
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open /dev/null: %w", err)
	}
	defer func() { _ = unix.Close(null) }()
	if cfg.Log < 0 {
		cfg.Log = null
	}
	var k spawn.Script
	k.Call(unix.SYS_SETSID).As("setsid")
	program := place(&k, []placement{{null, 0}, {cfg.Log, 1}, {cfg.Log, 2}, {listener, fdListener}}, cfg.Program)
	k.Call(unix.SYS_CHDIR, k.String("/")).As("chdir")
	exec(&k, program, cfg.Argv)
	// The process in between exits, so the keeper is nobody's child here: nothing that happens to the caller reaches it.
	var x spawn.Script
	x.Clone(0, &k).As("clone")
	x.Exit()
	out, err := spawn.Run(spawn.Attr{Cgroup: cfg.CgroupDir}, &x)
	if err != nil {
		return err
	}
	_, _ = spawn.Wait(out.PID)
	if out.Failed != nil {
		return out.Failed
	}
	return nil
}
