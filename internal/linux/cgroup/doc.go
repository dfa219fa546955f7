// Package cgroup keeps sandboxes within their limits and gives shards the groups in which they run commands.
//
// The groups of one instance, on the v2 hierarchy and on each v1 controller that isn't available through v2:
//
//	v2  dsec-INST/keeper                  the keeper
//	v2  dsec-INST/shard-N/self            the shard's own process; root's, never frozen, no limits
//	v2  dsec-INST/shard-N/BOX/EXEC        a sandbox: its init in BOX, each command in a group of its own
//	v1  dsec-INST/shard-N/BOX             memory, cpu, pids: the limits of a sandbox
//
// A v2 hierarchy is always there: where none is mounted the driver holds a detached mount of its own, because
// joining by birth, killing and freezing a whole group exist only in v2. Where v2 also has memory, cpu and pids, they
// are used there and no v1 group is made; BOX then holds processes and groups at once, which v2 allows as long as
// BOX's own cgroup.subtree_control stays empty. It always does.
//
// What belongs to the shard's user, each because the kernel refuses without it: cgroup.procs of shard-N, as the common
// ancestor of what the shard moves; the directory BOX, to make EXEC in; cgroup.procs, cgroup.kill and cgroup.freeze of
// BOX; and cgroup.procs of the v1 BOX. Limits, cgroup.subtree_control and everything else stay root's.
// memory.oom.group is never set: it would kill the shard's helper, which shares the shard's memory while it joins.
//
// [Driver], [Shard] and [Box] are the side that is root; [Dirs] is the unprivileged side in the shard. All of them are
// safe for concurrent use: they hold nothing but descriptors and names, and the kernel orders the rest. Only two calls of
// [Box.SetLimits] on one box need their caller to put one after the other.
package cgroup
