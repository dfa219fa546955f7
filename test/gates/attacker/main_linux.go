// Command attacker is what the gate tests run as root inside a sandbox: it tries to see, reach or stop what it must not,
// and prints what the kernel answered as JSON. It judges nothing; the tests do.
//
// The runtime's look at cgroups is off: it keeps files open, which the report on descriptors would show.
//
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	report, err := run(os.Args[1:])
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(report)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) (any, error) {
	if len(args) == 0 {
		return nil, errors.New("usage: attacker birth | attack PID… | files | killall | spray DURATION")
	}
	switch args[0] {
	case "birth":
		return birth()
	case "attack":
		var all []answer
		for _, a := range args[1:] {
			pid, err := strconv.Atoi(a)
			if err != nil {
				return nil, err
			}
			all = append(all, onProcess(pid)...)
		}
		return all, nil
	case "files":
		return onSystem(), nil
	case "killall":
		return killAll(), nil
	case "spray":
		d, err := time.ParseDuration(args[1])
		if err != nil {
			return nil, err
		}
		return spray(d)
	}
	return nil, fmt.Errorf("no mode %q", args[0])
}

// answer is what one attempt came to: an errno's name, or "open".
type answer struct {
	What string
	Err  string
}

func answered(what string, err error) answer {
	if err == nil {
		return answer{what, "open"}
	}
	if e, ok := errors.AsType[unix.Errno](err); ok {
		return answer{what, unix.ErrnoName(e)}
	}
	return answer{what, err.Error()}
}

// onProcess tries everything that one process may do to another.
func onProcess(pid int) []answer {
	var out []answer
	try := func(what string, err error) { out = append(out, answered(fmt.Sprintf("%s %d", what, pid), err)) }
	raw := func(what string, nr uintptr, args ...uintptr) {
		var a [6]uintptr
		copy(a[:], args)
		_, _, e := unix.Syscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5])
		if e == 0 {
			try(what, nil)
		} else {
			try(what, e)
		}
	}
	p := uintptr(pid)
	for _, sig := range []unix.Signal{0, unix.SIGSTOP, unix.SIGTERM, unix.SIGKILL} {
		try("kill "+strconv.Itoa(int(sig)), unix.Kill(pid, sig))
		try("kill group "+strconv.Itoa(int(sig)), unix.Kill(-pid, sig))
		try("tgkill "+strconv.Itoa(int(sig)), unix.Tgkill(pid, pid, sig))
	}
	fd, err := unix.PidfdOpen(pid, 0)
	try("pidfd_open", err)
	if err == nil {
		_, err = unix.PidfdGetfd(fd, 3, 0)
		try("pidfd_getfd", err)
		try("setns", unix.Setns(fd, unix.CLONE_NEWNS))
		_ = unix.Close(fd)
	}
	var limit unix.Rlimit
	try("prlimit get", unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &limit))
	try("prlimit set", unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: 3}, nil))
	try("prlimit cpu", unix.Prlimit(pid, unix.RLIMIT_CPU, &unix.Rlimit{Cur: 1, Max: 1}, nil))
	try("setpriority", unix.Setpriority(unix.PRIO_PROCESS, pid, 19))
	var set unix.CPUSet
	set.Set(0)
	try("sched_setaffinity", unix.SchedSetaffinity(pid, &set))
	try("sched_getaffinity", unix.SchedGetaffinity(pid, &set))
	raw("sched_getscheduler", unix.SYS_SCHED_GETSCHEDULER, p)
	raw("ioprio_set", unix.SYS_IOPRIO_SET, 1, p, 0x4004)
	raw("getpgid", unix.SYS_GETPGID, p)
	raw("getsid", unix.SYS_GETSID, p)
	raw("migrate_pages", unix.SYS_MIGRATE_PAGES, p, 0, 0, 0)
	raw("kcmp", unix.SYS_KCMP, p, uintptr(os.Getpid()), 0, 0, 0)
	try("ptrace attach", unix.PtraceAttach(pid))
	try("ptrace seize", unix.PtraceSeize(pid))
	buf := make([]byte, 16)
	local := []unix.Iovec{{Base: &buf[0], Len: 16}}
	_, err = unix.ProcessVMReadv(pid, local, []unix.RemoteIovec{{Base: 0x400000, Len: 16}}, 0)
	try("process_vm_readv", err)
	_, err = unix.ProcessVMWritev(pid, local, []unix.RemoteIovec{{Base: 0x400000, Len: 16}}, 0)
	try("process_vm_writev", err)
	for _, f := range []string{"", "mem", "environ", "maps", "status", "cmdline", "cgroup", "fd", "task", "root", "ns/user"} {
		try("open /proc "+f, open(fmt.Sprintf("/proc/%d/%s", pid, f), unix.O_RDONLY))
	}
	for _, f := range []string{"oom_score_adj", "comm", "timerslack_ns", "coredump_filter", "uid_map"} {
		try("write /proc "+f, open(fmt.Sprintf("/proc/%d/%s", pid, f), unix.O_WRONLY))
	}
	return out
}

func open(path string, mode int) error {
	fd, err := unix.Open(path, mode|unix.O_CLOEXEC, 0)
	if err == nil {
		_ = unix.Close(fd)
	}
	return err
}

// onSystem tries to reach cgroups and other namespaces.
func onSystem() []answer {
	var out []answer
	try := func(what string, err error) { out = append(out, answered(what, err)) }
	_ = os.Mkdir("/tmp/m", 0o755)
	for _, fs := range []string{"cgroup2", "cgroup", "proc", "sysfs", "tmpfs"} {
		data := ""
		if fs == "cgroup" {
			data = "memory"
		}
		try("mount "+fs, unix.Mount("x", "/tmp/m", fs, 0, data))
		fd, err := unix.Fsopen(fs, 0)
		try("fsopen "+fs, err)
		if err == nil {
			_ = unix.Close(fd)
		}
	}
	for name, flag := range map[string]int{"user": unix.CLONE_NEWUSER, "mnt": unix.CLONE_NEWNS, "pid": unix.CLONE_NEWPID, "cgroup": unix.CLONE_NEWCGROUP} {
		try("unshare "+name, unix.Unshare(flag))
	}
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/freezer"} {
		for _, f := range []string{"cgroup.procs", "cgroup.freeze", "cgroup.kill", "freezer.state", "memory.max"} {
			try("write "+root+"/"+f, open(root+"/"+f, unix.O_WRONLY))
		}
		try("mkdir in "+root, unix.Mkdir(root+"/x", 0o755))
	}
	for _, f := range []string{"/proc/sysrq-trigger", "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/pid_max", "/proc/kcore", "/dev/mem"} {
		try("write "+f, open(f, unix.O_WRONLY))
	}
	try("umount /proc", unix.Unmount("/proc", unix.MNT_DETACH))
	try("chroot", unix.Chroot("/tmp"))
	return out
}

// killAll signals every process that can be named, and PID 1 with everything there is.
func killAll() []answer {
	out := []answer{answered("kill -1", unix.Kill(-1, unix.SIGKILL))}
	for sig := unix.Signal(1); sig <= 64; sig++ {
		err := unix.Kill(1, sig)
		if err != nil {
			out = append(out, answered(fmt.Sprintf("kill 1 with %d", sig), err))
		}
	}
	const most = 1 << 16
	for pid := 2; pid < most; pid++ {
		err := unix.Kill(pid, 0)
		if errors.Is(err, unix.ESRCH) {
			continue
		}
		if _, statErr := os.Stat(fmt.Sprintf("/proc/self/task/%d", pid)); statErr != nil { // not a thread of its own
			out = append(out, answered(fmt.Sprintf("see %d", pid), err))
		}
	}
	return out
}
