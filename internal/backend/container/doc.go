// Package container makes sandboxes of namespaces: the backend "container".
//
// A sandbox is a process that sleeps (its PID 1), in seven namespaces of its own, on an overlay over a shared read-only
// image. It is made by one script of raw system calls (see create), and entered only through the aether of its shard: an
// unprivileged process, one for up to 128 sandboxes of one project, whose only power is that it owns their user
// namespaces. Shards are children of the keeper, which restarts them; sandboxes outlive this process, the shard and the
// keeper.
//
// The package promises: a Start that fails leaves nothing, whatever step it failed at; a sandbox that was persisted can
// be adopted or cleaned by the next process; Stop returns when the sandbox's processes are dead, and repeats are
// harmless. It does not limit how many sandboxes there are, and keeps no record: that is the edge's.
//
// Everything exported is safe for concurrent use. Lock order: Backend.mu, shard.mu, box.mu; none is held across a
// system call that may wait for a tenant.
package container
