package libdsec

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
)

// maxEvent bounds one event's line.
const maxEvent = 1 << 20

// WatchOptions choose what is yielded of a log or of events.
type WatchOptions struct {
	Follow      bool  // go on with what comes, until the sandbox ends or ctx does
	Since       int64 // events: those after this sequence number; logs: from this byte of stdout on
	SinceStderr int64 // logs: from this byte of stderr on
}

// LogChunk is a piece of a sandbox's log: the output of its start process.
type LogChunk struct {
	Stream string // stdout or stderr
	Offset int64  // of the first byte in its stream, counted from the stream's beginning
	Data   []byte // valid until the next chunk is asked for
}

// Logs yields the sandbox's log. Where Offset is beyond the end of the chunk before, the bytes between aren't kept any
// more. After an error it yields no more.
func (s *Sandbox) Logs(ctx context.Context, o WatchOptions) iter.Seq2[LogChunk, error] {
	return func(yield func(LogChunk, error) bool) {
		at := map[string]int64{"stdout": o.Since, "stderr": o.SinceStderr}
		body, err := json.Marshal(map[string]any{"follow": o.Follow, "since_offset": o.Since, "since_stderr_offset": o.SinceStderr})
		var bad error
		if err == nil {
			err = s.client.each(ctx, aether.Open{Method: "sandbox.logs", Sandbox: s.id, Body: body}, func(f *aether.Frame) bool {
				if f.Type == aether.MsgGap {
					var gap Gap
					if gap, bad = readGap(f.Data); bad == nil {
						at[gap.Stream] = gap.Offset + gap.Length
					}
					return bad == nil
				}
				if f.Channel == aether.Message || len(f.Data) == 0 {
					return true
				}
				chunk := LogChunk{Stream: "stdout", Data: f.Data}
				if f.Channel == aether.Stderr {
					chunk.Stream = "stderr"
				}
				chunk.Offset = at[chunk.Stream]
				at[chunk.Stream] += int64(len(f.Data))
				return yield(chunk, nil)
			})
		}
		if err = errors.Join(bad, err); err != nil {
			yield(LogChunk{}, err)
		}
	}
}

// newSandboxes is how often a watcher of all sandboxes looks for new ones.
const newSandboxes = time.Second

// Events yields what happened to the project's sandboxes: in the order of time, or, when it follows, of arrival; for each
// sandbox in its own order and without gaps. Since isn't used, as every sandbox counts on its own. After an error it yields
// no more.
func (c *Client) Events(ctx context.Context, o WatchOptions) iter.Seq2[api.Event, error] {
	if !o.Follow {
		return c.allEvents(ctx)
	}
	return func(yield func(api.Event, error) bool) {
		ctx, cancel := context.WithCancelCause(ctx)
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel(errStopped)
		type item struct {
			event api.Event
			err   error
		}
		items := make(chan item) // unbuffered: whoever watches waits for whoever reads
		send := func(e api.Event, err error) bool {
			select {
			case items <- item{e, err}:
				return err == nil
			case <-ctx.Done():
				return false
			}
		}
		wg.Go(func() { c.watchAll(ctx, &wg, send) })
		for {
			select {
			case i := <-items:
				if !yield(i.event, i.err) || i.err != nil {
					return
				}
			case <-ctx.Done():
				yield(api.Event{}, context.Cause(ctx))
				return
			}
		}
	}
}

// watchAll follows each sandbox, those that come later too.
func (c *Client) watchAll(ctx context.Context, wg *sync.WaitGroup, send func(api.Event, error) bool) {
	seen := map[string]bool{}
	for {
		for sb, err := range c.List(ctx, ListOptions{}) {
			if err != nil {
				if !transient(err) {
					send(api.Event{}, err)
					return
				}
				break
			}
			if seen[sb.id] {
				continue
			}
			seen[sb.id] = true
			wg.Go(func() {
				for e, err := range sb.Events(ctx, WatchOptions{Follow: true}) {
					if api.IsCode(err, api.CodeNotFound) || !send(e, err) {
						return // its record has expired, or nobody wants more
					}
				}
			})
		}
		if rest(ctx, newSandboxes) != nil {
			return
		}
	}
}

func (c *Client) allEvents(ctx context.Context) iter.Seq2[api.Event, error] {
	return func(yield func(api.Event, error) bool) {
		var all []api.Event
		for sb, err := range c.List(ctx, ListOptions{}) {
			if err != nil {
				yield(api.Event{}, err)
				return
			}
			for e, err := range sb.Events(ctx, WatchOptions{}) {
				if api.IsCode(err, api.CodeNotFound) {
					break
				}
				if err != nil {
					yield(api.Event{}, err)
					return
				}
				all = append(all, e)
			}
		}
		slices.SortStableFunc(all, func(a, b api.Event) int { return a.Time.Compare(b.Time) })
		for _, e := range all {
			if !yield(e, nil) {
				return
			}
		}
	}
}

// Events yields what happened to the sandbox, in order and without gaps. A connection that breaks while following is
// made again where it was. After an error it yields no more.
func (s *Sandbox) Events(ctx context.Context, o WatchOptions) iter.Seq2[api.Event, error] {
	return func(yield func(api.Event, error) bool) {
		for pause := firstPause; ; pause = min(2*pause, reconnectPause) {
			stopped := false
			err := s.eventsOnce(ctx, o, func(e api.Event) bool {
				pause = firstPause
				o.Since = e.Seq
				stopped = !yield(e, nil)
				return !stopped
			})
			if stopped || err == nil {
				return
			}
			if !o.Follow || !transient(err) || rest(ctx, pause) != nil {
				yield(api.Event{}, err)
				return
			}
		}
	}
}

func (s *Sandbox) eventsOnce(ctx context.Context, o WatchOptions, fn func(api.Event) bool) error {
	body, err := json.Marshal(map[string]any{"follow": o.Follow, "since": o.Since})
	if err != nil {
		return err
	}
	var lines lineSplitter
	var bad error
	err = s.client.each(ctx, aether.Open{Method: "sandbox.events", Sandbox: s.id, Body: body}, func(f *aether.Frame) bool {
		if f.Channel == aether.Message {
			return true
		}
		bad = lines.feed(f.Data, func(line []byte) (bool, error) {
			var e api.Event
			if err := json.Unmarshal(line, &e); err != nil {
				return false, api.Errorf(api.CodeInternal, "the server sent an event that can't be read: %v", err)
			}
			return fn(e), nil
		})
		return bad == nil
	})
	if errors.Is(bad, errStopped) {
		return nil
	}
	return errors.Join(bad, err)
}

// errStopped says that the caller wants no more.
var errStopped = errors.New("stopped")

// lineSplitter finds lines in data that comes in pieces.
type lineSplitter struct{ rest []byte }

func (l *lineSplitter) feed(data []byte, fn func([]byte) (bool, error)) error {
	l.rest = append(l.rest, data...)
	for {
		line, rest, found := bytes.Cut(l.rest, []byte("\n"))
		if !found {
			break
		}
		l.rest = rest
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		more, err := fn(line)
		if err != nil {
			return err
		}
		if !more {
			return errStopped
		}
	}
	if len(l.rest) > maxEvent {
		return api.Errorf(api.CodeInternal, "the server sent an event of more than %d bytes", maxEvent)
	}
	return nil
}

// each calls fn with every frame of a stream until it ends or fn has had enough.
func (c *Client) each(ctx context.Context, o aether.Open, fn func(*aether.Frame) bool) error {
	stream, err := c.open(ctx, o)
	if err != nil {
		return err
	}
	defer stream.Reset(nil)
	for {
		f, err := stream.Recv(ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return c.streamError(ctx, err)
		}
		more := fn(&f)
		f.Release()
		if !more {
			return nil
		}
	}
}
