package seccomp

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/dsec-io/dsec/internal/linux/caps"
	moby "github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// The verdicts of the kernel's ABI.
const (
	allow  uint32 = unix.SECCOMP_RET_ALLOW
	eperm  uint32 = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
	enosys uint32 = unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
)

// arch is what a filter has to know about an architecture.
type arch struct {
	name    string // as Go says it, and as moby's filters do
	audit   uint32 // AUDIT_ARCH_*
	numbers map[string]uint32
}

func (a arch) last() uint32 { return slices.Max(slices.Collect(maps.Values(a.numbers))) }

func arches(t testing.TB) []arch {
	t.Helper()
	return []arch{
		{"amd64", unix.AUDIT_ARCH_X86_64, numbers(t, "amd64")},
		{"arm64", unix.AUDIT_ARCH_AARCH64, numbers(t, "arm64")},
	}
}

// numbers reads an architecture's system calls from the SYS_ constants of golang.org/x/sys/unix, in the source, because
// only those of the architecture that the test runs on can be imported.
func numbers(t testing.TB, goarch string) map[string]uint32 {
	t.Helper()
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "golang.org/x/sys").Output()
	if err != nil {
		t.Fatalf("find golang.org/x/sys: %v", err)
	}
	path := filepath.Join(strings.TrimSpace(string(dir)), "unix", "zsysnum_linux_"+goarch+".go")
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]uint32{}
	for _, d := range file.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST {
			continue
		}
		for _, s := range g.Specs {
			v := s.(*ast.ValueSpec)
			n, err := strconv.ParseUint(v.Values[0].(*ast.BasicLit).Value, 10, 32)
			if err != nil {
				t.Fatal(err)
			}
			found[strings.ToLower(strings.TrimPrefix(v.Names[0].Name, "SYS_"))] = uint32(n)
		}
	}
	if n, ok := found["fstatat"]; ok {
		found["newfstatat"] = n // the kernel's name; x/sys has another one on arm64
		delete(found, "fstatat")
	}
	return found
}

// denied is what no command may do, whatever a profile says: each is a way to the kernel's own memory or keys, to other
// sandboxes, or to the machine.
func denied() []string {
	return []string{
		"acct", "add_key", "bpf", "clone3", "delete_module", "fanotify_init", "finit_module", "fsconfig", "fsmount",
		"fsopen", "fspick", "init_module", "io_uring_enter", "io_uring_register", "io_uring_setup", "ioperm", "iopl",
		"kcmp", "kexec_file_load", "kexec_load", "keyctl", "lookup_dcookie", "mount", "mount_setattr", "move_mount",
		"nfsservctl", "open_by_handle_at", "open_tree", "open_tree_attr", "perf_event_open",
		"pidfd_getfd", "pivot_root", "quotactl", "quotactl_fd", "reboot", "request_key", "setns", "settimeofday",
		"swapoff", "swapon", "syslog", "umount2", "unshare", "userfaultfd", "vhangup",
	}
}

// ttyRequests are the ioctls that put input into a terminal: TIOCSTI and TIOCLINUX.
func ttyRequests() []uint32 { return []uint32{0x5412, 0x541c} }

// narrow lists the arguments that the profile looks at, by system call. The kernel takes each as 32 bits: int domain,
// unsigned int personality and cmd, lower_32_bits(clone_flags). A new entry needs a look at the kernel's source.
func narrow() map[string]uint {
	return map[string]uint{"socket": 0, "personality": 0, "clone": 0, "ioctl": 1}
}

// profile is moby's default profile for our capabilities on one architecture: moby's own function knows only the
// architecture that it runs on, and asks for the running kernel's version, which must not decide what is generated.
func profile(a arch) *specs.LinuxSeccomp {
	have := func(c string) bool {
		return slices.ContainsFunc(caps.Default(), func(d caps.Cap) bool { return d.String() == c })
	}
	p := moby.DefaultProfile()
	out := p.LinuxSeccomp
	for _, s := range p.Syscalls {
		if x := s.Excludes; x != nil &&
			(slices.Contains(x.Arches, a.name) || slices.ContainsFunc(x.Caps, have) || x.MinKernel != nil) {
			continue
		}
		if x := s.Includes; x != nil {
			wrongArch := len(x.Arches) > 0 && !slices.Contains(x.Arches, a.name)
			if wrongArch || slices.ContainsFunc(x.Caps, func(c string) bool { return !have(c) }) {
				continue
			}
		}
		out.Syscalls = append(out.Syscalls, s.LinuxSyscall)
	}
	return &out
}

func action(a specs.LinuxSeccompAction, errno *uint) (uint32, error) {
	switch {
	case a == specs.ActAllow:
		return allow, nil
	case a == specs.ActErrno && errno != nil:
		return unix.SECCOMP_RET_ERRNO | uint32(*errno), nil
	case a == specs.ActErrno:
		return eperm, nil
	default:
		return 0, fmt.Errorf("action %s isn't known here", a)
	}
}

// call is what a filter is asked about.
type call struct {
	audit, nr uint32
	args      [6]uint64
}

// reference is the naive reading of the profile and of our denials, against which the compiled filter is held.
type reference struct {
	arch    arch
	profile *specs.LinuxSeccomp
	names   map[uint32]string
	rules   map[uint32][]specs.LinuxSyscall // in the profile's order
}

func newReference(a arch) reference {
	r := reference{arch: a, profile: profile(a), names: map[uint32]string{}, rules: map[uint32][]specs.LinuxSyscall{}}
	for name, nr := range a.numbers {
		r.names[nr] = name
	}
	for _, s := range r.profile.Syscalls {
		for _, name := range s.Names {
			if nr, ok := a.numbers[name]; ok {
				r.rules[nr] = append(r.rules[nr], s)
			}
		}
	}
	return r
}

func (r reference) judge(c call) (uint32, error) {
	if c.audit != r.arch.audit || c.nr > r.arch.last() {
		return enosys, nil
	}
	name := r.names[c.nr]
	if name == "clone3" {
		return enosys, nil
	}
	if slices.Contains(denied(), name) || name == "ioctl" && slices.Contains(ttyRequests(), uint32(c.args[1])) {
		return eperm, nil
	}
	for _, s := range r.rules[c.nr] {
		met := true
		for _, arg := range s.Args {
			if !met {
				break
			}
			var err error
			if met, err = meets(arg, c.args[arg.Index]&0xffffffff); err != nil {
				return 0, err
			}
		}
		if met {
			return action(s.Action, s.ErrnoRet)
		}
	}
	return action(r.profile.DefaultAction, r.profile.DefaultErrnoRet)
}

func meets(arg specs.LinuxSeccompArg, v uint64) (bool, error) {
	switch arg.Op {
	case specs.OpEqualTo:
		return v == arg.Value, nil
	case specs.OpLessThan:
		return v < arg.Value, nil
	case specs.OpMaskedEqual:
		return v&arg.Value == arg.ValueTwo, nil
	default:
		return false, fmt.Errorf("operator %s isn't known here", arg.Op)
	}
}

func TestNumbersComeFromTheRightTables(t *testing.T) {
	for _, a := range arches(t) {
		for _, name := range []string{"read", "clone", "clone3", "execveat", "newfstatat", "seccomp", "mseal", "umount2"} {
			if _, ok := a.numbers[name]; !ok {
				t.Errorf("%s: no number for %s", a.name, name)
			}
		}
	}
	if a := arches(t)[0]; a.numbers["clone3"] != 435 || a.numbers["ioctl"] != 16 {
		t.Errorf("amd64: clone3 is %d, ioctl is %d", a.numbers["clone3"], a.numbers["ioctl"])
	}
}

// TestUnknownNames tells which names of the profile have no number: other architectures' alone. A new system call that
// falls out of the table would be denied in silence.
func TestUnknownNames(t *testing.T) {
	known := map[string]bool{}
	for _, a := range arches(t) {
		for n := range a.numbers {
			known[n] = true
		}
	}
	unknown := map[string]bool{}
	for _, a := range arches(t) {
		for _, s := range profile(a).Syscalls {
			for _, n := range s.Names {
				if !known[n] {
					unknown[n] = true
				}
			}
		}
	}
	for name := range unknown {
		// 32-bit system calls and those of other architectures go by these names.
		old := strings.Contains(name, "64") || strings.HasSuffix(name, "32") || slices.Contains(foreignNames(), name)
		if !old {
			t.Errorf("the profile knows %s, the tables don't: update golang.org/x/sys, or add it to foreignNames", name)
		}
	}
}

// foreignNames are system calls that neither amd64 nor arm64 has.
func foreignNames() []string {
	return []string{
		"_llseek", "_newselect", "arm_sync_file_range", "breakpoint", "cacheflush", "ipc", "mmap2", "recv",
		"riscv_hwprobe", "send", "set_tls", "sigprocmask", "sigreturn", "socketcall", "sync_file_range2", "ugetrlimit",
		"waitpid",
	}
}
