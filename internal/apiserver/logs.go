package apiserver

import (
	"encoding/json"
	"math"
	"net/http"

	"github.com/dsec-io/dsec/internal/aether"
)

// logsQuery is the body of sandbox.logs.
type logsQuery struct {
	Follow bool  `json:"follow"`
	Stdout int64 `json:"since_offset"`
	Stderr int64 `json:"since_stderr_offset"`
}

// logs answers with what the start process wrote: its bytes, or events with offsets where asked for.
func (s *Server) logs(c *call, r *http.Request) error {
	id, err := sandboxID(r)
	if err != nil {
		return err
	}
	q, err := query(r, "follow", "since", "since_stderr")
	if err != nil {
		return err
	}
	var want logsQuery
	if want.Follow, err = q.flag("follow"); err != nil {
		return err
	}
	if want.Stdout, err = q.number("since", 0, 0, math.MaxInt64); err != nil {
		return err
	}
	if want.Stderr, err = q.number("since_stderr", 0, 0, math.MaxInt64); err != nil {
		return err
	}
	body, err := json.Marshal(want)
	if err != nil {
		return err
	}
	as := follower{media: "text/plain; charset=utf-8", convert: plain}
	if accepts(r, mediaNDJSON) {
		as = follower{media: mediaNDJSON, convert: (&logLines{t: translator{stdout: want.Stdout, stderr: want.Stderr}}).convert}
	}
	return s.follow(c, r, aether.Open{Method: "sandbox.logs", Sandbox: id, Body: body}, as)
}

// logLines makes event lines of log frames.
type logLines struct {
	t   translator
	buf []byte
}

func (l *logLines) convert(f *aether.Frame) ([]byte, error) {
	line, err := l.t.appendFrame(l.buf[:0], f)
	if err != nil || len(line) == 0 {
		return nil, err
	}
	l.buf = append(line, '\n')
	return l.buf, nil
}
