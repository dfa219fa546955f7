// Package edge owns the sandboxes of one machine: it admits them, has a [Backend] make them, keeps their records, finds
// them again after its own death, ends them in time, and is the only way to them for everybody else.
//
// It promises that a sandbox which was answered for survives the edge (kill -9 included) and is adopted by the next one
// on the same data folder; that what was never answered for leaves nothing; that admission holds at any concurrency;
// and that a project never learns of another's sandboxes. It stores no bytes of a command: those pass from the aether
// of the sandbox to the caller frame by frame.
//
// Everything exported is safe for concurrent use. Lock order: sandbox.work, Edge.mu, sandbox.mu, then the leaf locks
// (the room's, the events' own). No lock but sandbox.work is held across a call into the backend.
package edge
