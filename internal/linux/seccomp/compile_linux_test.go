package seccomp

import (
	"bytes"
	"flag"
	"fmt"
	"go/format"
	"os"
	"slices"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// update makes TestProgramIsGenerated write the files instead of comparing them.
var update = flag.Bool("update", false, "write the generated programs")

// maxInstructions is what a filter may cost; see the package comment.
const maxInstructions = 350

// Classic BPF, as far as it is needed.
const (
	loadWord = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
	andWord  = unix.BPF_ALU | unix.BPF_AND | unix.BPF_K
	jumpEq   = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	jumpGe   = unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K
	jump     = unix.BPF_JMP | unix.BPF_JA
	ret      = unix.BPF_RET | unix.BPF_K
)

// The offsets of struct seccomp_data.
const (
	dataNumber = 0
	dataArch   = 4
	dataArgs   = 16 // 8 bytes each, the low half first on our architectures
)

// span is an inclusive range of argument values.
type span struct{ lo, hi uint32 }

// rule is what happens to one system call: then, or, if test is set, els for arguments that it doesn't match.
type rule struct {
	then, els uint32
	test      *test
}

// test asks if an argument's low half, under mask, lies in one of the spans.
type test struct {
	index uint
	mask  uint32
	match []span
}

// rules reads the profile and our denials into one rule per number.
func rules(a arch, p *specs.LinuxSeccomp) (map[uint32]rule, error) {
	def, err := action(p.DefaultAction, p.DefaultErrnoRet)
	if err != nil {
		return nil, err
	}
	out := map[uint32]rule{}
	for _, s := range p.Syscalls {
		act, err := action(s.Action, s.ErrnoRet)
		if err != nil {
			return nil, err
		}
		for _, name := range s.Names {
			nr, ok := a.numbers[name]
			if !ok {
				continue
			}
			old, seen := out[nr]
			if seen && old.test == nil {
				continue // the profile has decided already
			}
			if len(s.Args) == 0 {
				if seen {
					return nil, fmt.Errorf("%s: a rule without arguments after one with", name)
				}
				out[nr] = rule{then: act}
				continue
			}
			r, err := addTest(old, name, s.Args)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			r.then, r.els = act, def
			out[nr] = r
		}
	}
	if r := out[a.numbers["ioctl"]]; r.test != nil || r.then != allow {
		return nil, fmt.Errorf("ioctl: the profile's rule %+v isn't plain", r)
	}
	tty := &test{index: narrow()["ioctl"], mask: ^uint32(0)}
	for _, request := range ttyRequests() {
		tty.match = append(tty.match, span{request, request})
	}
	out[a.numbers["ioctl"]] = rule{then: eperm, els: allow, test: tty}
	for _, name := range denied() {
		if nr, ok := a.numbers[name]; ok {
			out[nr] = rule{then: eperm}
		}
	}
	out[a.numbers["clone3"]] = rule{then: enosys}
	return out, nil
}

// addTest adds a condition to what other rules for the same system call have asked of the same argument.
func addTest(r rule, name string, args []specs.LinuxSeccompArg) (rule, error) {
	index, known := narrow()[name]
	if len(args) != 1 || !known || args[0].Index != index {
		return r, fmt.Errorf("arguments %+v aren't known here", args)
	}
	arg := args[0]
	var s span
	mask := ^uint32(0)
	if arg.Value > 0xffffffff || arg.ValueTwo > 0xffffffff {
		return r, fmt.Errorf("argument %+v is wider than the kernel takes it", arg)
	}
	switch arg.Op {
	case specs.OpEqualTo:
		s = span{uint32(arg.Value), uint32(arg.Value)}
	case specs.OpLessThan:
		s = span{0, uint32(arg.Value) - 1}
	case specs.OpMaskedEqual:
		mask, s = uint32(arg.Value), span{uint32(arg.ValueTwo), uint32(arg.ValueTwo)}
	default:
		return r, fmt.Errorf("operator %s isn't known here", arg.Op)
	}
	if r.test == nil {
		r.test = &test{index: index, mask: mask}
	}
	if r.test.mask != mask {
		return r, fmt.Errorf("two masks: %#x, %#x", r.test.mask, mask)
	}
	r.test.match = append(r.test.match, s)
	return r, nil
}

// merge joins spans that touch.
func merge(spans []span) []span {
	spans = slices.Clone(spans)
	slices.SortFunc(spans, func(a, b span) int { return int(int64(a.lo) - int64(b.lo)) })
	var out []span
	for _, s := range spans {
		if n := len(out); n > 0 && (out[n-1].hi == ^uint32(0) || s.lo <= out[n-1].hi+1) {
			out[n-1].hi = max(out[n-1].hi, s.hi)
			continue
		}
		out = append(out, s)
	}
	return out
}

// code compiles a rule. Every path ends in a return.
func (r rule) code() []unix.SockFilter {
	if r.test == nil {
		return []unix.SockFilter{{Code: ret, K: r.then}}
	}
	out := []unix.SockFilter{{Code: loadWord, K: uint32(dataArgs + 8*r.test.index)}}
	if r.test.mask != ^uint32(0) {
		out = append(out, unix.SockFilter{Code: andWord, K: r.test.mask})
	}
	spans := merge(r.test.match)
	size := 0
	for _, s := range spans {
		size += len(s.code(0))
	}
	for _, s := range spans {
		c := s.code(0)
		size -= len(c)
		out = append(out, s.code(uint8(size+1))...) // over what follows and the return of els
	}
	return append(out, unix.SockFilter{Code: ret, K: r.els}, unix.SockFilter{Code: ret, K: r.then})
}

// code goes to the next instruction if the value isn't in s, and by so many further if it is.
func (s span) code(further uint8) []unix.SockFilter {
	if s.lo == s.hi {
		return []unix.SockFilter{{Code: jumpEq, Jt: further, K: s.lo}}
	}
	if s.lo == 0 {
		return []unix.SockFilter{{Code: jumpGe, Jf: further, K: s.hi + 1}}
	}
	return []unix.SockFilter{{Code: jumpGe, Jt: 1, K: s.hi + 1}, {Code: jumpGe, Jt: further, K: s.lo}}
}

// run is consecutive numbers with the same rule, from lo to the next run.
type run struct {
	lo   uint32
	code []unix.SockFilter
}

// compile makes the filter: a check of the architecture, then the tree.
func compile(a arch, p *specs.LinuxSeccomp) ([]unix.SockFilter, error) {
	all, err := rules(a, p)
	if err != nil {
		return nil, err
	}
	def, err := action(p.DefaultAction, p.DefaultErrnoRet)
	if err != nil {
		return nil, err
	}
	var runs []run
	add := func(nr uint32, r rule) {
		code := r.code()
		if n := len(runs); n > 0 && slices.Equal(runs[n-1].code, code) && len(code) == 1 {
			return
		}
		runs = append(runs, run{nr, code})
	}
	for nr := range a.last() + 1 {
		r, ok := all[nr]
		if !ok {
			r = rule{then: def}
		}
		add(nr, r)
	}
	add(a.last()+1, rule{then: enosys})
	head := []unix.SockFilter{
		{Code: loadWord, K: dataArch},
		{Code: jumpEq, Jt: 1, K: a.audit},
		{Code: ret, K: enosys},
		{Code: loadWord, K: dataNumber},
	}
	return share(append(head, tree(runs)...)), nil
}

// share lets all that comes to the same return jump to the same one at the end: the kernel compiles the filter for every
// command, and nearly half of a tree would be returns. A program that is too long for such jumps stays as it is.
func share(prog []unix.SockFilter) []unix.SockFilter {
	var returns []unix.SockFilter
	target := func(i int) int { // behind prog the shared returns follow
		if prog[i].Code != ret {
			return i
		}
		n := slices.Index(returns, prog[i])
		if n < 0 {
			n = len(returns)
			returns = append(returns, prog[i])
		}
		return len(prog) + n
	}
	type edges struct{ yes, no int }
	to := make(map[int]edges)
	for open := []int{0}; len(open) > 0; {
		i := open[len(open)-1]
		open = open[:len(open)-1]
		if _, seen := to[i]; seen || i >= len(prog) {
			continue
		}
		e := edges{yes: target(i + 1), no: target(i + 1)}
		switch f := prog[i]; f.Code {
		case jump:
			return prog
		case jumpEq, jumpGe:
			e = edges{yes: target(i + 1 + int(f.Jt)), no: target(i + 1 + int(f.Jf))}
		default:
			if e.no != i+1 {
				return prog // it doesn't jump, so its return has to stay behind it
			}
		}
		to[i] = e
		open = append(open, e.yes, e.no)
	}
	at, out := make(map[int]int), []unix.SockFilter(nil)
	for i := range len(prog) + len(returns) {
		if _, used := to[i]; used || i >= len(prog) {
			at[i] = len(at)
		}
	}
	for i, f := range prog {
		e, used := to[i]
		if !used {
			continue
		}
		if f.Code == jumpEq || f.Code == jumpGe {
			yes, no := at[e.yes]-at[i]-1, at[e.no]-at[i]-1
			if max(yes, no) > 255 {
				return prog
			}
			f.Jt, f.Jf = uint8(yes), uint8(no)
		}
		out = append(out, f)
	}
	return append(out, returns...)
}

// tree is a binary search. The accumulator holds the number until a leaf is reached.
func tree(runs []run) []unix.SockFilter {
	if len(runs) == 1 {
		return runs[0].code
	}
	mid := len(runs) / 2
	below, above := tree(runs[:mid]), tree(runs[mid:])
	// A conditional jump reaches 255 instructions, an unconditional one any.
	node := []unix.SockFilter{{Code: jumpGe, Jt: uint8(len(below)), K: runs[mid].lo}}
	if len(below) > 255 {
		node = []unix.SockFilter{{Code: jumpGe, Jf: 1, K: runs[mid].lo}, {Code: jump, K: uint32(len(below))}}
	}
	return slices.Concat(node, below, above)
}

func source(a arch, prog []unix.SockFilter) ([]byte, error) {
	var b bytes.Buffer
	fmt.Fprintf(&b, "// Code generated by go generate from moby's default profile; DO NOT EDIT.\n\npackage seccomp\n\n")
	fmt.Fprintf(&b, "// program is the filter for linux/%s.\n", a.name)
	fmt.Fprintf(&b, "func program() []instruction {\n\treturn []instruction{\n")
	for i, f := range prog {
		end := " "
		if i%4 == 3 || i == len(prog)-1 {
			end = "\n"
		}
		fmt.Fprintf(&b, "{%#x, %d, %d, %#x},%s", f.Code, f.Jt, f.Jf, f.K, end)
	}
	b.WriteString("}\n}\n")
	return format.Source(b.Bytes())
}

func TestProgramIsGenerated(t *testing.T) {
	for _, a := range arches(t) {
		prog, err := compile(a, profile(a))
		if err != nil {
			t.Fatalf("%s: %v", a.name, err)
		}
		t.Logf("%s: %d instructions", a.name, len(prog))
		if len(prog) > maxInstructions {
			t.Errorf("%s: %d instructions, more than %d", a.name, len(prog), maxInstructions)
		}
		want, err := source(a, prog)
		if err != nil {
			t.Fatal(err)
		}
		file := "zz_program_linux_" + a.name + ".go"
		if *update {
			if err := os.WriteFile(file, want, 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		have, err := os.ReadFile(file)
		if err != nil || !bytes.Equal(have, want) {
			t.Errorf("%s isn't what the profile gives (%v); run go generate", file, err)
		}
	}
}
