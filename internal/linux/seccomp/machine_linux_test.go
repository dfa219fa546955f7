package seccomp

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// execute runs a filter as the kernel does, strictly: what the kernel's checker would refuse is an error.
func execute(prog []unix.SockFilter, audit, nr uint32, args [6]uint64) (uint32, error) {
	data := func(off uint32) (uint32, error) {
		switch {
		case off == dataNumber:
			return nr, nil
		case off == dataArch:
			return audit, nil
		case off >= dataArgs && off < dataArgs+8*6 && off%4 == 0:
			return uint32(args[(off-dataArgs)/8] >> (8 * ((off - dataArgs) % 8))), nil
		default:
			return 0, fmt.Errorf("load of offset %d", off)
		}
	}
	var acc uint32
	for pc := 0; pc < len(prog); pc++ {
		f := prog[pc]
		when := func(yes bool) {
			if yes {
				pc += int(f.Jt)
			} else {
				pc += int(f.Jf)
			}
		}
		switch f.Code {
		case loadWord:
			var err error
			if acc, err = data(f.K); err != nil {
				return 0, err
			}
		case andWord:
			acc &= f.K
		case jumpEq:
			when(acc == f.K)
		case jumpGe:
			when(acc >= f.K)
		case jump:
			pc += int(f.K)
		case ret:
			return f.K, nil
		default:
			return 0, fmt.Errorf("instruction %d: code %#x", pc, f.Code)
		}
	}
	return 0, errors.New("ran over the end")
}

// compiled is an architecture's filter; [TestProgramIsGenerated] has it that it is the one that is checked in.
func compiled(t testing.TB, a arch) []unix.SockFilter {
	t.Helper()
	prog, err := compile(a, profile(a))
	if err != nil {
		t.Fatal(err)
	}
	return prog
}

// failer is *testing.T or *rapid.T.
type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

// check compares the filter with the reference.
func (r reference) check(t failer, prog []unix.SockFilter, c call) {
	t.Helper()
	want, err := r.judge(c)
	if err != nil {
		t.Fatalf("reference for %+v: %v", c, err)
	}
	if got, err := execute(prog, c.audit, c.nr, c.args); err != nil || got != want {
		t.Fatalf("%s: %s %+v: verdict %#x, %v; want %#x", r.arch.name, r.names[c.nr], c, got, err, want)
	}
}

// interesting are argument values at and beside every value that the profile mentions, with and without garbage in
// the half that the kernel doesn't look at.
func interesting(a arch) []uint64 {
	values := map[uint64]bool{0: true, 1: true, 1 << 31: true, 0xffffffff: true, ^uint64(0): true}
	for _, s := range profile(a).Syscalls {
		for _, arg := range s.Args {
			for _, v := range []uint64{arg.Value, arg.ValueTwo} {
				for _, near := range []uint64{v - 1, v, v + 1} {
					values[near] = true
				}
			}
		}
	}
	for _, request := range ttyRequests() {
		values[uint64(request)-1], values[uint64(request)], values[uint64(request)+1] = true, true, true
	}
	for bit := range 32 {
		values[1<<bit] = true // each clone flag
	}
	out := slices.Sorted(maps.Keys(values))
	for _, v := range slices.Clone(out) {
		out = append(out, v&0xffffffff|1<<32, v&0xffffffff|0xdead<<32)
	}
	return out
}

func TestEveryNumberAndBoundaryIsAsTheProfileSays(t *testing.T) {
	for _, a := range arches(t) {
		t.Run(a.name, func(t *testing.T) {
			prog, ref, values := compiled(t, a), newReference(a), interesting(a)
			nrs := []uint32{1 << 30, 1<<30 + 16, 1<<31 - 1, 1 << 31, ^uint32(0)}
			for nr := range a.last() + 50 {
				nrs = append(nrs, nr)
			}
			cases := 0
			for _, nr := range nrs {
				for _, index := range []int{0, 1, 2} {
					for i, v := range values {
						if index == 2 && i > 3 {
							break // nothing looks at it
						}
						var args [6]uint64
						args[index] = v
						cases++
						ref.check(t, prog, call{a.audit, nr, args})
					}
				}
				for _, audit := range []uint32{unix.AUDIT_ARCH_I386, unix.AUDIT_ARCH_ARM, 0} {
					ref.check(t, prog, call{audit: audit, nr: nr})
				}
			}
			t.Logf("%d cases", cases)
		})
	}
}

func TestRandomCallsAreAsTheProfileSays(t *testing.T) {
	for _, a := range arches(t) {
		prog, ref, values := compiled(t, a), newReference(a), interesting(a)
		conditional := []uint32{a.numbers["socket"], a.numbers["personality"], a.numbers["clone"], a.numbers["ioctl"]}
		rapid.Check(t, func(rt *rapid.T) {
			nr := rapid.OneOf(rapid.SampledFrom(conditional), rapid.Uint32Range(0, a.last()+3), rapid.Uint32()).Draw(rt, "nr")
			var args [6]uint64
			for i := range args {
				args[i] = rapid.OneOf(rapid.SampledFrom(values), rapid.Uint64()).Draw(rt, "arg")
			}
			ref.check(rt, prog, call{a.audit, nr, args})
		})
	}
}

// TestEveryInstructionIsReached finds dead code, which a compiled tree has only by a mistake.
func TestEveryInstructionIsReached(t *testing.T) {
	for _, a := range arches(t) {
		prog := compiled(t, a)
		for i := range prog {
			if prog[i].Code != ret {
				continue
			}
			changed := slices.Clone(prog)
			changed[i].K = unix.SECCOMP_RET_KILL_PROCESS
			if !reaches(a, changed) {
				t.Errorf("%s: no call reaches instruction %d of %d", a.name, i, len(prog))
			}
		}
	}
}

func reaches(a arch, prog []unix.SockFilter) bool {
	kills := func(audit, nr uint32, args [6]uint64) bool {
		v, err := execute(prog, audit, nr, args)
		return err == nil && v == unix.SECCOMP_RET_KILL_PROCESS
	}
	for nr := range a.last() + 2 {
		for _, v := range []uint64{0, 1, 4, 9, 40, 0x5412, 1 << 28, ^uint64(0) - 4} {
			if kills(a.audit, nr, [6]uint64{v, v}) {
				return true
			}
		}
	}
	return kills(0, 0, [6]uint64{})
}
