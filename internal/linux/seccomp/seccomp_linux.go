package seccomp

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrArch says that there is no filter for this processor.
var ErrArch = errors.New("no seccomp filter for this architecture")

// Program is a filter ready to be loaded. It must stay reachable as long as its address is in use.
type Program struct {
	fprog unix.SockFprog
	insns []unix.SockFilter
}

// Default is the filter of a sandbox's commands, or [ErrArch]. Each call makes a copy: make one at start and keep it.
func Default() (*Program, error) {
	insns := program()
	if len(insns) == 0 {
		return nil, ErrArch
	}
	return &Program{fprog: unix.SockFprog{Len: uint16(len(insns)), Filter: &insns[0]}, insns: insns}, nil
}

// Addr is the address of a struct sock_fprog, the third argument of seccomp(SECCOMP_SET_MODE_FILTER, 0, addr). Neither
// it nor the instructions that it points at ever move: Go doesn't move what is on the heap, and both are.
func (p *Program) Addr() uintptr { return uintptr(unsafe.Pointer(&p.fprog)) }

// Len is the number of instructions.
func (p *Program) Len() int { return len(p.insns) }
