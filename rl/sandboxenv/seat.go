package sandboxenv

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/rl/env"
)

// seat is one row: a sandbox, and the episode in it.
type seat struct {
	batch *Batch
	row   *env.Buffers
	box   *libdsec.Sandbox
	doing Episode

	seed, episode uint64
	steps         int
	earned        float64
	cost          Cost      // of the last call
	ended         env.Stats // by it
}

// lostError says that a failure was DSec's.
type lostError struct{ err error }

func (e *lostError) Error() string { return e.err.Error() }
func (e *lostError) Unwrap() error { return e.err }

// begin starts the next episode in a fresh sandbox. A sandbox that fails is replaced a few times.
func (s *seat) begin(ctx context.Context) error {
	seed := s.seed
	if s.episode > 0 {
		seed = env.SeedOf(s.seed, s.episode)
	}
	s.episode++
	var errs []error
	for range s.batch.cfg.Tries {
		err := s.tryBegin(ctx, seed)
		if err == nil {
			return nil
		}
		if _, lost := errors.AsType[*lostError](err); !lost {
			return err
		}
		errs = append(errs, err)
	}
	return fmt.Errorf("no sandbox to begin an episode in: %w", errors.Join(errs...))
}

func (s *seat) tryBegin(ctx context.Context, seed uint64) error {
	s.leave() //nolint:contextcheck // a used sandbox is stopped whatever becomes of the step
	start := time.Now()
	box, err := s.batch.pool.Get(ctx)
	s.cost.Waiting += time.Since(start)
	switch {
	case err != nil && (ctx.Err() != nil || errors.Is(err, errClosed)):
		return err
	case err != nil:
		return &lostError{err}
	}
	s.box, s.doing, s.steps, s.earned = box, s.batch.task.Begin(seed), 0, 0
	s.cost.Episodes++
	res, err := s.exec(ctx, s.doing.Setup())
	if err != nil {
		return err
	}
	if res.ExitCode == nil || *res.ExitCode != 0 {
		return fmt.Errorf("set-up of %s ended with %+v: %s", s.batch.spec.Name, res.ExitStatus, res.Stderr)
	}
	s.doing.Observe(res, s.row.ObsF32)
	return nil
}

// leave gives the sandbox back.
func (s *seat) leave() {
	if s.box != nil {
		s.batch.pool.Put(s.box)
		s.box = nil
	}
}

// step does the row's action.
func (s *seat) step(ctx context.Context) error {
	s.cost.Steps++
	last, verdict, err := s.act(ctx)
	if _, lost := errors.AsType[*lostError](err); lost {
		// The row says nothing of this step: the episode broke off, and what is seen is the next one's.
		s.row.Masks[0] = 0
		s.cost.Masked++
		return s.begin(ctx)
	}
	if err != nil {
		return err
	}
	s.steps++
	s.earned += float64(verdict.Reward)
	s.row.Rewards[0] = verdict.Reward
	s.doing.Observe(last, s.row.ObsF32)
	switch most := s.batch.cfg.MaxSteps; {
	case verdict.Over:
		s.row.Terminals[0] = 1
	case most > 0 && s.steps >= most:
		s.row.Truncations[0] = 1
	default:
		return nil
	}
	s.row.KeepFinal(0)
	s.ended = env.Stats{Episodes: 1, Return: s.earned, Length: float64(s.steps), Score: s.earned / float64(s.steps)}
	return s.begin(ctx)
}

// act runs the action's command and its verifier, and returns the last result.
func (s *seat) act(ctx context.Context) (last *libdsec.Result, _ Verdict, _ error) {
	acted, err := s.exec(ctx, s.doing.Act(s.row.Choices))
	if err != nil {
		return nil, Verdict{}, err
	}
	verifier := s.doing.Verify()
	if verifier == nil {
		return acted, s.doing.Judge(acted, nil), nil
	}
	verified, err := s.exec(ctx, *verifier)
	if err != nil {
		return nil, Verdict{}, err
	}
	if verified.ExitCode == nil { // killed: nothing is known of what the action did
		return nil, Verdict{}, &lostError{fmt.Errorf("verifier: %+v", verified.ExitStatus)}
	}
	return verified, s.doing.Judge(acted, verified), nil
}

// exec runs a command. What is DSec's failure is a lostError, what is the command's is a result.
func (s *seat) exec(ctx context.Context, cmd libdsec.Cmd) (*libdsec.Result, error) {
	cfg := &s.batch.cfg
	if cmd.Timeout == 0 || cmd.Timeout > cfg.Timeout {
		cmd.Timeout = cfg.Timeout
	}
	limited, cancel := context.WithTimeout(ctx, cmd.Timeout+cfg.Grace)
	defer cancel()
	start := time.Now()
	res, err := s.box.Exec(limited, cmd)
	s.cost.Running += time.Since(start)
	s.cost.Commands++
	if e, ok := errors.AsType[*api.Error](err); ok && e.ExitCode != nil { // not found, not executable: as a shell says it
		return &libdsec.Result{ExitStatus: api.ExitStatus{ExitCode: e.ExitCode}, Stderr: []byte(e.Error())}, nil
	}
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, &lostError{err}
	case res.InfraError != "":
		return nil, &lostError{errors.New(res.InfraError)}
	}
	if res.TimedOut {
		s.cost.TimedOut++
	}
	return res, nil
}
