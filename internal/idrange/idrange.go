// Package idrange hands out ranges of user and group ids, and single ids for shard owners, so that no two instances of
// DSec on one machine ever use the same.
//
// Instances claim whole chunks in one machine-wide file that only its lock's holder may change; within its chunks an
// instance's [Allocator] hands out in memory. What is in use is known from the instance's own records: after a restart
// they are named again with Take and TakeOwner before anything new is handed out.
package idrange

import "errors"

// Size is the number of ids in a range.
const Size = 65536

// ErrExhausted says that all ids of the machine are claimed.
var ErrExhausted = errors.New("no id range left on this machine")

// ErrNotOurs says that an id isn't in any chunk that this instance has claimed, or is in use already.
var ErrNotOurs = errors.New("id range isn't free in this instance's claim")

// Config says where the claims are and for whom to claim.
type Config struct {
	File     string // default /run/dsec/idranges.json; the lock is beside it, with the ending .lock
	Instance string
	DataDir  string // the instance's data folder, as others find it
	// InUse tells whether anything in the kernel still belongs to an instance. Default: a cgroup dsec-INSTANCE exists.
	InUse func(instance string) bool
}

// Allocator hands out ids of one instance's claim. Safe for concurrent use.
type Allocator struct{}
