// Package userns makes the user namespaces of sandboxes, which belong to the shard that will enter them.
package userns

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/dsec-io/dsec/internal/backend/container/knobs"
	"github.com/dsec-io/dsec/internal/idrange"
	"github.com/dsec-io/dsec/internal/spawn"
	"golang.org/x/sys/unix"
)

// limits are the limits of a sandbox's user namespace: they hold for all of its processes and keep one tenant from
// using up what the kernel counts per owner, which here is the whole shard.
func limits() map[string]string {
	return map[string]string{
		"max_inotify_instances": "128", // the kernel's default for a user
		"max_inotify_watches":   "65536",
		"max_user_namespaces":   "64",
		"max_pid_namespaces":    "64",
		"max_net_namespaces":    "64",
		"max_mnt_namespaces":    "64",
		"max_ipc_namespaces":    "64",
		"max_uts_namespaces":    "64",
		"max_cgroup_namespaces": "64",
		"max_time_namespaces":   "64",
	}
}

// New makes a user namespace that owner owns and that maps its first ids to base and up.
//
// The child takes owner's uid before it makes the namespace, because the namespace belongs to whoever makes it. It then
// waits for its maps, which only somebody outside can write. That can't be the goroutine that made it, whose thread is
// in vfork until the child is done; another one does it, and needs no thread of the first, since the P is released.
func New(owner, base uint32, watch *spawn.Watch, k *knobs.Knobs) (_ int, err error) {
	proc, err := k.Take()
	if err != nil {
		return -1, err
	}
	defer unix.Close(proc)
	var ready, mapped [2]int
	if err := unix.Pipe2(ready[:], unix.O_CLOEXEC); err != nil {
		return -1, fmt.Errorf("make pipe: %w", err)
	}
	defer unix.Close(ready[0])
	if err := unix.Pipe2(mapped[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil { // the child polls it
		_ = unix.Close(ready[1])
		return -1, fmt.Errorf("make pipe: %w", err)
	}
	defer unix.Close(mapped[0])
	defer unix.Close(mapped[1])

	var s spawn.Script
	script(&s, owner, proc, [2]int{ready[1], mapped[0]})
	fd := -1
	writer := make(chan error, 1)
	go func() {
		var e error
		fd, e = mapIDs(ready[0], base)
		// Told in any case: the child holds a copy of the pipe's other end, so a close would not reach it.
		_, we := unix.Write(mapped[1], []byte{1})
		writer <- errors.Join(e, we)
	}()
	out, err := spawn.Run(spawn.Attr{Cgroup: -1, Watch: watch}, &s)
	_ = unix.Close(ready[1]) // a child that failed early has written nothing: now its reader sees the end
	werr := <-writer
	if err == nil {
		_, _ = spawn.Wait(out.PID)
		if out.Failed != nil {
			err = out.Failed
		} else {
			err = werr
		}
	}
	if err != nil {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
		return -1, fmt.Errorf("make user namespace for ids from %d: %w", base, err)
	}
	return fd, nil
}

// mapsWithin is how long a child waits for its maps, in seconds. They take some milliseconds.
const mapsWithin = 15

// script tells its number to the first of the pipes, and is told by the second.
func script(s *spawn.Script, owner uint32, proc int, pipes [2]int) {
	told, mapped := pipes[0], pipes[1]
	const noSetuidFixup = 1 << 2 // SECBIT_NO_SETUID_FIXUP: keep the capabilities, for hosts that allow only root to unshare
	o := uintptr(owner)
	pid := s.Call(unix.SYS_GETPID)
	s.Call(unix.SYS_PRCTL, unix.PR_SET_SECUREBITS, noSetuidFixup).Ignore()
	s.Call(unix.SYS_SETRESGID, o, o, o).As("setresgid to the owner")
	s.Call(unix.SYS_SETRESUID, o, o, o).As("setresuid to the owner")
	s.Call(unix.SYS_UNSHARE, unix.CLONE_NEWUSER).As("unshare the user namespace")
	// When the edge is killed now, nobody writes the maps, and the pipe has no end: this child has a copy of its other side,
	// and so have those that wait beside it. It would hold all that it has inherited for ever, the data folder's lock too.
	// To change the credentials takes the order back, so it comes after, and the wait ends by itself for an edge that was
	// killed before.
	s.Call(unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL)).As("end with the edge")
	s.Call(unix.SYS_WRITE, uintptr(told), pid.Addr(), 8).As("tell")
	ready := s.Word(uint64(uint32(mapped))|unix.POLLIN<<32, mapsWithin, 0) // a pollfd and a timespec
	s.Call(unix.SYS_PPOLL, ready, 1, ready+8, 0, 0).As("wait for the id maps")
	s.Call(unix.SYS_READ, uintptr(mapped), s.Word(0), 1).As("see the id maps")
	for name, value := range limits() {
		// Not every kernel knows all of them.
		open := s.Call(unix.SYS_OPENAT, uintptr(proc), s.String("sys/user/"+name), unix.O_WRONLY|unix.O_CLOEXEC).Ignore()
		write := s.Call(unix.SYS_WRITE, 0, s.String(value), uintptr(len(value))).Ignore()
		open.SaveTo(write, 0)
	}
	s.Exit()
}

// mapIDs waits until the child has told its number, writes its maps and opens its namespace.
func mapIDs(ready int, base uint32) (int, error) {
	var b [8]byte
	n, err := readFull(ready, b[:])
	if err != nil || n != len(b) {
		return -1, errors.Join(errors.New("the child ended before it had a namespace"), err)
	}
	pid := 0
	for i, v := range b {
		pid |= int(v) << (8 * i)
	}
	dir := "/proc/" + strconv.Itoa(pid)
	line := fmt.Appendf(nil, "0 %d %d\n", base, idrange.Size)
	for _, f := range []string{"/uid_map", "/gid_map"} {
		if err := os.WriteFile(dir+f, line, 0); err != nil {
			return -1, fmt.Errorf("write id map: %w", err)
		}
	}
	fd, err := unix.Open(dir+"/ns/user", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open user namespace: %w", err)
	}
	return fd, nil
}

func readFull(fd int, b []byte) (int, error) {
	n := 0
	for n < len(b) {
		m, err := unix.Read(fd, b[n:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || m == 0 {
			return n, err
		}
		n += m
	}
	return n, nil
}
