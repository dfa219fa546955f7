// Package keeper holds what must not die with a shard.
//
// A keeper is a tiny process, the parent of an instance's shards and a subreaper. For each shard it keeps the items
// that the shard has put there: a key, an opaque blob and descriptors (pipes, journals, pidfds). When a shard dies the
// keeper starts it again at once and hands every item back, first of all with the exit status of an item whose process
// has ended meanwhile. It never reads from a descriptor it keeps and understands no blob, so nothing that a tenant
// writes is parsed here.
//
// What it promises: an item whose Put has returned survives the shard's death at any later instruction; a status is
// handed out once it is known, from whichever of three sources knows it first (the dead shard's own word, waitid as
// the new parent, PIDFD_GET_INFO when somebody else has reaped). What it doesn't: items die with the keeper. The edge
// then starts a new one, and every living shard puts its items again.
//
// The keeper itself is one event loop on one goroutine, without locks. [Client] (the edge's side) serialises its
// requests and is safe for concurrent use. [Store] (the shard's side) is safe for concurrent use.
package keeper
