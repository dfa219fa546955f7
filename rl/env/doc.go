// Package env says what an environment is: spaces, buffers, and the two interfaces that everything else in rl steps.
//
// The semantics are Gymnasium's. An episode ends in one of two ways that are never mixed up: Terminals says that the
// task is over and nothing more can be earned, Truncations says that somebody stopped looking (a time limit) and the
// value of the final observation is still to be counted. A learner that bootstraps takes V(Final) where a row is
// truncated, 0 where it's terminated, and cuts its recurrence at both.
//
// [Batch] is the native form: it steps many environments in one call and works in place on [Buffers], arrays of
// structs turned into structs of arrays, which belong to the caller and are shared without copies. A Batch resets by
// itself in the same step: where a row is done, Obs holds the first observation of the next episode and Final the last
// of the one that ended. Every row of every step is a real transition.
//
// [Env] is the easy form: one environment that doesn't reset itself. Package vec makes a Batch of them.
//
// Everything is deterministic by seed, whatever the number of workers: randomness comes from [Rand], one stream per
// environment, seeded by [SeedOf].
//
// Neither form is safe for concurrent use; different environments share nothing.
package env
