package container

import (
	"fmt"
	"strconv"

	"github.com/dsec-io/dsec/internal/spawn"
	"golang.org/x/sys/unix"
)

// showCPUs changes how many processors a living sandbox is shown: a child joins its mount namespace and covers the list
// again. init is the sandbox's init.
func (b *Backend) showCPUs(init, cpus int) error {
	if cpus == 0 {
		cpus = b.node.cpus
	}
	p := plan{node: b.node}
	var s spawn.Script
	s.Call(unix.SYS_SETNS, uintptr(init), unix.CLONE_NEWUSER|unix.CLONE_NEWNS).As("enter the sandbox")
	s.Call(unix.SYS_SETRESGID, 0, 0, 0).As("setresgid")
	s.Call(unix.SYS_SETGROUPS, 0, 0).As("setgroups")
	s.Call(unix.SYS_SETRESUID, 0, 0, 0).As("setresuid")
	p.cover(&s, "cpus/"+strconv.Itoa(cpus), "/sys/devices/system/cpu/online", true)
	s.Exit()
	out, err := spawn.Run(spawn.Attr{Cgroup: -1, Watch: b.watch}, &s)
	if err != nil {
		return err
	}
	if _, err := spawn.Wait(out.PID); err != nil {
		return fmt.Errorf("wait: %w", err)
	}
	if out.Failed != nil {
		return out.Failed
	}
	return nil
}
