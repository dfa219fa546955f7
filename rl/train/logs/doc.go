// Package logs tells of training runs: as lines of tab-separated numbers, as lines of JSON, as TensorBoard's event
// files, and on a terminal.
//
// Each sink takes every train.Progress; [All] makes one hook of several. A run that goes on from a checkpoint does some
// updates again: the sinks that are files for a run forget what they had of them, so that each update is there once.
// TensorBoard does that by itself.
//
// A sink belongs to the goroutine of its run.
package logs

import (
	"errors"

	"github.com/dsec-io/dsec/rl/train"
)

// Sink takes what a run tells.
type Sink interface {
	// Resumed is told before the first update of a run that goes on: what was taken of later ones is void.
	Resumed(update int) error
	Take(p train.Progress) error
	Close() error
}

// All returns hooks that tell every sink.
func All(sinks ...Sink) train.Hooks {
	each := func(do func(Sink) error) error {
		var errs []error
		for _, s := range sinks {
			errs = append(errs, do(s))
		}
		return errors.Join(errs...)
	}
	return train.Hooks{
		Resumed: func(update int) error { return each(func(s Sink) error { return s.Resumed(update) }) },
		Update:  func(p train.Progress) error { return each(func(s Sink) error { return s.Take(p) }) },
	}
}

// Scalar is one number of a Progress, with the name that it has in every log.
type Scalar struct {
	Name  string
	Value float64
}

// Scalars lists the numbers of a Progress, always in the same order.
func Scalars(p train.Progress) []Scalar {
	return []Scalar{
		{"update", float64(p.Update)},
		{"steps", float64(p.Steps)},
		{"seconds", p.Elapsed.Seconds()},
		{"steps_per_second", p.SPS},
		{"episodes", float64(p.Episodes.Episodes)},
		{"episode_return", p.Episodes.Return},
		{"episode_length", p.Episodes.Length},
		{"episode_score", p.Episodes.Score},
		{"policy_loss", p.Loss.Policy},
		{"value_loss", p.Loss.Value},
		{"entropy", p.Loss.Entropy},
		{"old_approx_kl", p.Loss.OldKL},
		{"approx_kl", p.Loss.KL},
		{"clip_fraction", p.Loss.ClipFraction},
		{"importance", p.Loss.Ratio},
		{"explained_variance", p.Loss.Explained},
		{"grad_norm", p.GradNorm},
		{"learning_rate", p.Rate},
		{"minibatches", float64(p.Batches)},
		{"time_env", p.Phases.Env.Seconds()},
		{"time_policy", p.Phases.Policy.Seconds()},
		{"time_gather", p.Phases.Gather.Seconds()},
		{"time_forward", p.Phases.Forward.Seconds()},
		{"time_backward", p.Phases.Back.Seconds()},
	}
}
