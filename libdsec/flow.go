package libdsec

import (
	"io"
	"sync"

	"github.com/dsec-io/dsec/internal/aether"
)

// flow is one output of a process on its way to the reader. Frames wait in it with their credit still taken, so that
// credit bounds what it holds (one window) and putting never has to wait: an output that nobody reads doesn't hold up
// the other one.
type flow struct {
	mu      sync.Mutex // guards everything below
	more    sync.Cond  // signalled when frames or end change
	frames  []aether.Frame
	rest    []byte // what is left of frames[0]
	offset  int64  // how many bytes of the stream were put or skipped
	claimed bool   // somebody reads
	drop    bool   // nobody will
	end     error  // why there won't be more; io.EOF: it is complete
}

func newFlow() *flow {
	f := new(flow)
	f.more.L = &f.mu
	return f
}

// put takes over a data frame.
func (f *flow) put(frame aether.Frame) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.offset += int64(len(frame.Data))
	if f.drop || len(frame.Data) == 0 || f.end != nil {
		frame.Release()
		return
	}
	f.frames = append(f.frames, frame)
	if len(f.frames) == 1 {
		f.rest = frame.Data
	}
	f.more.Broadcast()
}

// putGap queues the news of a gap behind the output from before it, for [flow.next] to hand out as a message.
func (f *flow) putGap(body []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.drop || f.end != nil {
		return
	}
	f.frames = append(f.frames, aether.Frame{Channel: aether.Message, Type: aether.MsgGap, Data: body})
	f.more.Broadcast()
}

// skip notes that bytes up to offset won't come.
func (f *flow) skip(offset int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.offset = max(f.offset, offset)
}

// position is the offset from which the next bytes are wanted.
func (f *flow) position() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.offset
}

// claim makes the caller the reader.
func (f *flow) claim() io.Reader {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.claimed = true
	return f
}

// discardUnclaimed lets go of an output that nobody asked for.
func (f *flow) discardUnclaimed() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.claimed {
		return
	}
	f.drop = true
	f.releaseLocked()
}

func (f *flow) releaseLocked() {
	for i := range f.frames {
		f.frames[i].Release()
	}
	f.frames, f.rest = nil, nil
}

// finish says that no more frames come. What waits stays readable unless the reader is gone for good.
func (f *flow) finish(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.end == nil {
		f.end = err
	}
	f.more.Broadcast()
}

// abandon drops what waits: the reader won't come back.
func (f *flow) abandon(err error) {
	f.finish(err)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.drop = true
	f.releaseLocked()
}

// Read implements [io.Reader]. One goroutine reads at a time.
func (f *flow) Read(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(p) == 0 {
		return 0, nil
	}
	for len(f.frames) == 0 {
		if f.end != nil {
			return 0, f.end
		}
		f.more.Wait()
	}
	n := copy(p, f.rest)
	f.rest = f.rest[n:]
	if len(f.rest) == 0 {
		f.popLocked()
	}
	return n, nil
}

// next hands out the next frame whole, for callers that don't want a copy; the caller releases it.
func (f *flow) next() (aether.Frame, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.frames) == 0 {
		if f.end != nil {
			return aether.Frame{}, f.end
		}
		f.more.Wait()
	}
	frame := f.frames[0]
	f.frames[0] = aether.Frame{}
	f.frames = f.frames[1:]
	f.refillLocked()
	return frame, nil
}

func (f *flow) popLocked() {
	f.frames[0].Release()
	f.frames[0] = aether.Frame{}
	f.frames = f.frames[1:]
	f.refillLocked()
}

func (f *flow) refillLocked() {
	f.rest = nil
	if len(f.frames) > 0 {
		f.rest = f.frames[0].Data
	}
}
