package files

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/chronus/launch"
	"github.com/dsec-io/dsec/internal/spawn"
)

// Bounds on watching. They are apart from the turns of other streams, because a watch lasts.
const (
	maxWatches    = 256     // of a shard
	maxBoxWatches = 32      // of one sandbox
	maxWatched    = 1 << 16 // directories of a shard, which remembers each

	lookTime  = 5 * time.Second  // how often a silent watch looks whether its path still leads to what it watches
	flushTime = 10 * time.Second // for a client to take the last events
)

// watches counts a shard's watches.
type watches struct {
	mu          sync.Mutex
	all         int
	boxes       map[Place]int
	directories int
}

// take makes room for one more watch.
func (w *watches) take(p Place) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all >= maxWatches || w.boxes[p] >= maxBoxWatches {
		e := api.Errorf(api.CodeTooMany, "%d watches of the sandbox and %d of its neighbours are at work", w.boxes[p], w.all-w.boxes[p])
		e.Hint = "end others first: a sandbox may have 32; one recursive watch does for a whole tree"
		return e
	}
	w.all++
	w.boxes[p]++
	return nil
}

// give gives the room back.
func (w *watches) give(p Place) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all--
	if w.boxes[p]--; w.boxes[p] == 0 {
		delete(w.boxes, p)
	}
}

// count adds n directories.
func (w *watches) count(n int) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n > 0 && w.directories+n > maxWatched {
		return tooManyDirectories()
	}
	w.directories += n
	return nil
}

func tooManyDirectories() error {
	return api.FieldError(api.CodeQuota, "path", "watch a smaller tree, or single directories without recursive", "too many directories are being watched")
}

// errGone ends a watch whose path doesn't lead to what it watches any more.
var errGone = errors.New("what is watched has gone")

// errStopped ends a watch that nobody listens to any more.
var errStopped = errors.New("the watch was stopped")

// watcher is one watch: an inotify descriptor that was made, and is added to, by helpers in the sandbox, so that paths,
// permissions and limits are those of its user.
type watcher struct {
	v     *visitor
	file  *os.File
	fd    int
	in    inbox
	out   outbox
	tree  tree
	ready bool

	// mu guards stopped, and the file's deadline together with it.
	mu      sync.Mutex
	stopped bool
}

// watch sends what happens to a file or directory until it has gone, the sandbox ends, or the client leaves.
func (v *visitor) watch(ctx context.Context, st *aether.Stream) error {
	if err := v.watches.take(v.place); err != nil {
		return err
	}
	defer v.watches.give(v.place)
	w := &watcher{v: v, out: outbox{wake: make(chan struct{}, 1)}} // one token is enough: the sender takes everything
	if err := w.open(); err != nil {
		return err
	}
	defer w.close()
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(errStopped)
	wg.Go(func() {
		select {
		case <-ctx.Done():
		case <-st.Done():
		case <-v.place.Ended():
		}
		w.stop()
	})
	switch err := w.reason(w.begin()); {
	case errors.Is(err, errStopped):
		return nil
	case errors.Is(err, errGone):
		return fault("watch", v.req.Path, unix.ENOENT)
	case err != nil:
		return err
	}
	sent := make(chan error, 1) // one result
	wg.Go(func() {
		err := w.out.send(ctx, st)
		w.stop()
		sent <- err
	})
	w.out.last(w.final(w.run()))
	limit := time.AfterFunc(flushTime, func() { cancel(errStopped) })
	defer limit.Stop()
	if err := <-sent; err != nil {
		return nil //nolint:nilerr // the client has left, or takes nothing: there is nobody to tell
	}
	if err := st.CloseWrite(aether.Stdout); err != nil {
		return err
	}
	return st.Close()
}

// open makes the inotify descriptor, which counts for the sandbox's user.
func (w *watcher) open() error {
	var step *spawn.Step
	fd := -1
	err := w.v.visit(func(h *spawn.Script) {
		step = h.Call(unix.SYS_INOTIFY_INIT1, unix.IN_CLOEXEC|unix.IN_NONBLOCK).Ignore()
	}, func() { fd = launch.Opened(step) })
	if err == nil && step.Errno() != 0 {
		err = fault("watch", w.v.req.Path, step.Errno())
		if errors.Is(step.Errno(), unix.EMFILE) {
			err = api.FieldError(api.CodeQuota, "path", "end a program or a watch that uses inotify", "the sandbox's user has as many inotify instances as user.max_inotify_instances allows")
		}
	}
	if err != nil {
		closeFD(fd)
		return err
	}
	w.fd, w.file = fd, os.NewFile(uintptr(fd), "inotify") // in the poller, as it doesn't block
	return nil
}

func (w *watcher) close() {
	_ = w.file.Close() // there is nothing to lose
	_ = w.v.watches.count(-w.tree.counted)
}

// begin watches what is there. Nothing was told before.
func (w *watcher) begin() error {
	w.tree = tree{byWD: map[int32]*node{}, prefix: trimSlashes(w.v.req.Path)}
	w.tree.root = &node{}
	if err := w.count(1); err != nil {
		return err
	}
	if err := w.addRoot(); err != nil {
		return err
	}
	if w.tree.dir && w.v.req.Recursive {
		if err := w.scan(w.tree.root); err != nil {
			return err
		}
	}
	e := api.FileEvent{Type: api.FileReady, Dir: w.tree.dir}
	if w.tree.dir {
		e.Directories = len(w.tree.byWD)
	}
	w.tell(&e, w.tree.root, "")
	w.ready = true
	return w.tree.each(func(n *node) error {
		if n.skipped != "" {
			w.tell(&api.FileEvent{Type: api.FileSkipped, Dir: true, Reason: n.skipped}, n, "")
		}
		return nil
	})
}

// run tells what happens until the watch ends, which always has an error.
func (w *watcher) run() error {
	for {
		e, err := w.next(time.Now().Add(lookTime))
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = w.look()
		} else if err == nil {
			err = w.handle(&e)
		}
		if err != nil {
			return w.reason(err)
		}
	}
}

// reason is why the watch really ended: a helper fails when the sandbox ends, too.
func (w *watcher) reason(err error) error {
	if err == nil {
		return nil
	}
	select {
	case <-w.v.place.Ended():
		return api.Errorf(api.CodeSandboxDied, "the sandbox has ended")
	default:
		return err
	}
}

// final is the last event.
func (w *watcher) final(err error) []byte {
	e := api.FileEvent{Type: api.FileGone}
	if !errors.Is(err, errGone) {
		e = api.FileEvent{Type: api.FileWatchError, Error: api.AsError(err)}
	}
	return w.line(&e, w.tree.root, "")
}

// stop makes reading end.
func (w *watcher) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
	_ = w.file.SetReadDeadline(time.Unix(1, 0)) // a file that is closed isn't read
}

// readUntil sets how long the next read waits.
func (w *watcher) readUntil(t time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped {
		return errStopped
	}
	return w.file.SetReadDeadline(t)
}

// alive says whether anybody listens.
func (w *watcher) alive() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped {
		return errStopped
	}
	return nil
}

// count counts n more directories of this watch, or fewer.
func (w *watcher) count(n int) error {
	err := w.v.watches.count(n)
	if err == nil {
		w.tree.counted += n
	}
	return err
}

// tell sends an event about the file of this name in n, or about n itself.
func (w *watcher) tell(e *api.FileEvent, n *node, name string) { w.out.add(w.line(e, n, name)) }

func (w *watcher) line(e *api.FileEvent, n *node, name string) []byte {
	e.SetPath(w.tree.path(n, name))
	line, err := json.Marshal(e)
	if err != nil {
		return nil // a struct of plain fields always encodes
	}
	return append(line, '\n')
}

// outbox is what was told and not sent. Its size is bounded: a client that doesn't take what happens loses some of it,
// and is told so, while the watch itself never waits.
type outbox struct {
	wake chan struct{}

	// mu guards the fields below.
	mu     sync.Mutex
	lines  []byte
	lost   bool // lines were dropped since the last ones were taken
	closed bool
}

const maxOutbox = 128 << 10

func (o *outbox) add(line []byte) {
	o.mu.Lock()
	if o.lost || len(o.lines)+len(line) > maxOutbox {
		o.lost = true
	} else {
		o.lines = append(o.lines, line...)
	}
	o.mu.Unlock()
	o.signal()
}

// lose says that events were lost before they came here.
func (o *outbox) lose() {
	o.mu.Lock()
	o.lost = true
	if len(o.lines) < maxOutbox {
		o.lines = o.overflownLocked() // at its place
	}
	o.mu.Unlock()
	o.signal()
}

// last adds the line that ends the stream.
func (o *outbox) last(line []byte) {
	o.mu.Lock()
	o.lines = append(o.overflownLocked(), line...)
	o.closed = true
	o.mu.Unlock()
	o.signal()
}

// overflownLocked is what there is to send, with the loss of what followed.
func (o *outbox) overflownLocked() []byte {
	if o.lost {
		o.lost = false
		return append(o.lines, `{"type":"`+api.FileOverflow+"\"}\n"...)
	}
	return o.lines
}

func (o *outbox) signal() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// take hands over what there is to send, and keeps spare's memory for what comes.
func (o *outbox) take(spare []byte) (lines []byte, last bool) {
	const keep = 8 << 10
	if cap(spare) > keep {
		spare = nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	lines = o.overflownLocked()
	o.lines = spare[:0]
	return lines, o.closed
}

// send sends lines until the last one.
func (o *outbox) send(ctx context.Context, st *aether.Stream) error {
	var lines []byte
	for last := false; !last; {
		select {
		case <-o.wake:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		lines, last = o.take(lines)
		if len(lines) == 0 {
			continue
		}
		if err := st.Write(ctx, aether.Stdout, lines); err != nil {
			return err
		}
	}
	return nil
}
