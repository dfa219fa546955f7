package launch

import (
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/chronus/journal"
)

// SignalTree sends a signal to every process of a command's cgroup. SIGKILL goes to all of them at once.
func (l *Launcher) SignalTree(box, group string, sig unix.Signal) error {
	if sig == unix.SIGKILL {
		if err := l.dirs.KillExec(box, group); err != nil {
			return api.Errorf(api.CodeInternal, "kill the command's processes: %v", err)
		}
		return nil
	}
	fd, err := unix.Openat(l.dirs.V2, box+"/"+group+"/cgroup.procs", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return api.Errorf(api.CodeNoSuchProcess, "the command and its processes have ended")
	}
	defer func() { _ = unix.Close(fd) }()
	list, _, err := journal.ReadAvailable(fd, nil, 1<<20)
	if err != nil {
		return api.Errorf(api.CodeInternal, "list the command's processes: %v", err)
	}
	for word := range strings.FieldsSeq(string(list)) {
		pid, err := strconv.Atoi(word)
		if err != nil || pid <= 0 {
			continue // a process of a pid namespace that can't be seen from here
		}
		pfd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue // ended meanwhile
		}
		// The number may have gone to somebody else between the list and here, but whoever it is, the kernel lets this
		// shard signal its own sandboxes' processes only.
		_ = unix.PidfdSendSignal(pfd, sig, nil, 0)
		_ = unix.Close(pfd)
	}
	return nil
}
