package container

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/edge"
	"github.com/dsec-io/dsec/internal/linux/proc"
)

// pauseTime bounds a pause or resume whose caller gave no deadline.
const pauseTime = 10 * time.Second

// Pause makes every process of the sandbox stand still. The shard does it, which knows what it is about to start there.
func (x *box) Pause(ctx context.Context) error {
	limit, cancel := context.WithTimeout(ctx, pauseTime)
	defer cancel()
	end, _ := limit.Deadline()
	// The shard gives up a little earlier, so that its answer says what was in the way.
	left := time.Until(end) - min(time.Until(end)/10, 100*time.Millisecond)
	ms := strconv.FormatInt(max(left.Milliseconds(), 1), 10)
	err := x.call(limit, "box.pause", []byte(ms))
	if err == nil {
		return nil
	}
	undo, cancel := settling(ctx)
	defer cancel()
	err = fmt.Errorf("pause %s: %w", x.id, x.explain(undo, err))
	// Whether an answer was lost or there was none: it goes on.
	if uerr := x.Resume(undo); uerr != nil && !x.isDead() {
		return fmt.Errorf("%w: %w, then %w", edge.ErrStuck, err, uerr)
	}
	return err
}

// Resume has them go on. When the shard can't be told, it finds out by itself.
func (x *box) Resume(ctx context.Context) error {
	limit, cancel := context.WithTimeout(ctx, pauseTime)
	defer cancel()
	err := x.call(limit, "box.resume", nil)
	if err == nil {
		return nil
	}
	undo, cancel := settling(ctx)
	defer cancel()
	if terr := x.groups.Thaw(undo); terr != nil {
		return fmt.Errorf("resume %s: %w", x.id, errors.Join(err, terr))
	}
	x.b.log.Warn("sandbox resumed without its shard", slog.String("sandbox", x.id), slog.Any("err", err))
	return nil
}

// Paused tells whether the sandbox is frozen or about to be.
func (x *box) Paused() (bool, error) { return x.groups.Frozen() }

// call asks the shard for something about the sandbox, again when the shard dies meanwhile.
func (x *box) call(ctx context.Context, method string, body []byte) error {
	for {
		conn, err := x.sh.connection(ctx)
		if err == nil {
			_, err = aether.Unary(ctx, conn, aether.Open{Method: method, Sandbox: x.id, Project: x.st.Project, Body: body})
		}
		if !errors.Is(err, aether.ErrConnLost) || ctx.Err() != nil || x.isDead() {
			return err
		}
	}
}

// explain adds which processes of the sandbox the kernel can't stop, by their numbers inside it.
func (x *box) explain(ctx context.Context, err error) error {
	e, ok := errors.AsType[*api.Error](err)
	if !ok || e.Code != api.CodeConflict {
		return err
	}
	told := *e
	// The thaw has woken them for a moment: most likely they wait again.
	for pause := time.Millisecond; pause < 500*time.Millisecond; pause *= 4 {
		for _, w := range x.waiting() {
			told.Detail += fmt.Sprintf("; process %d (%s) waits in the kernel for %s", w.Inside, w.Name, w.For)
		}
		if told.Detail != e.Detail {
			break
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
	return &told
}

// waiting lists some of the processes that no signal stops.
func (x *box) waiting() []proc.Waiting {
	groups, err := x.groups.Processes()
	if err != nil {
		return nil
	}
	var found []proc.Waiting
	for _, pids := range groups {
		for _, pid := range pids {
			if w, ok := proc.Waits(pid); ok && len(found) < maxTold {
				found = append(found, w)
			}
		}
	}
	return found
}

// maxTold bounds how many processes an error names.
const maxTold = 4
