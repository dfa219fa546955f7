package keeper

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/internal/spawn"
)

// placement is one descriptor of a new process: from has number to there.
type placement struct{ from, to int }

// place appends the steps that leave the child with exactly the descriptors in ps, and program above them, closed by
// the exec. It returns program's number in the child. Numbers are chosen above every source, so no step overwrites one
// that a later step needs, whatever numbers this process happens to use.
func place(s *spawn.Script, ps []placement, program int) uintptr {
	high := program
	for _, p := range ps {
		high = max(high, p.from, p.to)
	}
	high++
	for i, p := range ps {
		s.Call(unix.SYS_DUP3, uintptr(p.from), uintptr(high+i), unix.O_CLOEXEC).As("dup3")
	}
	exe := uintptr(high + len(ps))
	s.Call(unix.SYS_DUP3, uintptr(program), exe, unix.O_CLOEXEC).As("dup3 program")
	s.Call(unix.SYS_CLOSE_RANGE, 0, ^uintptr(0)>>32, unix.CLOSE_RANGE_CLOEXEC).As("close_range")
	for i, p := range ps {
		s.Call(unix.SYS_DUP3, uintptr(high+i), uintptr(p.to), 0).As("dup3")
	}
	return exe
}

// exec appends the last steps: default signal mask, then the program.
func exec(s *spawn.Script, program uintptr, argv []string) {
	args := make([][]byte, len(argv))
	for i, a := range argv {
		args[i] = []byte(a)
	}
	s.Call(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, s.Word(0), 0, 8).As("sigprocmask")
	s.Call(unix.SYS_EXECVEAT, program, s.String(""), s.Strings(args), s.Strings(nil), unix.AT_EMPTY_PATH).As("exec")
}

// shardNamespaces are a shard's own: nothing of the host's can be reached from it but what it is given.
const shardNamespaces = unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS

// spawnShard makes the process of a shard: its own session and namespaces, an empty root, no capabilities, and the
// descriptors of the FD constants.
func spawnShard(spec *ShardSpec, store int, emptyDir string) (int, error) {
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open /dev/null: %w", err)
	}
	defer func() { _ = unix.Close(null) }()
	logFD := spec.Log
	if logFD < 0 {
		logFD = null
	}
	low := [LowFDs]int{
		1: logFD, 2: logFD, FDListener: spec.Listener, FDStore: store,
		FDCgroupV2: spec.CgroupV2, FDCgroupMemory: spec.CgroupMemory, FDCgroupCPU: spec.CgroupCPU, FDCgroupPIDs: spec.CgroupPIDs,
	}
	ps := make([]placement, LowFDs)
	for to, from := range low {
		if from <= 0 {
			from = null
		}
		ps[to] = placement{from, to}
	}
	var s spawn.Script
	s.Call(unix.SYS_SETSID).As("setsid")
	s.Call(unix.SYS_UNSHARE, shardNamespaces).As("unshare")
	// The keeper's own score is as low as can be; commands inherit the shard's, and mustn't have that.
	score := s.Call(unix.SYS_OPENAT, atFDCWD, s.String("/proc/self/oom_score_adj"), unix.O_WRONLY|unix.O_CLOEXEC).Ignore()
	zero := s.Call(unix.SYS_WRITE, 0, s.String("0"), 1).Ignore()
	score.SaveTo(zero, 0)
	program := place(&s, ps, spec.Program)
	root, dot := s.String("/"), s.String(".")
	empty := s.String(emptyDir)
	s.Call(unix.SYS_MOUNT, 0, root, 0, unix.MS_REC|unix.MS_PRIVATE, 0).As("make / private")
	s.Call(unix.SYS_MOUNT, empty, empty, 0, unix.MS_BIND, 0).As("bind the empty directory")
	s.Call(unix.SYS_CHDIR, empty).As("chdir")
	s.Call(unix.SYS_PIVOT_ROOT, dot, dot).As("pivot_root")
	s.Call(unix.SYS_UMOUNT2, dot, unix.MNT_DETACH).As("umount2")
	s.Call(unix.SYS_CHDIR, root).As("chdir")
	uid := uintptr(spec.UID)
	s.Call(unix.SYS_SETGROUPS, 0, 0).As("setgroups")
	s.Call(unix.SYS_SETRESGID, uid, uid, uid).As("setresgid")
	s.Call(unix.SYS_SETRESUID, uid, uid, uid).As("setresuid")
	exec(&s, program, spec.Argv)
	out, err := spawn.Run(spawn.Attr{Cgroup: spec.SelfDir}, &s)
	if err != nil {
		return 0, err
	}
	if out.Failed != nil {
		_, _ = spawn.Wait(out.PID)
		return 0, out.Failed
	}
	return out.PID, nil
}

const atFDCWD = ^uintptr(99) // AT_FDCWD
