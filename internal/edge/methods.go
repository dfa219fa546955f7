package edge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/edge/admission"
	"github.com/dsec-io/dsec/internal/edge/idem"
	"github.com/dsec-io/dsec/internal/linux/limits"
)

func (e *Edge) serveCreate(ctx context.Context, s *aether.Stream, o aether.Open) error {
	want, err := api.Decode[api.Spec](o.Body)
	if err != nil {
		return err
	}
	sb, err := e.create(ctx, o.Project, "", want)
	if err != nil {
		return err
	}
	err = reply(ctx, s, sb.view())
	if err == nil && !o.Closed {
		err = idem.Confirmed(ctx, s)
	}
	if err != nil {
		// Nobody knows the id, so nobody would ever stop it.
		_, serr := e.stop(context.WithoutCancel(ctx), sb, "its creator went away before the answer")
		return errors.Join(err, serr)
	}
	return nil
}

func (e *Edge) serveList(ctx context.Context, s *aether.Stream, o aether.Open) error {
	var q listQuery
	if len(o.Body) > 0 {
		var err error
		if q, err = api.Decode[listQuery](o.Body); err != nil {
			return err
		}
	}
	page, err := e.list(o.Project, q)
	if err != nil {
		return err
	}
	return reply(ctx, s, page)
}

func (e *Edge) serveStop(ctx context.Context, sb *sandbox, _ struct{}) (any, error) {
	already, err := e.stop(ctx, sb, "stopped on request")
	if err != nil {
		return nil, err
	}
	v := sb.view()
	v.Already = already
	return v, nil
}

func (e *Edge) serveUsage(_ context.Context, sb *sandbox, _ struct{}) (any, error) {
	sb.mu.Lock()
	now := settled{state: sb.rec.State, reason: sb.rec.Reason, box: sb.box, spec: sb.rec.Spec}
	sb.mu.Unlock()
	if now.box == nil {
		return nil, wrongState(sb.id, now)
	}
	u, err := now.box.Usage()
	if err != nil {
		return nil, fmt.Errorf("usage of %s: %w", sb.id, err)
	}
	return api.Usage{
		MemoryBytes: u.MemoryBytes, CacheBytes: u.CacheBytes, PeakBytes: u.PeakBytes, CPUNanos: u.CPUNanos, ThrottledNanos: u.ThrottledNanos,
		PIDs: u.PIDs, PIDsRefused: u.PIDsRefused, OOMKills: u.OOMKills, Limits: now.spec.Resources,
	}, nil
}

// nodeReply is the answer of "node.get".
type nodeReply struct {
	Instance string            `json:"instance"`
	Home     uint32            `json:"home"`
	Backend  string            `json:"backend"`
	States   map[api.State]int `json:"states"` // sandboxes of all projects
	Total    nodeShare         `json:"total"`
	Used     nodeShare         `json:"used"`
	Limits   []limits.Limit    `json:"limits"` // of the kernel
}

type nodeShare struct {
	Sandboxes int64   `json:"sandboxes"`
	MemoryMB  int64   `json:"memory_mb"`
	CPU       float64 `json:"cpu"`
	PIDs      int64   `json:"pids"`
}

func share(c admission.Claim) nodeShare {
	return nodeShare{Sandboxes: c.Sandboxes, MemoryMB: c.MemoryMB, CPU: float64(c.MilliCPU) / 1000, PIDs: c.PIDs}
}

func (e *Edge) serveNode(ctx context.Context, s *aether.Stream, o aether.Open) error {
	if o.Project == "" {
		return api.Errorf(api.CodeUnauthenticated, "the stream names no project")
	}
	n := nodeReply{
		Instance: e.cfg.Instance.ID, Home: e.cfg.Home, Backend: e.cfg.Backend.Name(), States: map[api.State]int{},
		Total: share(e.room.Total()), Used: share(e.room.Used()), Limits: e.cfg.Limits,
	}
	// No sandbox is asked: this says that the edge is well, and one may be waiting for the disk.
	for s, count := range e.met.counts {
		if c := count.Load(); c > 0 {
			n.States[s] = int(c)
		}
	}
	return reply(ctx, s, n)
}

// eventsQuery is the body of "sandbox.events".
type eventsQuery struct {
	Follow bool  `json:"follow,omitempty"`
	Since  int64 `json:"since,omitempty"` // the seq of the last event that the client has
}

// serveEvents writes events as lines of JSON. Following ends with the sandbox's last event.
func (e *Edge) serveEvents(ctx context.Context, s *aether.Stream, o aether.Open) error {
	sb, err := e.find(o.Project, o.Sandbox)
	if err != nil {
		return err
	}
	var q eventsQuery
	if len(o.Body) > 0 {
		if q, err = api.Decode[eventsQuery](o.Body); err != nil {
			return err
		}
	}
	if q.Since < 0 {
		return api.FieldError(api.CodeInvalid, "since", "use the seq of the last event you have, or 0", "%d is negative", q.Since)
	}
	for {
		events, more := sb.events.Since(q.Since)
		if len(events) > 0 {
			q.Since = events[len(events)-1].Seq
			if err := writeLines(ctx, s, events); err != nil {
				return err
			}
		}
		if !q.Follow || more == nil {
			break
		}
		select {
		case <-more:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-e.quit:
			return errClosing()
		}
	}
	if err := s.CloseWrite(aether.Stdout); err != nil {
		return err
	}
	return s.Close()
}

func writeLines(ctx context.Context, s *aether.Stream, events []api.Event) error {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	for _, ev := range events {
		if err := enc.Encode(ev); err != nil {
			return fmt.Errorf("encode event: %w", err)
		}
	}
	return s.Write(ctx, aether.Stdout, buf.Bytes())
}
