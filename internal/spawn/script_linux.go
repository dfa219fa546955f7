package spawn

import (
	"syscall"
	"unsafe"
)

// Script is a list of raw system calls for a vforked child. The zero value is ready. Reset makes it empty again and
// keeps its memory, so a reused script costs no allocation.
type Script struct {
	chunks []*[stepsPerChunk]Step // steps never move: the child and SaveTo hold their addresses
	n      int                    // steps in use
	mem    arena
	block  *block  // what the kernel writes while the child runs
	child  *Script // the script of the last Clone
	watch  watchState
}

const stepsPerChunk = 32

// Step is one system call of a Script. The offsets of its first fields are known to the assembly.
type Step struct {
	nr     uintptr
	args   [6]uintptr
	result uintptr  // what the call returned, as the kernel tells it: -4095…-1 is an error
	saveA  *uintptr // argument words of later steps that take the result
	saveB  *uintptr
	child  *Step // where a clone's child goes on
	next   *Step
	ignore uintptr // 1: an error doesn't end the script
	onErr  *Step   // where to go on after an error that is to be ignored; nil: next
	name   string
}

// block is memory outside every Go stack that the kernel and the child write.
type block struct {
	clone    cloneArgs
	failStep uintptr // address of the step that failed first
	failErr  uintptr // its result
	outerTID int32
	childTID int32
	unborn   int32 // not 0 from the inner child's birth to its exec or end, as the kernel writes
	after    linger
}

// Reset makes s empty and gives its memory to the next use. Addresses from Bytes, String, Strings and Word, and Steps,
// are invalid afterwards.
func (s *Script) Reset() {
	s.n = 0
	s.child = nil
	s.mem.reset()
}

// Call appends a system call. If it fails in the child, the script ends there and the failure is reported by [Run].
func (s *Script) Call(nr uintptr, args ...uintptr) *Step {
	if s.n == len(s.chunks)*stepsPerChunk {
		s.chunks = append(s.chunks, new([stepsPerChunk]Step))
	}
	st := s.step(s.n)
	*st = Step{nr: nr}
	copy(st.args[:], args)
	if s.n > 0 {
		s.step(s.n - 1).next = st
	}
	s.n++
	return st
}

func (s *Script) step(i int) *Step { return &s.chunks[i/stepsPerChunk][i%stepsPerChunk] }

// Len is the number of steps.
func (s *Script) Len() int { return s.n }

// Bytes copies b into the script's memory, adds a NUL, and returns the copy's address.
func (s *Script) Bytes(b []byte) uintptr {
	m := s.mem.bytes(len(b) + 1)
	copy(m, b)
	m[len(b)] = 0
	return uintptr(unsafe.Pointer(unsafe.SliceData(m)))
}

// String is Bytes for a string.
func (s *Script) String(v string) uintptr {
	m := s.mem.bytes(len(v) + 1)
	copy(m, v)
	m[len(v)] = 0
	return uintptr(unsafe.Pointer(unsafe.SliceData(m)))
}

// Strings copies v as execve wants argv and envp: an array of addresses of NUL-terminated strings, ended by NULL.
func (s *Script) Strings(v [][]byte) uintptr {
	a := s.mem.words(len(v) + 1)
	for i, b := range v {
		a[i] = uint64(s.Bytes(b))
	}
	a[len(v)] = 0
	return uintptr(unsafe.Pointer(unsafe.SliceData(a)))
}

// Word copies v, 8 bytes each, and returns the address of the first: for rlimits, signal sets and other structs.
func (s *Script) Word(v ...uint64) uintptr {
	a := s.mem.words(len(v))
	copy(a, v)
	return uintptr(unsafe.Pointer(unsafe.SliceData(a)))
}

// Exit appends exit_group(0). A script that runs off its end does the same.
func (s *Script) Exit() { s.Call(syscall.SYS_EXIT_GROUP, 0) }

// Clone appends a legacy clone(2) whose child runs the script child, which has to be complete by now. CLONE_VM, CLONE_VFORK and CLONE_*_TID are
// added to flags, and SIGCHLD when flags name no exit signal; the child's thread id, as the cloning process sees it, is
// [Outcome.ChildTID]. It is the legacy call because clone3 refuses CLONE_PARENT together with an exit signal. A script
// has one Clone at most that matters to the watchdog: the last.
func (s *Script) Clone(flags uintptr, child *Script) *Step {
	if flags&0xff == 0 {
		flags |= uintptr(syscall.SIGCHLD)
	}
	b := s.blockOf()
	unborn := uintptr(unsafe.Pointer(&b.unborn)) // the fourth argument or the fifth, by architecture; the other isn't looked at
	st := s.Call(syscall.SYS_CLONE, flags|cloneVM|cloneVfork|cloneParentSetTID|cloneChildSetTID|cloneChildClearTID,
		0, uintptr(unsafe.Pointer(&b.childTID)), unborn, unborn)
	s.child = child
	if child.n == 0 {
		child.Exit()
	}
	st.child = child.step(0)
	return st
}

func (s *Script) blockOf() *block {
	if s.block == nil {
		s.block = new(block)
	}
	return s.block
}

// Ignore lets the script go on when st fails. Its errno can be read afterwards.
func (st *Step) Ignore() *Step {
	st.ignore = 1
	return st
}

// Else is Ignore with a jump: when st fails, the script goes on at the later step dst.
func (st *Step) Else(dst *Step) *Step {
	st.onErr = dst
	return st.Ignore()
}

// Addr is the address of the word that receives the call's raw result, for a later call to pass it on by reference.
func (st *Step) Addr() uintptr { return uintptr(unsafe.Pointer(&st.result)) }

// As names the step in failures.
func (st *Step) As(name string) *Step {
	st.name = name
	return st
}

// SaveTo makes st's result argument arg (from 0) of the later step dst. A step saves to two places at most; a third
// takes the place of the second.
func (st *Step) SaveTo(dst *Step, arg int) *Step {
	if st.saveA == nil {
		st.saveA = &dst.args[arg]
	} else {
		st.saveB = &dst.args[arg]
	}
	return st
}

// Result is what the call returned in the child, 0 when it failed or never ran.
func (st *Step) Result() uintptr {
	if st.Errno() != 0 {
		return 0
	}
	return st.result
}

// Errno is the error of the call in the child, 0 when it worked or never ran.
func (st *Step) Errno() syscall.Errno { return errnoOf(st.result) }

func errnoOf(r uintptr) syscall.Errno {
	if r > ^uintptr(4095) {
		return syscall.Errno(-r)
	}
	return 0
}
