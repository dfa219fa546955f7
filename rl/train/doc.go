// Package train learns a policy by PPO: it steps a vector of environments, keeps what happened in a ring, and learns
// from it, update after update.
//
//	cfg := train.Config{Seed: 1, Steps: 2_000_000, Folder: "runs/squared"}
//	result, err := train.Run(ctx, cfg, maker, train.Hooks{Update: func(p train.Progress) error { ... }})
//
// Everything that is learnt is a function of Config and the environments: the same seed gives the same bits, whatever
// the number of workers, on the same kind of processor (see f32.Backend).
//
// A run with a Folder writes checkpoints there, every Config.CheckpointEvery updates and at its end. A run that finds
// one goes on from it, and ends with the same bits as if it had never stopped, whatever stopped it and when. To make
// that possible without asking environments for their state, each checkpoint is a new beginning for them: they are reset
// with a seed derived from the number of updates, in a run that goes on as in one that is resumed, and even in one without
// a Folder. A checkpoint replaces the one before it at once: there's always a whole one.
//
// What differs from PufferLib, on purpose: a truncated episode is bootstrapped with the value of its final observation;
// the last step of a rollout is learnt from; states of an LSTM are zeroed when an episode ends, and training begins each
// segment with the state that it really began with; rewards aren't clamped, unless Learn.RewardClip says so; rows and
// choices that are masked are left out of the loss; no number has to divide another.
//
// Run belongs to one goroutine; hooks are called on it.
package train
