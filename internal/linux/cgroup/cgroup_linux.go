// Package cgroup keeps sandboxes within their limits and gives shards the groups in which they run commands.
package cgroup

import (
	"context"
	"errors"
	"time"
)

// Limits bound what a box may use. Zero means no limit.
type Limits struct {
	Memory int64   // bytes of memory; swap is always off
	CPU    float64 // cores
	PIDs   int64   // processes and threads
}

// Usage is what a box uses.
type Usage struct {
	Memory, MemoryPeak, MemoryLimit int64 // bytes; MemoryLimit 0: none
	CPU                             time.Duration
	PIDs                            int64
	OOMKills                        int64
	Throttled                       time.Duration // by the CPU limit
}

// InUseError says that a memory limit can't be lowered, because more than that is in use and can't be reclaimed.
type InUseError struct{ Limit, Usage int64 }

func (e *InUseError) Error() string { return "memory in use" }

// LeftError says what couldn't be removed before the deadline.
type LeftError struct {
	Groups []string // hierarchy:path
	PIDs   []int    // processes still in them
}

func (e *LeftError) Error() string { return "groups left" }

// ErrPopulated says that a group can't be removed because processes live in it.
var ErrPopulated = errors.New("processes live in the group")

// ErrName says that a name isn't one a group may have.
var ErrName = errors.New("not a name for a group")

// Version is the version of the cgroup interface through which a controller is used: 1 or 2.
type Version int

// Layout tells where this machine has the controllers.
type Layout struct {
	Memory, CPU, PIDs Version
	OwnMount          bool // cgroup2 wasn't mounted anywhere, so the driver holds a detached mount of its own
}

// Driver makes an instance's groups.
type Driver struct{}

// Open finds the hierarchies and makes dsec-INSTANCE in each.
func Open(instance string) (*Driver, error) { return nil, errors.ErrUnsupported }

// Close gives the descriptors back and leaves all groups as they are.
func (d *Driver) Close() error { return nil }

// Layout tells where the controllers were found.
func (d *Driver) Layout() Layout { return Layout{} }

// Keeper makes dsec-INSTANCE/keeper, if need be, and opens it for CLONE_INTO_CGROUP. The caller closes the descriptor.
func (d *Driver) Keeper() (int, error) { return -1, errors.ErrUnsupported }

// Shard makes the groups of the shard called name ("shard-0"), or opens those that exist, with uid as the shard's own.
func (d *Driver) Shard(name string, uid int) (*Shard, error) { return nil, errors.ErrUnsupported }

// ShardBoxes is one shard with its boxes, as found by [Driver.List].
type ShardBoxes struct {
	Shard string
	Boxes []string
}

// List tells what groups of this instance exist in any hierarchy.
func (d *Driver) List() ([]ShardBoxes, error) { return nil, errors.ErrUnsupported }

// RemoveAll kills everything in the groups of instance, keeper and shards too, and removes them.
func RemoveAll(ctx context.Context, instance string) error { return errors.ErrUnsupported }

// Shard is the groups of one shard.
type Shard struct{}

// Dirs are the shard's directories, for the shard itself; valid until [Shard.Close].
func (s *Shard) Dirs() Dirs { return Dirs{} }

// Self is shard-N/self, for CLONE_INTO_CGROUP; valid until [Shard.Close].
func (s *Shard) Self() int { return -1 }

// Box makes the groups of a sandbox with its limits. It is an error (fs.ErrExist) if there are some.
func (s *Shard) Box(name string, l Limits) (*Box, error) { return nil, errors.ErrUnsupported }

// OpenBox opens the groups of a sandbox that exists; fs.ErrNotExist if there are none.
func (s *Shard) OpenBox(name string) (*Box, error) { return nil, errors.ErrUnsupported }

// Remove kills and removes all of the shard's groups.
func (s *Shard) Remove(ctx context.Context) error { return errors.ErrUnsupported }

// Close gives the descriptors back and leaves the groups as they are.
func (s *Shard) Close() error { return nil }

// Box is the groups of one sandbox. It holds no descriptors of its own and needs no Close; its Shard must stay open.
type Box struct{}

// Join is what a process needs to be in a box: V2 for CLONE_INTO_CGROUP, Procs to write "0" to each.
type Join struct {
	V2    int
	Procs []int
}

// Close closes the descriptors.
func (j Join) Close() error { return nil }

// JoinFDs opens what a process needs to join the box. The caller closes it.
func (b *Box) JoinFDs() (Join, error) { return Join{}, errors.ErrUnsupported }

// SetLimits changes the limits; *InUseError if more memory than the new limit is in use, and then nothing has changed.
func (b *Box) SetLimits(l Limits) error { return errors.ErrUnsupported }

// Usage reads the box's counters.
func (b *Box) Usage() (Usage, error) { return Usage{}, errors.ErrUnsupported }

// Kill kills every process of the box, frozen ones too. It doesn't wait.
func (b *Box) Kill() error { return errors.ErrUnsupported }

// Freeze stops every process of the box and returns when all have stopped.
func (b *Box) Freeze(ctx context.Context) error { return errors.ErrUnsupported }

// Thaw undoes Freeze.
func (b *Box) Thaw(ctx context.Context) error { return errors.ErrUnsupported }

// Frozen tells if the box's processes have all stopped by a freeze.
func (b *Box) Frozen() (bool, error) { return false, errors.ErrUnsupported }

// Remove kills what lives in the box, waits for its end until ctx ends (5 s if ctx has no deadline) and removes the
// groups. What can't be removed is told by a *LeftError. A box that is gone already is no error.
func (b *Box) Remove(ctx context.Context) error { return errors.ErrUnsupported }

// CPUs is the number of processors that a limit of cores shows in a sandbox: the next whole number, at least 1.
func CPUs(cores float64) int { return 1 }

// Dirs are a shard's group directories as O_PATH descriptors: all that a shard has of the file system. A v1 field is
// -1 where that controller is used through v2. All methods work for the unprivileged shard.
type Dirs struct{ V2, Memory, CPU, PIDs int }

// MakeExec makes the group of one command.
func (d Dirs) MakeExec(box, exec string) error { return errors.ErrUnsupported }

// OpenExec opens a command's group for CLONE_INTO_CGROUP.
func (d Dirs) OpenExec(box, exec string) (int, error) { return -1, errors.ErrUnsupported }

// OpenProcs opens the box's v1 cgroup.procs files, to each of which the child writes "0"; none on a v2 host. It
// appends to fds, so that a caller may reuse its array.
func (d Dirs) OpenProcs(fds []int, box string) ([]int, error) { return fds, errors.ErrUnsupported }

// KillExec kills every process in the command's group.
func (d Dirs) KillExec(box, exec string) error { return errors.ErrUnsupported }

// KillBox kills every process in the box, its init too.
func (d Dirs) KillBox(box string) error { return errors.ErrUnsupported }

// RemoveExec removes the command's group; ErrPopulated when the command has left processes; no error if it is gone.
func (d Dirs) RemoveExec(box, exec string) error { return errors.ErrUnsupported }

// Execs lists the groups of commands in the box.
func (d Dirs) Execs(box string) ([]string, error) { return nil, errors.ErrUnsupported }

// Frozen tells if the box is frozen or about to be, so that nothing can be started in it.
func (d Dirs) Frozen(box string) (bool, error) { return false, errors.ErrUnsupported }

// OOMKills counts the box's processes that the kernel has killed for want of memory.
func (d Dirs) OOMKills(box string) (int64, error) { return 0, errors.ErrUnsupported }

// Populated tells if a process lives in the command's group; false if the group is gone.
func (d Dirs) Populated(box, exec string) (bool, error) { return false, errors.ErrUnsupported }
