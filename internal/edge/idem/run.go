package idem

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/budget"
)

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

// Frame is one frame of an answer.
type Frame struct {
	Channel aether.Channel
	Type    uint8 // of a message
	End     bool  // of its channel
	Data    []byte
}

// frameHead is channel, type and end, a byte each, and the length.
const frameHead = 3 + 4

func encode(frames []Frame) []byte {
	n := 0
	for _, f := range frames {
		n += frameHead + len(f.Data)
	}
	b := make([]byte, 0, n)
	for _, f := range frames {
		b = append(b, byte(f.Channel), f.Type, 0)
		if f.End {
			b[len(b)-1] = 1
		}
		b = binary.LittleEndian.AppendUint32(b, uint32(len(f.Data)))
		b = append(b, f.Data...)
	}
	return b
}

var errTorn = errors.New("the result's file ends within a frame")

func decode(b []byte) ([]Frame, error) {
	var frames []Frame
	for len(b) > 0 {
		if len(b) < frameHead {
			return nil, errTorn
		}
		n := int(binary.LittleEndian.Uint32(b[3:]))
		if n > len(b)-frameHead {
			return nil, errTorn
		}
		frames = append(frames, Frame{Channel: aether.Channel(b[0]), Type: b[1], End: b[2] != 0, Data: b[frameHead : frameHead+n]})
		b = b[frameHead+n:]
	}
	return frames, nil
}

// Run is one request under a key, and its answer as far as there is one. One goroutine carries it out; any number follow.
type Run struct {
	keys  *Keys
	id    keyID
	entry *entry
	ref   string
	size  uint32 // of the result's file, of a run that ended before
	crc   uint32

	mu      sync.Mutex
	state   state
	err     error // what callers are told, where that isn't the answer
	frames  []Frame
	base    int // how many frames went before frames[0]
	held    int // bytes in frames, of a run that is under way
	hold    *budget.Hold
	lossy   bool
	readers map[*reader]bool
	changed chan struct{} // closed at every change
	stop    func()        // ends the work, and takes back what it made if nobody has been told; nil: it can't be ended
	idle    *time.Timer   // until stop, while nobody follows
	inner   *aether.Stream
}

// reader is where one caller stands.
type reader struct{ next int }

func newRun(k *Keys, id keyID, e *entry, project string) *Run {
	return &Run{hold: k.memory.Open(project), keys: k, id: id, entry: e, ref: e.ref, state: stateBegun, readers: map[*reader]bool{}, changed: make(chan struct{})}
}

func (r *Run) changeLocked() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// endLocked says that the run has ended, with its last frames. The caller holds Keys.mu.
func (r *Run) endLocked(to state, told error, last ...Frame) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.frames = append(r.frames, last...)
	r.state, r.err, r.inner = to, told, nil
	r.doneLocked()
	if !r.untold() {
		r.forgetLocked()
	}
	r.idleLocked()
	r.changeLocked()
}

// doneLocked gives the answer's memory back once the run is over and nobody follows it any more.
func (r *Run) doneLocked() {
	if r.state != stateBegun && len(r.readers) == 0 {
		r.hold.Close()
	}
}

// untold tells whether the run has made a sandbox that nobody knows of yet. The caller holds r.mu.
func (r *Run) untold() bool {
	return r.entry.kind == kindCreate && r.state == stateDone && r.stop != nil
}

// forgetLocked says that the run isn't ended any more when nobody follows it.
func (r *Run) forgetLocked() {
	r.stop = nil
	if r.idle != nil {
		r.idle.Stop()
		r.idle = nil
	}
}

// put adds a frame to the answer. An answer that is too large to be kept is only passed on: then put waits for those who
// follow.
func (r *Run) put(ctx context.Context, f Frame) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := len(f.Data) + frameHead
	if !r.lossy && (r.held+n > r.keys.limits.Result || !r.hold.Grow(int64(n))) {
		r.lossy = true
	}
	for r.lossy && !r.passedLocked() {
		changed := r.changed
		r.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
		r.mu.Lock()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	if r.lossy {
		r.base += len(r.frames)
		r.frames = r.frames[:0]
		r.hold.Close()
	}
	r.frames = append(r.frames, f)
	r.held += n
	r.changeLocked()
	return nil
}

// passedLocked tells whether all who follow have all there is.
func (r *Run) passedLocked() bool {
	for v := range r.readers {
		if v.next < r.base+len(r.frames) {
			return false
		}
	}
	return true
}

// finish ends the run with its last frames, which nobody is given before they are on record.
func (r *Run) finish(last ...Frame) {
	r.mu.Lock()
	var all []Frame // none of an answer that is too large
	if !r.lossy {
		all = slices.Concat(r.frames, last)
	}
	r.mu.Unlock()
	r.keys.end(r, ending{to: stateDone, result: all, last: last})
}

// free ends the run because of an error that says that nothing was done.
func (r *Run) free(err error) { r.keys.end(r, ending{to: stateFree, told: err}) }

// lose ends the run of which it isn't known what it did.
func (r *Run) lose(err error) { r.keys.end(r, ending{to: stateLost, told: err}) }

// errNoMemory refuses what would have to wait in memory. The key isn't touched.
func errNoMemory() *api.Error {
	err := api.FieldError(api.CodeTooMany, Header, "try again, with fewer of them at once",
		"the requests with a key that are under way take all the memory that there is for their inputs and results")
	err.RetryMS = 1000
	return err
}

// load reads the answer of a run that ended before, for a caller who has joined it.
func (r *Run) load() error {
	if r.size == 0 {
		return nil
	}
	r.mu.Lock()
	room := r.hold.Grow(int64(r.size))
	r.mu.Unlock()
	if !room {
		return errNoMemory()
	}
	frames, err := r.keys.journal.loadResult(r.id, r.size, r.crc)
	if err != nil {
		return errLost("it can't be read: " + err.Error())
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.frames = frames
	return nil
}

// work says how the run is ended when nobody wants it any more, and where what its callers say goes.
func (r *Run) work(inner *aether.Stream, stop func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forgetLocked()
	r.inner, r.stop = inner, stop
	r.idleLocked()
}

// say passes a message of a caller on to who carries the request out.
func (r *Run) say(ctx context.Context, msgType uint8, body []byte) {
	r.mu.Lock()
	inner := r.inner
	r.mu.Unlock()
	if inner != nil {
		_ = inner.Send(ctx, msgType, body) // it has ended, which is told where frames are received
	}
}

// join makes the caller one who follows.
func (r *Run) join() *reader {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := &reader{}
	r.readers[v] = true
	if r.idle != nil {
		r.idle.Stop()
		r.idle = nil
	}
	return v
}

func (r *Run) followers() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.readers)
}

func (r *Run) leave(v *reader) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.readers, v)
	r.doneLocked()
	r.idleLocked()
	r.changeLocked()
}

// idleLocked ends the work in a while unless somebody comes to follow it.
func (r *Run) idleLocked() {
	if len(r.readers) == 0 && r.stop != nil && r.idle == nil {
		grace := r.keys.limits.Grace
		if r.entry.kind == kindCreate {
			grace = r.keys.limits.Untold
		}
		r.idle = time.AfterFunc(grace, r.stop)
	}
}

// reopen makes those who come wait again, unless somebody follows or was told.
func (r *Run) reopen() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.readers) > 0 || !r.untold() {
		return false
	}
	r.state = stateBegun
	r.forgetLocked()
	return true
}

// follow hands the answer to a caller as it comes, and returns at its end.
func (r *Run) follow(ctx context.Context, v *reader, give func(Frame) error) error {
	for {
		r.mu.Lock()
		at, changed, state, err := v.next-r.base, r.changed, r.state, r.err
		var f Frame
		have := at >= 0 && at < len(r.frames)
		if have {
			f = r.frames[at]
		}
		r.mu.Unlock()
		switch {
		case at < 0:
			return errLost("it was too large to be kept")
		case have:
			if err := give(f); err != nil {
				return err
			}
			r.mu.Lock()
			v.next++
			if r.lossy {
				r.changeLocked()
			}
			r.mu.Unlock()
			continue
		case state != stateBegun:
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
