package chronus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/aether/unixfd"
	"github.com/dsec-io/dsec/internal/chronus/disturb"
	"github.com/dsec-io/dsec/internal/chronus/files"
	"github.com/dsec-io/dsec/internal/chronus/launch"
	"github.com/dsec-io/dsec/internal/chronus/orphan"
	"github.com/dsec-io/dsec/internal/chronus/ports"
	"github.com/dsec-io/dsec/internal/keeper"
	"github.com/dsec-io/dsec/internal/linux/cgroup"
)

// Options of a shard.
type Options struct {
	Name      string // for peers and logs
	Logger    *slog.Logger
	TestHooks bool // methods by which tests disturb the shard
}

// maxBoxes is the most boxes of one shard.
const maxBoxes = 256

// Shard runs the commands of its boxes.
type Shard struct {
	opts     Options
	log      *slog.Logger
	dirs     cgroup.Dirs
	launcher *launch.Launcher
	files    *files.Server
	ports    *ports.Server
	outputs  sync.Pool // *[2][]byte: what short commands have written
	chunks   sync.Pool // *[]byte
	sweeps   chan struct{}
	stores   chan *keeper.Store // new keepers, for serve to listen to
	hooks    disturb.Hooks
	budget   int64        // descriptors of processes that the keeper takes
	kept     atomic.Int64 // and those it has

	edges *orphan.Watch

	// mu guards what follows.
	mu    sync.Mutex
	boxes map[string]*box
	store *keeper.Store
}

// Main is a shard's whole life in a process that a keeper has started: it takes over what the shard before it had, and
// serves until ctx is done. Its boxes go on after that.
func Main(ctx context.Context, opts Options) error {
	if err := launch.PrepareProcess(); err != nil {
		return err
	}
	store, err := keeper.OpenStore(keeper.FDStore, launch.LowFDs)
	if err != nil {
		return err
	}
	s := &Shard{
		opts: opts, log: opts.Logger, store: store,
		dirs: cgroup.Dirs{
			V2:     launch.Directory(keeper.FDCgroupV2),
			Memory: launch.Directory(keeper.FDCgroupMemory),
			CPU:    launch.Directory(keeper.FDCgroupCPU),
			PIDs:   launch.Directory(keeper.FDCgroupPIDs),
		},
		outputs: sync.Pool{New: func() any { return new([2][]byte) }},
		chunks:  sync.Pool{New: func() any { b := make([]byte, followChunk); return &b }},
		sweeps:  make(chan struct{}, 1), // one pending notice is enough
		stores:  make(chan *keeper.Store),
		boxes:   make(map[string]*box),
		hooks:   disturb.Hooks{On: opts.TestHooks},
		budget:  int64(keeper.Budget() - 3*maxBoxes), // boxes and large sessions need some too
	}
	if s.dirs.V2 < 0 {
		return errors.New("no cgroup v2 directory")
	}
	if s.launcher, err = launch.New(s.dirs); err != nil {
		return err
	}
	s.files, s.ports = files.New(s.launcher), ports.New(s.launcher)
	items, err := store.Items()
	if err != nil {
		return err
	}
	s.takeOver(items)
	return s.serve(ctx)
}

// serve runs the shard until ctx is done.
func (s *Shard) serve(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(context.Canceled)
	defer s.hooks.Stop()
	wg.Go(func() { s.hearKeepers(ctx, s.keeper()) })
	wg.Go(func() { s.janitor(ctx) })
	l, err := unixfd.NewListener(keeper.FDListener)
	if err != nil {
		return fmt.Errorf("listener: %w", err)
	}
	for {
		conn, err := l.Accept(ctx, unixfd.Options{MaxFDs: maxWaitingFDs, MinFD: launch.LowFDs})
		if err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			s.log.Warn("accept", slog.Any("err", err))
			select { // out of descriptors: some will be given back
			case <-time.After(10 * time.Millisecond):
			case <-ctx.Done():
			}
			continue
		}
		wg.Go(func() { s.serveConn(ctx, conn) })
	}
}

// maxWaitingFDs is how many descriptors a connection may have sent ahead: sandboxes that are added at once come in one
// write, each with its own.
const maxWaitingFDs = 128

// maxStreams is one connection's: the edge waits for each kept process with a stream of its own.
const maxStreams = 65_536

func (s *Shard) serveConn(ctx context.Context, t *unixfd.Conn) {
	conn, err := aether.Server(t, aether.Options{
		Name: "aether " + s.opts.Name, MaxData: aether.MaxDataAether, MaxStreams: maxStreams,
		Panic: func(v any, stack []byte) {
			s.log.Error("panic", slog.Any("value", v), slog.String("stack", string(stack)))
		},
	})
	if err != nil {
		s.log.Warn("hello", slog.Any("err", err))
		return
	}
	defer s.edges.Connected()()
	_ = conn.Serve(ctx, s.handle) // its end is the peer's affair
}

// handle serves one stream.
func (s *Shard) handle(ctx context.Context, st *aether.Stream) {
	open := st.Open()
	var err error
	switch open.Method {
	case "file.read", "file.write", "file.list", "file.op", "file.tar", "file.untar", "file.watch", "port.dial":
		err = s.serveFile(ctx, st)
	case "exec":
		err = s.serveExec(ctx, st)
	case "attach":
		err = s.serveAttach(ctx, st)
	case "wait":
		err = s.serveWait(ctx, st)
	case "box.pause":
		err = s.servePause(ctx, st)
	default:
		var body []byte
		if body, err = s.unary(ctx, &open, st.TakeFDs()); err == nil {
			err = st.Reply(ctx, body)
		}
		if err == nil && open.Method == "add" {
			s.readAhead(st) // whoever added it needn't wait
		}
	}
	if err == nil {
		return
	}
	e := api.AsError(err)
	e.RequestID = open.RequestID
	if e.Code == api.CodeInternal {
		s.log.Error("request", slog.String("method", open.Method), slog.String("sandbox", open.Sandbox), slog.String("request", open.RequestID), slog.Any("err", err))
	}
	st.Reset(e)
}

// box finds a box.
func (s *Shard) box(name string) (*box, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := s.boxes[name]; b != nil {
		return b, nil
	}
	return nil, api.Errorf(api.CodeNotFound, "no sandbox %q here", launch.Shorten([]byte(name)))
}

func (s *Shard) boxNames() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := make([]string, 0, len(s.boxes))
	for name := range s.boxes {
		names = append(names, name)
	}
	return names
}

// addBox is method "add". Adding a box that is there is no error: an edge that has lost the answer asks again, and one
// that has changed the sandbox's limits, or has given it away, tells what is new.
func (s *Shard) addBox(body []byte, fds []int) error {
	closeAll := func() {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
	}
	var spec aether.AddBox
	if err := spec.Unmarshal(body); err != nil || len(fds) != 1 || spec.Name == "" {
		closeAll()
		return api.Errorf(api.CodeInvalid, "add box %q with %d descriptors: %v", spec.Name, len(fds), err)
	}
	b := newBox(s, &spec, fds[0])
	s.mu.Lock()
	if old := s.boxes[spec.Name]; old != nil || len(s.boxes) >= maxBoxes {
		s.mu.Unlock()
		closeAll()
		if old == nil {
			return api.Errorf(api.CodeNoCapacity, "this shard has %d boxes", maxBoxes)
		}
		old.update(&spec)
		return nil
	}
	s.boxes[spec.Name] = b
	s.mu.Unlock()
	s.putBox(b)
	if spec.Fresh {
		b.accounts.Expect()
	}
	return nil
}

// putBox gives the keeper a box as it is now.
func (s *Shard) putBox(b *box) {
	_ = b.use(func() error { // gone: nothing to keep
		s.putPinned(b)
		return nil
	})
}

// putPinned is putBox for who uses the box already.
func (s *Shard) putPinned(b *box) {
	if err := s.keeper().Put(b.item()); err != nil {
		s.log.Warn("box not kept", slog.String("sandbox", b.Name), slog.Any("err", err))
	}
}

// removeBox is method "remove".
func (s *Shard) removeBox(name string) error {
	s.mu.Lock()
	b := s.boxes[name]
	delete(s.boxes, name)
	s.mu.Unlock()
	if b != nil {
		b.close()
	}
	return nil
}

// Intervals of the janitor.
const (
	sweepEvery = 2 * time.Second
	recordLife = 10 * time.Minute // how long the record of an ended process is kept, in the sandbox's time
)

// sweepSoon asks the janitor to look now.
func (s *Shard) sweepSoon() {
	select {
	case s.sweeps <- struct{}{}:
	default: // it will look anyway
	}
}

// janitor forgets expired records and removes cgroups that have become empty.
func (s *Shard) janitor(ctx context.Context) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.sweeps:
		case <-tick.C:
		}
		s.sweep()
	}
}

// sweep is one round of the janitor.
func (s *Shard) sweep() {
	s.mu.Lock()
	boxes := make([]*box, 0, len(s.boxes))
	for _, b := range s.boxes {
		boxes = append(boxes, b)
	}
	s.mu.Unlock()
	s.endOrphans(boxes)
	for _, b := range boxes {
		b.sweep()
		for _, p := range b.expired() {
			p.forget()
		}
	}
	s.makeRoom(boxes)
	s.launcher.Rest()
}

// makeRoom forgets the processes that ended first when the keeper's room gets short.
func (s *Shard) makeRoom(boxes []*box) {
	if s.kept.Load() < s.budget*3/4 {
		return
	}
	var ended []*process
	for _, b := range boxes {
		b.mu.Lock()
		for _, p := range b.procs {
			if p.over() {
				ended = append(ended, p)
			}
		}
		b.mu.Unlock()
	}
	sortByEnd(ended)
	for _, p := range ended {
		if s.kept.Load() < s.budget/2 {
			return
		}
		p.forget()
	}
}

// over tells whether nothing more will happen to p, and its record may go.
func (p *process) over() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.files && !p.meta.Log && len(p.followers) == 0
}

// expired lists the processes whose record isn't to be kept any longer.
func (b *box) expired() []*process {
	now := b.gate.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	var out, ended []*process
	for _, p := range b.procs {
		over := p.over()
		p.mu.Lock()
		drop, at := p.drop, time.Duration(p.meta.Over)
		p.mu.Unlock()
		switch {
		case !over:
		case drop, now-at >= recordLife:
			out = append(out, p)
		default:
			ended = append(ended, p)
		}
	}
	if n := len(ended) - maxEnded; n > 0 {
		sortByEnd(ended)
		out = append(out, ended[:n]...)
	}
	return out
}
