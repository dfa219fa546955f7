// Package idem makes a repeated request run once: it keeps, for 24 hours, what was asked for under an idempotency key and
// what came of it.
//
// [Keys] is the table, in memory and in an append-only journal: a key is on record before anything is done for it, so
// that after a kill -9 at any moment a repeat finds either what was made or that nothing was. [Server] serves the
// streams that carry a key: the first of a key runs the request, apart from its caller; the others wait for it and are
// given the same answer. What is on record of a request is hashes, times and the id of what it made, never its body, its
// key or its project; the result of a create is told from the sandbox itself, and other results are files of their own.
//
// Keys are scoped by project. Their number and the size of their results have limits (see [Limits]): over them the
// oldest results go first, then the oldest keys, and when even those are young, a new key is refused.
//
// The journal isn't flushed to the disk: it survives the death of the process; a machine that loses its power loses its
// running sandboxes too.
//
// All methods are safe for concurrent use. Lock order: Keys.mu, then Run.mu.
package idem
