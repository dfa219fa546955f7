package train

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/dsec-io/dsec/rl/env"
	"github.com/dsec-io/dsec/rl/nn"
	"github.com/dsec-io/dsec/rl/vec"
)

// Hooks are called while a run goes on; each may be nil. An error of one ends the run.
type Hooks struct {
	// Resumed is called before the first update of a run that goes on from a checkpoint, with the number of updates
	// that it has: what was logged of later ones is going to happen again.
	Resumed func(update int) error
	Update  func(Progress) error
	// Saved is called after a checkpoint has been written.
	Saved func(update int) error
}

// Result is what a run came to.
type Result struct {
	Policy  *nn.Policy
	Updates int
	Steps   int64
	Last    Progress // of the last update; zero where there was none left to do
}

// ErrStopped is what a hook returns to end a run in good order: Run returns its result so far, and no error.
var ErrStopped = errors.New("training: stopped")

// Run trains until Config.Steps, an error, or the end of ctx. Where Config.Folder has a checkpoint of the same Config,
// it goes on from there. A run that ends early writes no other checkpoint than those that are due, because going on
// from one would not give the same as going on without.
func Run(ctx context.Context, cfg Config, maker vec.Maker, hooks Hooks) (result Result, err error) {
	t, err := newTrainer(cfg, maker)
	if err != nil {
		return Result{}, err
	}
	defer func() { err = errors.Join(err, t.v.Close()) }()
	if err := t.prepare(ctx, hooks); err != nil {
		return Result{}, err
	}
	begun, last := time.Now(), Progress{}
	for t.update < t.updates() {
		if err := context.Cause(ctx); err != nil {
			return t.result(last), err
		}
		if last, err = t.one(ctx, begun); err != nil {
			return t.result(last), fmt.Errorf("update %d: %w", t.update+1, err)
		}
		switch err := t.after(ctx, last, hooks); {
		case errors.Is(err, ErrStopped):
			return t.result(last), nil
		case err != nil:
			return t.result(last), err
		}
	}
	return t.result(last), nil
}

func (t *trainer) result(last Progress) Result {
	return Result{Policy: t.policy, Updates: t.update, Steps: t.steps, Last: last}
}

// prepare resumes a run, or begins it.
func (t *trainer) prepare(ctx context.Context, hooks Hooks) error {
	if t.cfg.Folder != "" {
		if err := os.MkdirAll(t.cfg.Folder, 0o755); err != nil {
			return fmt.Errorf("folder of the run: %w", err)
		}
		if err := t.resume(); err != nil {
			return err
		}
	}
	if err := t.restart(ctx); err != nil {
		return err
	}
	if t.update > 0 && hooks.Resumed != nil {
		return hooks.Resumed(t.update)
	}
	return nil
}

// one does one update.
func (t *trainer) one(ctx context.Context, begun time.Time) (Progress, error) {
	start, before := time.Now(), t.steps
	t.took = Phases{}
	if err := t.collect(ctx); err != nil {
		return Progress{}, err
	}
	u, err := t.learn()
	if err != nil {
		return Progress{}, err
	}
	t.update++
	p := Progress{
		Update: t.update, Updates: t.updates(), Steps: t.steps, Elapsed: time.Since(begun),
		SPS: float64(t.steps-before) / time.Since(start).Seconds(), Rate: float64(u.rate), Batches: u.batches, Phases: t.took,
	}
	p.Loss, p.GradNorm = u.mean()
	if taker, ok := t.v.(env.StatsTaker); ok {
		p.Episodes = taker.TakeStats().Mean()
	}
	return p, nil
}

// after tells of an update, and writes the checkpoint that may be due.
func (t *trainer) after(ctx context.Context, p Progress, hooks Hooks) error {
	if hooks.Update != nil {
		if err := hooks.Update(p); err != nil {
			return err
		}
	}
	if t.update%t.cfg.CheckpointEvery != 0 && t.update < t.updates() {
		return nil
	}
	if t.cfg.Folder != "" {
		if err := t.save(); err != nil {
			return err
		}
	}
	if t.update < t.updates() {
		if err := t.restart(ctx); err != nil {
			return err
		}
	}
	if hooks.Saved != nil && t.cfg.Folder != "" {
		return hooks.Saved(t.update)
	}
	return nil
}
