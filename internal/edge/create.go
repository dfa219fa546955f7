package edge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/edge/admission"
	"github.com/dsec-io/dsec/internal/edge/records"
	"github.com/dsec-io/dsec/internal/edge/spec"
)

// create makes a sandbox and returns when it answers, its start process running. An error, or the end of ctx before
// that, leaves nothing behind. An id that isn't "" was picked before.
func (e *Edge) create(ctx context.Context, project, id string, want api.Spec) (*sandbox, error) {
	begun := time.Now()
	sb, err := e.tryCreate(ctx, project, id, want)
	e.met.creates.WithLabelValues(result(err)).Inc()
	if err == nil {
		e.met.took("create", begun)
	}
	return sb, err
}

func (e *Edge) tryCreate(ctx context.Context, project, id string, want api.Spec) (*sandbox, error) {
	if project == "" {
		return nil, api.Errorf(api.CodeUnauthenticated, "the stream names no project")
	}
	sb, err := e.admit(ctx, project, id, want)
	if err != nil {
		return nil, err
	}
	if err := e.build(ctx, sb); err != nil {
		// The caller is told once nothing is left of it.
		e.undo(sb)
		e.log.Info("create failed", sb.attr(), slog.String("project", project), slog.Any("err", err))
		return nil, createError(err)
	}
	e.log.Info("sandbox runs", sb.attr(), slog.String("project", project), slog.String("image", sb.rec.Spec.Image))
	return sb, nil
}

// admit refuses a sandbox, or reserves what it needs and makes it known.
func (e *Edge) admit(ctx context.Context, project, id string, want api.Spec) (*sandbox, error) {
	rec := e.plans.take(id)
	if rec == nil {
		var err error
		if rec, err = e.plan(ctx, project, want); err != nil {
			e.drop(id)
			return nil, err
		}
		if id != "" && rec.ID != id { // it stands in another's records
			e.drop(rec.ID)
			rec.ID = id
		}
	}
	if err := e.room.Reserve(rec.ID, admission.ClaimOf(rec.Spec.Resources)); err != nil {
		e.drop(rec.ID)
		return nil, err
	}
	sb, err := e.enter(rec)
	if err != nil {
		e.room.Release(rec.ID)
		e.drop(rec.ID)
		return nil, err
	}
	return sb, nil
}

// plan is everything that can be refused before anything is reserved. Its id may be that of a sandbox which the backend
// has ready: drop gives it back.
func (e *Edge) plan(ctx context.Context, project string, want api.Spec) (*records.Record, error) {
	// What is wrong with the spec itself is told even when the image is missing too.
	if _, err := spec.Effective(want, ImageConfig{}); err != nil {
		return nil, err
	}
	img, err := e.cfg.Image(ctx, want.Image)
	if err != nil {
		return nil, err
	}
	want, err = spec.Effective(want, img)
	if err != nil {
		return nil, err
	}
	if err := admission.Possible(want.Resources); err != nil {
		return nil, err
	}
	rec := &records.Record{
		Version: records.Version, Instance: e.cfg.Instance.ID, BootID: e.boot, Project: project,
		Spec: want, ImageEnv: img.Env, ImageCommand: img.DefaultCommand(), State: api.StateCreating, Backend: e.cfg.Backend.Name(),
	}
	rec.ID = e.idFor(rec, img.Digest)
	return rec, nil
}

func (e *Edge) build(ctx context.Context, sb *sandbox) error {
	// It reaches the disk with the next one: until then the sandbox is half-made, and goes with this process.
	sb.events.Begin("created", map[string]any{"image": sb.rec.Spec.Image})
	box, err := e.cfg.Backend.Start(ctx, BoxParams{
		ID: sb.id, Project: sb.project, Spec: sb.rec.Spec, Env: sb.env.Strings(),
		Persist: func(state json.RawMessage) error { return e.persist(sb, state) },
	})
	if err != nil {
		return err
	}
	sb.mu.Lock()
	sb.box, sb.rec.BackendState = box, box.State()
	sb.mu.Unlock()
	if err := e.cfg.Faults.At("create:made"); err != nil {
		return err
	}
	if len(sb.rec.Spec.Command) > 0 {
		if err := e.startCommand(ctx, sb, box); err != nil {
			return err
		}
	}
	return e.open(ctx, sb, box)
}

// open is the point of no return: from here on the sandbox runs, whoever asked for it.
func (e *Edge) open(ctx context.Context, sb *sandbox, box Box) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	sb.mu.Lock()
	ready := *sb.rec
	ready.State, ready.StartedAt, ready.Life.Started = api.StateRunning, new(e.cfg.Clock().UTC()), uptime()
	// Unlike later changes this one must reach the disk: a sandbox that was answered for is never taken for half-made.
	err := e.store.Save(&ready)
	if err == nil {
		*sb.rec = ready
		e.met.state(api.StateCreating, api.StateRunning)
		close(sb.changed)
		sb.changed = make(chan struct{})
	}
	sb.mu.Unlock()
	if err != nil {
		return err
	}
	e.room.Made(sb.id)
	sb.active.Touch(uptime())
	e.tell(sb, "running", "", nil)
	e.goTask(func() { e.watch(sb, box) })
	return nil
}

func (e *Edge) persist(sb *sandbox, state json.RawMessage) error {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	sb.rec.BackendState = state
	return e.store.Save(sb.rec)
}

// undo takes away a sandbox that never ran. What can't be removed now stays on record as failed, and is tried again.
func (e *Edge) undo(sb *sandbox) {
	ctx, cancel := context.WithTimeout(context.Background(), e.cfg.StopTimeout)
	defer cancel()
	sb.mu.Lock()
	box, state := sb.box, sb.rec.BackendState
	sb.box = nil
	sb.mu.Unlock()
	var err error
	if box != nil {
		err = box.Stop(ctx)
	}
	if err != nil || box == nil && state != nil {
		err = e.cfg.Backend.Clean(ctx, sb.id, state)
	}
	if err == nil {
		err = e.leave(sb)
		e.room.Release(sb.id)
	}
	if err != nil {
		e.log.Error("half-made sandbox not removed", sb.attr(), slog.Any("err", err))
		sb.mu.Lock()
		sb.rec.Unclean = true
		e.moveLocked(sb, api.StateFailed, "its creation failed")
		sb.mu.Unlock()
	}
}

// startCommand starts the spec's command; its output is the sandbox's log.
func (e *Edge) startCommand(ctx context.Context, sb *sandbox, box Box) error {
	x := aether.ExecStart{ID: startProcess, Keep: true, Log: true}
	for _, a := range sb.rec.Spec.Command {
		x.Argv = append(x.Argv, []byte(a))
	}
	if err := complete(&x, settled{env: sb.env, spec: sb.rec.Spec}); err != nil {
		return err
	}
	if err := e.cfg.Faults.At("create:command"); err != nil {
		return err
	}
	s, err := box.Open(ctx, aether.Open{Method: "exec", Sandbox: sb.id, Project: sb.project, Body: x.AppendTo(nil)})
	if err != nil {
		return notStarted(ctx, box, err)
	}
	// The process is kept: it goes on without this stream.
	defer s.Reset(nil)
	f, err := s.Recv(ctx)
	if err != nil {
		return lostBeforeStart(ctx, box, err)
	}
	defer f.Release()
	if f.Channel != aether.Message || f.Type != aether.MsgStarted {
		return api.Errorf(api.CodeInternal, "the aether answered the start process with a frame of type %d", f.Type)
	}
	e.met.execs.WithLabelValues("kept", "ok").Inc()
	e.tell(sb, "exec_started", "", execData(startProcess, ""))
	e.awaitKept(sb, box, startProcess)
	return nil
}

// createError says in a typed way why a create failed.
func createError(err error) error { return lifeError("create", err) }

// lifeError says in a typed way why a change of a sandbox's life failed.
func lifeError(what string, err error) error {
	var e *api.Error
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded):
		return api.Errorf(api.CodeTimeout, "the %s was cancelled: %v", what, err)
	case errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT):
		return api.Errorf(api.CodeDiskFull, "%s: %v", what, err)
	case errors.Is(err, unix.EIO):
		e = api.Errorf(api.CodeUnavailable, "%s: %v", what, err)
		e.Hint = "a disk of the machine fails: use another one, and tell its operator"
		return e
	case anyOf(err, aether.ErrConnLost):
		e = api.Errorf(api.CodeUnavailable, "%s: %v", what, err)
		e.Hint, e.RetryMS = "its aether was lost, and is back soon: try again", retryStateMS
		return e
	case anyOf(err, unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EAGAIN):
		e = api.Errorf(api.CodeNoCapacity, "%s: %v", what, err)
		e.Hint, e.RetryMS = "the machine has no more of what this needs: try again later, or stop what isn't used", retryStateMS
		return e
	}
	return fmt.Errorf("%s: %w", what, err)
}

func anyOf(err error, targets ...error) bool {
	return slices.ContainsFunc(targets, func(target error) bool { return errors.Is(err, target) })
}
