package edge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
)

const (
	// keptLog is how many bytes of each output outlive a sandbox: the first and the last half.
	keptLog = 1 << 20
	// saveTime bounds how long the end of a sandbox waits for its log.
	saveTime = 2 * time.Second
	// logTries is how often in a row the edge attaches again without getting anything.
	logTries = 5
)

// logsQuery is the body of "sandbox.logs": what the client has already, per stream.
type logsQuery struct {
	Follow      bool  `json:"follow,omitempty"`
	SinceOffset int64 `json:"since_offset,omitempty"` // in stdout
	SinceStderr int64 `json:"since_stderr_offset,omitempty"`
}

func parseLogsQuery(body []byte) (q logsQuery, err error) {
	if len(body) > 0 {
		if q, err = api.Decode[logsQuery](body); err != nil {
			return q, err
		}
	}
	for field, n := range map[string]int64{"since_offset": q.SinceOffset, "since_stderr_offset": q.SinceStderr} {
		if n < 0 {
			return q, api.FieldError(api.CodeInvalid, field, "", "%d is negative", n)
		}
	}
	return q, nil
}

// serveLogs sends the output of the start process: while the sandbox runs what its aether has, afterwards what was saved.
func (e *Edge) serveLogs(ctx context.Context, s *aether.Stream, o aether.Open) error {
	sb, err := e.find(o.Project, o.Sandbox)
	if err != nil {
		return err
	}
	q, err := parseLogsQuery(o.Body)
	if err != nil {
		return err
	}
	if len(sb.view().Spec.Command) == 0 {
		return api.FieldError(api.CodeNoSuchProcess, "", "create the sandbox with a command to have a log", "sandbox %s has no start process, so it has no log", sb.id)
	}
	r := &run{sb: sb, out: [2]int64{q.SinceOffset, q.SinceStderr}}
	for try := 1; ; try++ {
		now, err := e.settle(ctx, sb, api.StatePausing, api.StateResuming)
		switch {
		case err != nil:
			return err
		case now.state.Ended():
			return e.sendSaved(ctx, s, now, r)
		}
		before := r.out
		r.box = now.box
		err = e.sendLog(ctx, s, r, !q.Follow)
		if lost, ok := errors.AsType[*lostError](err); !ok || try == logTries {
			if ok {
				err = notStarted(ctx, r.box, lost.cause)
			}
			return err
		}
		if r.out != before {
			try = 0
		}
		// A new aether has the log, or the sandbox is ending.
		select {
		case <-time.After(attachPause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// sendLog passes on what a living aether has from r's place on. Its loss is a lostError.
func (e *Edge) sendLog(ctx context.Context, s *aether.Stream, r *run, noFollow bool) error {
	o := s.Open()
	a := aether.Attach{ID: startProcess, StdoutOffset: r.out[0], StderrOffset: r.out[1], NoFollow: noFollow}
	down, err := r.box.Open(ctx, aether.Open{
		Method: "attach", Sandbox: r.sb.id, Project: r.sb.project, RequestID: o.RequestID, Trace: o.Trace, Body: a.AppendTo(nil), Closed: true,
	})
	if err != nil {
		return &lostError{err}
	}
	defer down.Reset(nil)
	for {
		f, err := down.Recv(ctx)
		switch {
		case errors.Is(err, io.EOF) || err != nil && r.exited:
			return s.Close()
		case ctx.Err() != nil:
			f.Release()
			return context.Cause(ctx)
		case err != nil:
			return &lostError{err}
		}
		r.see(&f)
		err = pass(ctx, s, &f)
		f.Release()
		if err != nil {
			return err
		}
	}
}

// excerpt is the first and the last bytes of an output.
type excerpt struct {
	head, tail []byte
	total      int64
	broken     bool // something after the head is missing, so what comes belongs to the tail
}

func (x *excerpt) add(p []byte) {
	x.total += int64(len(p))
	if room := keptLog/2 - len(x.head); !x.broken && room > 0 {
		n := min(room, len(p))
		x.head, p = append(x.head, p[:n]...), p[n:]
	}
	x.tail = append(x.tail, p...)
	if len(x.tail) >= keptLog {
		x.cut()
	}
}

func (x *excerpt) cut() {
	if n := len(x.tail) - keptLog/2; n > 0 {
		x.tail = append(x.tail[:0], x.tail[n:]...)
	}
}

func (x *excerpt) gap(n int64) {
	x.total += n
	x.broken, x.tail = true, x.tail[:0]
}

// logHeader is the first line of a saved log; the bytes of both outputs, head and tail each, follow.
type logHeader struct {
	Exited  []byte     `json:"exited,omitempty"` // the message
	Outputs [2]logSize `json:"outputs"`          // stdout and stderr
}

type logSize struct {
	Head  int   `json:"head"`
	Tail  int   `json:"tail"`
	Total int64 `json:"total"`
}

// saveLog keeps the log of a sandbox that is about to be removed beside its record. Without it the log is lost, and the
// sandbox ends all the same.
func (e *Edge) saveLog(ctx context.Context, sb *sandbox, box Box) {
	if box == nil || len(sb.view().Spec.Command) == 0 {
		return
	}
	ctx, cancel := context.WithTimeoutCause(ctx, saveTime, errors.New("the aether took too long"))
	defer cancel()
	raw, err := fetchLog(ctx, sb, box)
	for errors.Is(err, aether.ErrConnLost) && ctx.Err() == nil {
		// The aether that replaces the dead one has the log.
		select {
		case <-time.After(attachPause):
			raw, err = fetchLog(ctx, sb, box)
		case <-ctx.Done():
		}
	}
	if err == nil {
		err = e.store.saveLog(sb.id, raw)
	}
	if err != nil {
		e.log.Warn("log of an ending sandbox not kept", sb.attr(), slog.Any("err", err))
	}
}

// fetchLog reads what an aether has of a log.
func fetchLog(ctx context.Context, sb *sandbox, box Box) ([]byte, error) {
	a := aether.Attach{ID: startProcess, NoFollow: true}
	s, err := box.Open(ctx, aether.Open{Method: "attach", Sandbox: sb.id, Project: sb.project, Body: a.AppendTo(nil), Closed: true})
	if err != nil {
		return nil, err
	}
	defer s.Reset(nil)
	var h logHeader
	var outs [2]excerpt
	for {
		f, err := s.Recv(ctx)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		switch {
		case f.Channel == aether.Stdout || f.Channel == aether.Stderr:
			outs[f.Channel-aether.Stdout].add(f.Data)
		case f.Type == aether.MsgExited:
			h.Exited = bytes.Clone(f.Data)
		case f.Type == aether.MsgGap:
			var g aether.Gap
			if err = g.Unmarshal(f.Data); err == nil && (g.Channel == uint8(aether.Stdout) || g.Channel == uint8(aether.Stderr)) {
				outs[g.Channel-uint8(aether.Stdout)].gap(g.Length)
			}
		}
		f.Release()
		if err != nil {
			return nil, err
		}
	}
	for i := range outs {
		outs[i].cut()
		h.Outputs[i] = logSize{len(outs[i].head), len(outs[i].tail), outs[i].total}
	}
	raw, err := json.Marshal(h)
	if err != nil {
		return nil, fmt.Errorf("encode log: %w", err)
	}
	return bytes.Join([][]byte{raw, {'\n'}, outs[0].head, outs[0].tail, outs[1].head, outs[1].tail}, nil), nil
}

func (s *store) saveLog(id string, raw []byte) error {
	tmp := s.logPath(id) + ".tmp"
	if err := s.files.Write("log:write", tmp, raw); err != nil {
		return fmt.Errorf("write log of %s: %w", id, err)
	}
	if err := s.files.Rename("log:rename", tmp, s.logPath(id)); err != nil {
		return fmt.Errorf("put log of %s in place: %w", id, err)
	}
	return nil
}

// readLog reads a saved log back.
func (s *store) readLog(id string) (h logHeader, outs [2]excerpt, err error) {
	raw, err := os.ReadFile(s.logPath(id))
	if err != nil {
		return h, outs, err
	}
	line, rest, _ := bytes.Cut(raw, []byte{'\n'})
	if err := json.Unmarshal(line, &h); err != nil {
		return h, outs, fmt.Errorf("log of %s: %w", id, err)
	}
	take := func(n int) []byte {
		n = max(0, min(n, len(rest)))
		var part []byte
		part, rest = rest[:n], rest[n:]
		return part
	}
	for i, size := range h.Outputs {
		outs[i] = excerpt{head: take(size.Head), tail: take(size.Tail), total: size.Total}
	}
	return h, outs, nil
}

// sendSaved sends the log of an ended sandbox from r's place on.
func (e *Edge) sendSaved(ctx context.Context, s *aether.Stream, now settled, r *run) error {
	h, outs, err := e.store.readLog(r.sb.id)
	if errors.Is(err, fs.ErrNotExist) {
		now.reason += "; its log couldn't be kept"
		return wrongState(r.sb.id, now)
	}
	if err != nil {
		return err
	}
	for i := range outs {
		if err := outs[i].send(ctx, s, aether.Stdout+aether.Channel(i), r.out[i]); err != nil {
			return err
		}
	}
	if len(h.Exited) > 0 && !r.exited {
		if err := s.Send(ctx, aether.MsgExited, h.Exited); err != nil {
			return err
		}
	}
	return s.Close()
}

func (x *excerpt) send(ctx context.Context, s *aether.Stream, ch aether.Channel, from int64) error {
	head, tail := int64(len(x.head)), x.total-int64(len(x.tail)) // where the one ends and the other begins
	if from < head {
		if err := s.Write(ctx, ch, x.head[from:]); err != nil {
			return err
		}
	}
	if from = max(from, head); from < tail {
		gap := aether.Gap{Channel: uint8(ch), Offset: from, Length: tail - from}
		if err := s.Send(ctx, aether.MsgGap, gap.AppendTo(nil)); err != nil {
			return err
		}
	}
	if from = max(from, tail); from < x.total {
		return s.Write(ctx, ch, x.tail[from-tail:])
	}
	return nil
}
