// Package seccomp holds the system call filter that every command in a sandbox runs under.
//
// The filter is docker's default profile for the fourteen capabilities of package caps, plus our own denials, compiled
// ahead of time into a tree over ranges of system call numbers (see gen). What costs time in a filter is loading it,
// and that grows with instructions times path length, so the tree's shape is the point of this package.
//
// A Program is immutable and safe for concurrent use.
package seccomp

import "errors"

// ErrArch says that there is no filter for this processor.
var ErrArch = errors.New("no seccomp filter for this architecture")

// Program is a filter ready to be loaded. It must stay reachable while its address is in use.
type Program struct{}

// Default is the filter of a sandbox's commands, or [ErrArch].
func Default() (*Program, error) { return nil, ErrArch }

// Addr is the address of a struct sock_fprog, the third argument of seccomp(SECCOMP_SET_MODE_FILTER, 0, addr). Neither
// it nor the instructions that it points at ever move.
func (p *Program) Addr() uintptr { return 0 }

// Len is the number of instructions.
func (p *Program) Len() int { return 0 }

// Load puts the calling thread, and what it will start, under the filter for good.
func (p *Program) Load() error { return ErrArch }
