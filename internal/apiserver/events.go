package apiserver

import (
	"bytes"
	"encoding/json"
	"math"
	"net/http"
	"strconv"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
)

// eventsQuery is the body of sandbox.events.
type eventsQuery struct {
	Follow bool  `json:"follow"`
	Since  int64 `json:"since"` // events after this sequence number
}

const (
	mediaSSE = "text/event-stream"
	maxEvent = 1 << 20 // bounds one event line of the edge's
)

// events answers with a sandbox's events, one a line, or as server-sent events where asked for.
func (s *Server) events(c *call, r *http.Request) error {
	id, err := sandboxID(r)
	if err != nil {
		return err
	}
	q, err := query(r, "follow", "since")
	if err != nil {
		return err
	}
	var want eventsQuery
	if want.Follow, err = q.flag("follow"); err != nil {
		return err
	}
	if want.Since, err = q.number("since", 0, 0, math.MaxInt64); err != nil {
		return err
	}
	sse := accepts(r, mediaSSE)
	if last := r.Header.Get("Last-Event-ID"); sse && last != "" && !q.values.Has("since") {
		if want.Since, err = strconv.ParseInt(last, 10, 64); err != nil || want.Since < 0 {
			return api.FieldError(api.CodeInvalid, "Last-Event-ID", "", "%q isn't the number of an event", clip(last))
		}
	}
	body, err := json.Marshal(want)
	if err != nil {
		return err
	}
	as := follower{media: mediaNDJSON, convert: plain}
	if sse {
		// The id is the sequence number, so that a browser which comes back goes on where it was.
		as = follower{media: mediaSSE, convert: new(eventLines).convert, ping: []byte(": \n\n")}
	}
	return s.follow(c, r, aether.Open{Method: "sandbox.events", Sandbox: id, Body: body}, as)
}

// eventLines makes server-sent events of event lines, which frames may cut anywhere.
type eventLines struct{ rest []byte }

func (l *eventLines) convert(f *aether.Frame) ([]byte, error) {
	if f.Channel != aether.Stdout {
		return nil, nil
	}
	l.rest = append(l.rest, f.Data...)
	var send []byte
	for {
		line, after, ok := bytes.Cut(l.rest, []byte("\n"))
		if !ok {
			break
		}
		send = appendSSE(send, line)
		l.rest = after
	}
	l.rest = append([]byte(nil), l.rest...) // what was sent isn't kept
	if len(l.rest) > maxEvent {
		return nil, api.Errorf(api.CodeUnavailable, "the edge sent an event without end")
	}
	return send, nil
}

func appendSSE(b, line []byte) []byte {
	var ev struct {
		Seq  int64  `json:"seq"`
		Type string `json:"type"`
	}
	if len(line) == 0 || json.Unmarshal(line, &ev) != nil {
		return b
	}
	if ev.Seq > 0 { // events of files have none: a watch can't go on where it was
		b = append(strconv.AppendInt(append(b, "id: "...), ev.Seq, 10), '\n')
	}
	b = append(append(append(b, "event: "...), ev.Type...), "\ndata: "...)
	return append(append(b, line...), "\n\n"...)
}
