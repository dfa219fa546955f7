package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/apiserver/encode"
)

// stallTime is how long a client of a stream may take nothing before it is let go. It can come back with an offset.
const stallTime = 2 * time.Minute

const mediaNDJSON = "application/x-ndjson"

// translator turns the frames of a process stream into [api.StreamEvent] lines. Data is encoded by hand, since it is
// all of the volume; the rare rest is left to encoding/json.
type translator struct {
	stdout, stderr int64 // offset of the next byte
	exited         bool
}

// appendFrame appends the event of one frame, or nothing where a frame isn't one.
func (t *translator) appendFrame(b []byte, f *aether.Frame) ([]byte, error) {
	switch f.Channel {
	case aether.Stdout:
		return appendData(b, "stdout", &t.stdout, f.Data), nil
	case aether.Stderr:
		return appendData(b, "stderr", &t.stderr, f.Data), nil
	case aether.Message:
		ev, err := t.message(f)
		if err != nil || ev.Type == "" {
			return b, err
		}
		return appendEvent(b, &ev)
	default: // a flow that isn't for clients
		return b, nil
	}
}

func appendData(b []byte, kind string, offset *int64, data []byte) []byte {
	if len(data) == 0 {
		return b
	}
	b = append(append(append(b, `{"type":"`...), kind...), `","offset":`...)
	b = strconv.AppendInt(b, *offset, 10)
	*offset += int64(len(data))
	return append(encode.AppendBase64(append(b, `,"data":`...), data), '}')
}

func appendEvent(b []byte, ev *api.StreamEvent) ([]byte, error) {
	line, err := json.Marshal(ev)
	return append(b, line...), err
}

// message reads a message; a type that isn't for clients gives an event without type.
func (t *translator) message(f *aether.Frame) (api.StreamEvent, error) {
	switch f.Type {
	case aether.MsgStarted:
		var m aether.Started
		err := m.Unmarshal(f.Data)
		return api.StreamEvent{Type: "started", ID: m.ID}, err
	case aether.MsgGap:
		var m aether.Gap
		if err := m.Unmarshal(f.Data); err != nil {
			return api.StreamEvent{}, err
		}
		return t.gap(&m), nil
	case aether.MsgExited:
		var m aether.Exited
		err := m.Unmarshal(f.Data)
		t.exited = true
		return api.StreamEvent{Type: "exit", Exit: new(exitStatus(&m))}, err
	default:
		return api.StreamEvent{}, nil
	}
}

func (t *translator) gap(m *aether.Gap) api.StreamEvent {
	ev := api.StreamEvent{Type: "gap", Offset: m.Offset, Length: m.Length}
	switch aether.Channel(m.Channel) {
	case aether.Stdout:
		ev.Stream, t.stdout = "stdout", m.Offset+m.Length
	case aether.Stderr:
		ev.Stream, t.stderr = "stderr", m.Offset+m.Length
	default:
		return api.StreamEvent{}
	}
	return ev
}

// errorEvent is how a stream ends that can't go on.
func (c *call) errorEvent(b []byte, err error) []byte {
	own := *asProblem(err)
	e := own.Complete()
	e.RequestID = c.id
	b, _ = appendEvent(b, &api.StreamEvent{Type: "error", Error: e}) // a struct of plain fields always encodes
	return b
}

// first waits for a stream's first frame, so that a refusal is a problem document and not a stream of one error.
func first(ctx context.Context, st *aether.Stream) (aether.Frame, error) {
	f, err := st.Recv(ctx)
	if errors.Is(err, io.EOF) {
		err = api.Errorf(api.CodeUnavailable, "the stream ended before it began")
	}
	return f, err
}

// streamLines answers with a process stream as NDJSON, beginning with a frame that was received already.
func (c *call) streamLines(ctx context.Context, st *aether.Stream, f aether.Frame, t translator) error {
	out := newLiveAnswer(c, mediaNDJSON)
	if c.head { // it would wait for what it can't send
		f.Release()
		return nil
	}
	buf := c.server.buffer()
	defer func() { c.server.recycle(buf) }()
	for {
		line, err := t.appendFrame((*buf)[:0], &f)
		f.Release()
		*buf = line
		if err == nil && len(line) > 0 {
			*buf = append(line, '\n')
			if err := out.write(*buf); err != nil {
				return nil //nolint:nilerr // the client has gone; there is nobody to tell
			}
		}
		if err == nil && !t.exited {
			f, err = st.Recv(ctx)
		}
		switch {
		case t.exited, ctx.Err() != nil:
			return nil
		case err != nil:
			*buf = append(c.errorEvent((*buf)[:0], err), '\n')
			_ = out.write(*buf) // as above
			return nil
		}
	}
}

// liveAnswer is an answer whose parts are sent as they come.
type liveAnswer struct {
	c  *call
	rc *http.ResponseController
}

func newLiveAnswer(c *call, media string) *liveAnswer {
	h := c.Header()
	h.Set("Content-Type", media)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // proxies that would collect it
	h.Set("X-Content-Type-Options", "nosniff")
	c.WriteHeader(http.StatusOK)
	a := &liveAnswer{c: c, rc: http.NewResponseController(c.ResponseWriter)}
	_ = a.rc.Flush() // a first write shows whether it works
	return a
}

func (a *liveAnswer) write(p []byte) error {
	_ = a.rc.SetWriteDeadline(time.Now().Add(stallTime)) // not supported: no limit
	if _, err := a.c.Write(p); err != nil {
		return err
	}
	return a.rc.Flush()
}
