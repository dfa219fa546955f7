package edge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/edge/savedlog"
)

const (
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
		err = e.store.SaveLog(sb.id, raw)
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
	l, err := savedlog.Read(ctx, s)
	if err != nil {
		return nil, err
	}
	return l.Encode()
}

// sendSaved sends the log of an ended sandbox from r's place on.
func (e *Edge) sendSaved(ctx context.Context, s *aether.Stream, now settled, r *run) error {
	raw, err := e.store.ReadLog(r.sb.id)
	if errors.Is(err, fs.ErrNotExist) {
		now.reason += "; its log couldn't be kept"
		return wrongState(r.sb.id, now)
	}
	if err != nil {
		return err
	}
	l, err := savedlog.Decode(raw)
	if err != nil {
		return fmt.Errorf("log of %s: %w", r.sb.id, err)
	}
	if err := l.Send(ctx, s, r.out); err != nil {
		return err
	}
	if len(l.Exited) > 0 && !r.exited {
		if err := s.Send(ctx, aether.MsgExited, l.Exited); err != nil {
			return err
		}
	}
	return s.Close()
}
