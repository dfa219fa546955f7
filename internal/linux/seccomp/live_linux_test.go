package seccomp

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/dsec-io/dsec/internal/need"
	"github.com/dsec-io/dsec/internal/spawn"
	"golang.org/x/sys/unix"
)

// probeArg makes the test binary run the probes and print "name errno" for each.
const probeArg = "seccomp-probe"

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == probeArg {
		for _, p := range probes() {
			_, _, errno := unix.RawSyscall6(p.nr, p.args[0], p.args[1], p.args[2], p.args[3], p.args[4], p.args[5])
			fmt.Println(p.name, int(errno))
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// probe is a system call that does nothing where it is let through, with what it answers under the filter, and what it
// answers to root without one. Both being the same proves nothing and is there for what must go on to work.
type probe struct {
	name        string
	nr          uintptr
	args        [6]uintptr
	under, free syscall.Errno
}

func probes() []probe {
	const garbage = 0xdead << 32
	null, _ := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	fd, bad := uintptr(null), ^uintptr(0)
	return []probe{
		{"clone3", unix.SYS_CLONE3, [6]uintptr{}, unix.ENOSYS, unix.EINVAL},
		{"unshare", unix.SYS_UNSHARE, [6]uintptr{unix.CLONE_NEWUSER}, unix.EPERM, unix.EINVAL}, // EINVAL: threads
		{"mount", unix.SYS_MOUNT, [6]uintptr{1, 1, 1}, unix.EPERM, unix.EFAULT},
		{"setns", unix.SYS_SETNS, [6]uintptr{bad}, unix.EPERM, unix.EBADF},
		{"bpf", unix.SYS_BPF, [6]uintptr{0, 1, 8}, unix.EPERM, unix.EFAULT},
		{"keyctl", unix.SYS_KEYCTL, [6]uintptr{999}, unix.EPERM, unix.EOPNOTSUPP},
		{"add_key", unix.SYS_ADD_KEY, [6]uintptr{1, 1}, unix.EPERM, unix.EFAULT},
		{"userfaultfd", unix.SYS_USERFAULTFD, [6]uintptr{bad}, unix.EPERM, unix.EINVAL},
		{"perf_event_open", unix.SYS_PERF_EVENT_OPEN, [6]uintptr{1}, unix.EPERM, unix.EFAULT},
		{"open_by_handle_at", unix.SYS_OPEN_BY_HANDLE_AT, [6]uintptr{bad, 1}, unix.EPERM, unix.EFAULT},
		{"socket-vsock", unix.SYS_SOCKET, [6]uintptr{unix.AF_VSOCK, 99}, unix.EPERM, unix.EINVAL},
		{"socket-alg", unix.SYS_SOCKET, [6]uintptr{unix.AF_ALG, 99}, unix.EPERM, unix.EINVAL},
		{"socket-alg-garbage", unix.SYS_SOCKET, [6]uintptr{garbage | unix.AF_ALG, 99}, unix.EPERM, unix.EINVAL},
		{"socket-inet", unix.SYS_SOCKET, [6]uintptr{unix.AF_INET, 99}, unix.EINVAL, unix.EINVAL},
		{"tiocsti", unix.SYS_IOCTL, [6]uintptr{fd, 0x5412}, unix.EPERM, unix.ENOTTY},
		{"tiocsti-garbage", unix.SYS_IOCTL, [6]uintptr{fd, garbage | 0x5412}, unix.EPERM, unix.ENOTTY},
		{"tioclinux-garbage", unix.SYS_IOCTL, [6]uintptr{fd, 1<<32 | 0x541c}, unix.EPERM, unix.ENOTTY},
		{"tiocgwinsz", unix.SYS_IOCTL, [6]uintptr{fd, unix.TIOCGWINSZ}, unix.ENOTTY, unix.ENOTTY},
		{"clone-newuser", unix.SYS_CLONE, [6]uintptr{unix.CLONE_NEWUSER | unix.CLONE_SIGHAND}, unix.EPERM, unix.EINVAL},
		{"personality", unix.SYS_PERSONALITY, [6]uintptr{0x0040000}, unix.EPERM, 0},
		{"unknown", 5000, [6]uintptr{}, unix.ENOSYS, unix.ENOSYS},
		{"x32", 1<<30 | 39, [6]uintptr{}, unix.ENOSYS, unix.ENOSYS},
		{"getpid", unix.SYS_GETPID, [6]uintptr{}, 0, 0},
		{"prctl-nnp", unix.SYS_PRCTL, [6]uintptr{unix.PR_SET_NO_NEW_PRIVS, 1}, 0, 0},
		{"io_uring_setup", unix.SYS_IO_URING_SETUP, [6]uintptr{0, 1}, unix.EPERM, unix.EFAULT},
	}
}

// runProbes starts the probes as a shard starts a command (MECHANISMS: two vforks, the filter between them), with
// every step that follows the filter there.
func runProbes(t *testing.T, p *Program, uid uintptr) map[string]syscall.Errno {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var h, c spawn.Script
	c.Call(unix.SYS_SETSID).As("setsid")
	tty := c.Call(unix.SYS_IOCTL, 0, unix.TIOCSCTTY, 0).As("controlling terminal").Ignore()
	c.Call(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, c.Word(0), 0, 8).As("signal mask")
	argv := c.Strings([][]byte{[]byte("probe"), []byte(probeArg)})
	// The binary's folder is closed to a user other than root; the link leads past it.
	c.Call(unix.SYS_EXECVE, c.String("/proc/self/exe"), argv, c.Strings(nil)).As("exec")
	h.Call(unix.SYS_DUP3, w.Fd(), 1, 0).As("stdout")
	if p != nil {
		h.Call(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, p.Addr()).As("filter")
	}
	h.Call(unix.SYS_SETGROUPS, 0, 0).As("groups")
	h.Call(unix.SYS_SETRESGID, uid, uid, uid).As("gid")
	h.Call(unix.SYS_SETRESUID, uid, uid, uid).As("uid")
	h.Call(unix.SYS_CHDIR, h.String("/")).As("chdir")
	h.Clone(unix.CLONE_PARENT, &c).As("clone")
	h.Exit()
	out, err := spawn.Run(spawn.Attr{Cgroup: -1}, &h)
	w.Close()
	if err != nil || out.Failed != nil {
		t.Fatalf("spawn: %v, %v", err, out.Failed)
	}
	if errno := tty.Errno(); p != nil && errno != unix.ENOTTY && errno != 0 {
		t.Errorf("TIOCSCTTY: %v", errno)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range []int{out.PID, out.ChildTID} {
		if ws, err := spawn.Wait(pid); err != nil || ws.ExitStatus() != 0 {
			t.Errorf("process %d: status %v, %v", pid, ws, err)
		}
	}
	got := map[string]syscall.Errno{}
	for line := range strings.Lines(string(text)) {
		name, number, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, err := strconv.Atoi(number)
		if err != nil {
			t.Fatalf("probe says %q", line)
		}
		got[name] = syscall.Errno(n)
	}
	return got
}

func TestLoadedFilterDenies(t *testing.T) {
	need.Root(t)
	p, err := Default()
	if err != nil {
		t.Fatal(err)
	}
	free := runProbes(t, nil, 0)
	root := runProbes(t, p, 0)
	user := runProbes(t, p, 1000)
	for _, probe := range probes() {
		if got, ok := free[probe.name]; !ok || got != probe.free {
			t.Errorf("%s without filter: %v (ran: %v), want %v", probe.name, got, ok, probe.free)
		}
		if got, ok := root[probe.name]; !ok || got != probe.under {
			t.Errorf("%s under the filter: %v (ran: %v), want %v", probe.name, got, ok, probe.under)
		}
		if got, ok := user[probe.name]; !ok || got != probe.under {
			t.Errorf("%s under the filter as user 1000: %v (ran: %v), want %v", probe.name, got, ok, probe.under)
		}
	}
}

// TestLoadLandsOnTheChildAlone is what makes the filter usable from a shard, whose memory its helper shares.
func TestLoadLandsOnTheChildAlone(t *testing.T) {
	need.Root(t)
	p, err := Default()
	if err != nil {
		t.Fatal(err)
	}
	runProbes(t, p, 0)
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		b, err := os.ReadFile("/proc/self/task/" + thread.Name() + "/status")
		if os.IsNotExist(err) {
			continue
		}
		if err != nil || !strings.Contains(string(b), "\nSeccomp:\t0\n") {
			t.Errorf("thread %s is under a filter (%v)", thread.Name(), err)
		}
	}
}

func BenchmarkLoad(b *testing.B) {
	p, err := Default()
	if err != nil {
		b.Fatal(err)
	}
	for name, filter := range map[string]bool{"without": false, "with": true} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				var h spawn.Script
				if filter {
					h.Call(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, p.Addr())
				}
				h.Exit()
				out, err := spawn.Run(spawn.Attr{Cgroup: -1}, &h)
				if err != nil || out.Failed != nil {
					b.Fatal(err, out.Failed)
				}
				if _, err := spawn.Wait(out.PID); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
