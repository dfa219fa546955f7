package devmode

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/apiserver"
	"github.com/dsec-io/dsec/internal/backend/container"
	"github.com/dsec-io/dsec/internal/edge"
	"github.com/dsec-io/dsec/internal/edge/admission"
	"github.com/dsec-io/dsec/internal/iam"
	"github.com/dsec-io/dsec/internal/iam/audit"
	"github.com/dsec-io/dsec/internal/idrange"
	"github.com/dsec-io/dsec/internal/image"
	"github.com/dsec-io/dsec/internal/linux/cgroup"
	"github.com/dsec-io/dsec/internal/linux/limits"
	"github.com/dsec-io/dsec/internal/state"
)

const (
	// stopTime bounds the end of all sandboxes, closeTime that of everything else.
	stopTime  = 60 * time.Second
	closeTime = 20 * time.Second
)

var (
	errEnded = errors.New("the instance was told to end")
	errQuit  = errors.New("a part of the instance has quit")
)

// undo is what has to be taken down, newest last.
type undo []func(context.Context) error

// home is the number of the one edge.
const home = 0

func (u *undo) push(f func(context.Context) error) { *u = append(*u, f) }

func (u *undo) run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime+closeTime)
	defer cancel()
	var err error
	for _, f := range slices.Backward(*u) {
		err = errors.Join(err, f(ctx))
	}
	return err
}

// Run serves until ctx ends, then stops the sandboxes (unless Keep) and everything it started, and returns nil. Any
// other return is why it couldn't start, go on or take down everything.
func Run(ctx context.Context, cfg Config) (err error) {
	cfg, err = cfg.withDefaults()
	if err != nil {
		return err
	}
	in := &instance{cfg: cfg, reg: prometheus.NewRegistry(), failed: make(chan error, 1)}
	defer func() { err = errors.Join(err, in.down.run(ctx)) }()

	if in.dir, err = edge.OpenInstance(cfg.DataDir); err != nil {
		return err
	}
	in.down.push(func(context.Context) error { return in.dir.Close() })
	// What others may have comes first: a port that is taken must not cost a sandbox.
	ln, err := listen(ctx, cfg.Listen)
	if err != nil {
		return err
	}
	in.down.push(func(context.Context) error { return closeListener(ln) })
	in.reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if err := in.startEdge(ctx); err != nil {
		return err
	}
	file, err := in.startAPI(ctx, ln)
	if err != nil {
		return err
	}
	if err := announce(cfg, file); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-in.failed:
		return err
	}
}

func listen(ctx context.Context, addr string) (net.Listener, error) {
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, api.FieldError(api.CodeConflict, "--listen", "where another program has the address, maybe another DSec, choose one with --listen HOST:PORT", "%v", err)
	}
	return ln, nil
}

// closeListener closes a listener that a server may have closed before.
func closeListener(ln net.Listener) error {
	if err := ln.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// instance is what has been started so far.
type instance struct {
	cfg    Config
	dir    *edge.Instance
	down   undo
	reg    *prometheus.Registry
	edge   atomic.Pointer[edge.Edge]
	failed chan error // holds the first reason for which a part has quit by itself
}

// start runs a part of the instance. It doesn't end with ctx, since the parts are ended in order; one that quits by
// itself ends the whole.
func (in *instance) start(ctx context.Context, name string, run func(context.Context) error) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	done := make(chan error, 1) // its result
	go func() {
		err := run(ctx)
		if ctx.Err() == nil {
			select {
			case in.failed <- fmt.Errorf("%w: %s", errQuit, name):
			default: // one reason is enough
			}
		}
		done <- err
	}()
	in.down.push(func(context.Context) error {
		cancel(errEnded)
		return <-done
	})
}

// startEdge opens what the edge is made of, from the kernel up, and starts it.
func (in *instance) startEdge(ctx context.Context) error {
	// First of all: what is started from here inherits the limit of open files.
	kernel, err := limits.Raise(in.cfg.Logger)
	if err != nil {
		return err
	}
	ids, err := idrange.Open(ctx, idrange.Config{File: in.cfg.IDRanges, Instance: in.dir.ID, DataDir: in.dir.DataDir})
	if err != nil {
		return err
	}
	groups, err := cgroup.Open(in.dir.ID)
	if err != nil {
		return err
	}
	in.down.push(func(context.Context) error { return groups.Close() })
	own := filepath.Join(in.dir.DataDir, "images")
	store := image.NewStore(in.cfg.Logger, own, in.cfg.ImageStore)
	backend, err := container.New(ctx, container.Config{
		InstanceID: in.dir.ID, DataDir: in.dir.DataDir, RunDir: in.dir.RunDir, Images: store, IDs: ids, Cgroups: groups,
		Logger: in.cfg.Logger, PoolSize: max(in.cfg.PoolSize, 0), Notify: in.notice, Aether: in.cfg.aether, TestHooks: in.cfg.TestHooks,
		Faults: in.cfg.TestFaults, OrphanLimit: in.cfg.Orphans, Spare: in.spare,
		NewID: func() string { return edge.NewID(home) },
	})
	if err != nil {
		return err
	}
	images, err := in.openImages(own, store, backend.ForgetImage)
	if err != nil {
		in.down.push(backend.Close)
		return err
	}
	e, err := edge.New(ctx, edge.Config{
		Instance: in.dir, Backend: backend, Images: images, Logger: in.cfg.Logger, Metrics: in.reg, Capacity: in.cfg.Capacity, Home: home, Limits: kernel,
		Clock: func() time.Time { return time.Now().Add(in.cfg.TestClock) }, Faults: in.cfg.TestFaults,
		Image: func(ctx context.Context, name string) (edge.ImageConfig, error) { return imageConfig(ctx, store, name) },
	})
	if err != nil {
		in.down.push(backend.Close)
		return err
	}
	in.edge.Store(e)
	in.down.push(func(ctx context.Context) error { return in.closeEdge(ctx, e) })
	in.start(ctx, "edge", e.Run)
	if !in.cfg.Keep {
		in.down.push(func(ctx context.Context) error { return in.stopSandboxes(ctx, e) })
	}
	select { // who is told that we are ready may come at once
	case <-e.Listening():
		return nil
	case err := <-in.failed:
		return err
	}
}

// notice passes on what the backend says of a sandbox. While the edge is being made there is only the log.
func (in *instance) notice(sandbox string, n container.Notice, data map[string]any) {
	level := slog.LevelWarn
	if data != nil { // what its tenant did
		level = slog.LevelInfo
	}
	in.cfg.Logger.Log(context.Background(), level, "notice of a sandbox", slog.String("sandbox", sandbox), slog.String("what", string(n)), slog.Any("data", data))
	if e := in.edge.Load(); e != nil {
		e.Note(sandbox, string(n), data)
	}
}

// spare tells whether the machine has memory for sandboxes that nobody has asked for yet.
func (in *instance) spare() bool {
	m, err := admission.ReadMemory()
	return err == nil && in.cfg.Capacity.Spare(m)
}

func imageConfig(ctx context.Context, store *image.Store, name string) (edge.ImageConfig, error) {
	im, err := store.Open(ctx, name)
	if err != nil {
		return edge.ImageConfig{}, err
	}
	c := im.Config()
	return edge.ImageConfig{
		Env: c.Env, User: c.User, Workdir: c.WorkDir, Hostname: c.Hostname, Digest: c.Digest, Entrypoint: c.Entrypoint, Cmd: c.Cmd,
	}, im.Close()
}

func (in *instance) stopSandboxes(ctx context.Context, e *edge.Edge) error {
	ctx, cancel := context.WithTimeoutCause(ctx, stopTime, errors.New("the sandboxes took too long to stop"))
	defer cancel()
	return e.StopAll(ctx, func(done, total int) {
		in.cfg.Logger.Info("sandbox stopped", slog.Int("done", done), slog.Int("of", total))
	})
}

// closeEdge closes the edge; where no sandbox is left, keeper and shards end with it.
func (in *instance) closeEdge(ctx context.Context, e *edge.Edge) error {
	err := e.Close(ctx)
	if err == nil && !in.cfg.Keep && filepath.Dir(in.dir.RunDir) != in.dir.DataDir {
		err = os.RemoveAll(in.dir.RunDir) // away from the data folder: sockets, and a log of what is gone
	}
	return err
}

// startAPI starts the API server and says where it is.
func (in *instance) startAPI(ctx context.Context, ln net.Listener) (ContextFile, error) {
	file := ContextFile{Endpoint: endpoint(ln.Addr()), Path: filepath.Join(in.dir.DataDir, contextName)}
	tokens := filepath.Join(in.dir.DataDir, tokensName)
	var err error
	if file.Token, err = iam.EnsureToken(tokens, oldToken(file.Path)); err != nil {
		return file, err
	}
	authority, log, err := in.startIAM(tokens)
	if err != nil {
		return file, err
	}
	srv, err := apiserver.New(apiserver.Config{
		EdgeSocket: in.dir.Socket(edge.SocketName), Authority: authority, Audit: log, Listen: ln.Addr().String(), Hosts: in.cfg.Hosts,
		Registry: in.reg, Logger: in.cfg.Logger,
	})
	if err != nil {
		return file, err
	}
	in.start(ctx, "API server", func(ctx context.Context) error { return apiserver.Serve(ctx, ln, srv) })
	return file, nil
}

// startIAM makes what knows who may do what. The store beneath it is opened when it's first needed: not by this.
func (in *instance) startIAM(tokens string) (*iam.Authority, *audit.Log, error) {
	boot, err := iam.ReadBootstrap(tokens)
	if err != nil {
		return nil, nil, err
	}
	store := state.New(state.Config{
		DataDir: filepath.Join(in.dir.DataDir, "etcd"), SocketDir: in.dir.Socket("etcd"), Logger: in.cfg.Logger,
	})
	in.down.push(func(context.Context) error { return store.Close() })
	log, err := audit.Open(audit.Config{Dir: filepath.Join(in.dir.DataDir, "audit"), Logger: in.cfg.Logger})
	if err != nil {
		return nil, nil, err
	}
	in.down.push(func(context.Context) error { return log.Close() })
	authority, err := iam.New(iam.Config{Store: store, Bootstrap: boot, Logger: in.cfg.Logger})
	if err != nil {
		return nil, nil, err
	}
	in.down.push(func(context.Context) error { return authority.Close() })
	return authority, log, nil
}

// announce tells clients and whoever started this process that it serves.
func announce(cfg Config, file ContextFile) error {
	if err := file.write(); err != nil {
		return err
	}
	if cfg.OnReady != nil {
		cfg.OnReady(file)
	}
	if cfg.Ready != nil {
		if _, err := fmt.Fprintf(cfg.Ready, "ready %s\n", file.Endpoint); err != nil {
			return fmt.Errorf("say ready: %w", err)
		}
	}
	return nil
}
