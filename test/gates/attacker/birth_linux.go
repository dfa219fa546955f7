package main

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// birthReport is what a command has from its birth.
type birthReport struct {
	FDs      []string // "NUMBER TARGET"
	Nonblock []int    // descriptors among them with O_NONBLOCK
	Status   map[string]string
	Cgroup   string
	Visible  []string // processes in /proc
}

func birth() (*birthReport, error) {
	r := &birthReport{Status: make(map[string]string)}
	for fd := range 4096 {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
		if err != nil {
			continue
		}
		target, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
		if err != nil {
			return nil, err
		}
		kind, _, _ := strings.Cut(target, ":")
		r.FDs = append(r.FDs, fmt.Sprintf("%d %s", fd, kind))
		if flags&unix.O_NONBLOCK != 0 {
			r.Nonblock = append(r.Nonblock, fd)
		}
	}
	// Of the thread group's first thread: the runtime changes the signal mask of others only.
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(line, ":")
		r.Status[key] = strings.TrimSpace(value)
	}
	group, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	r.Cgroup = string(group)
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if c := e.Name()[0]; c >= '0' && c <= '9' {
			r.Visible = append(r.Visible, e.Name())
		}
	}
	return r, nil
}
