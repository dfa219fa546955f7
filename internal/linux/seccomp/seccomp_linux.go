package seccomp

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrArch says that there is no filter for this processor.
var ErrArch = errors.New("no seccomp filter for this architecture")

// instruction is laid out as struct sock_filter.
type instruction struct {
	code   uint16
	jt, jf uint8 // how many instructions to skip
	k      uint32
}

// Program is a filter ready to be loaded. It must stay reachable as long as its address is in use.
type Program struct {
	fprog unix.SockFprog
	insns []instruction
}

// Default is the filter of a sandbox's commands, or [ErrArch]. Each call makes a copy: make one at start and keep it.
func Default() (*Program, error) {
	insns := program()
	if len(insns) == 0 {
		return nil, ErrArch
	}
	first := (*unix.SockFilter)(unsafe.Pointer(&insns[0]))
	return &Program{fprog: unix.SockFprog{Len: uint16(len(insns)), Filter: first}, insns: insns}, nil
}

// Addr is the address of a struct sock_fprog, the third argument of seccomp(SECCOMP_SET_MODE_FILTER, 0, addr). Neither
// it nor the instructions that it points at ever move: Go doesn't move what is on the heap, and both are.
func (p *Program) Addr() uintptr { return uintptr(unsafe.Pointer(&p.fprog)) }

// Len is the number of instructions.
func (p *Program) Len() int { return len(p.insns) }
