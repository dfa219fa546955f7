// Package proc reads what /proc says about processes and this boot.
package proc

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// StartTime is when the process pid started, in clock ticks since boot. Together with the boot it tells processes apart
// that had the same number. An error that is fs.ErrNotExist means that there is no such process.
func StartTime(pid int) (uint64, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, err
	}
	// The name stands in parentheses and may hold anything, parentheses too.
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	const startTime = 22 - 3 // fields behind the name begin with the third
	if len(fields) <= startTime {
		return 0, fmt.Errorf("/proc/%d/stat has %d fields behind the name", pid, len(fields))
	}
	return strconv.ParseUint(string(fields[startTime]), 10, 64)
}

// BootID names this boot of the machine.
func BootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read boot id: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// RaiseNoFile lifts this process's limit of open files to the highest it may have, and returns that.
func RaiseNoFile() (uint64, error) {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return 0, fmt.Errorf("read the limit of open files: %w", err)
	}
	if l.Cur == l.Max {
		return l.Max, nil
	}
	l.Cur = l.Max
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return 0, fmt.Errorf("raise the limit of open files to %d: %w", l.Max, err)
	}
	return l.Max, nil
}

// RaiseSysctl sets a number under /proc/sys to at least value. It tells what it was and whether it was changed.
func RaiseSysctl(name string, value int64) (was int64, changed bool, err error) {
	path := "/proc/sys/" + strings.ReplaceAll(name, ".", "/")
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, false, fmt.Errorf("read %s: %w", name, err)
	}
	was, err = strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		return 0, false, fmt.Errorf("read %s: %w", name, err)
	}
	if was >= value {
		return was, false, nil
	}
	if err := os.WriteFile(path, []byte(strconv.FormatInt(value, 10)), 0); err != nil {
		return was, false, fmt.Errorf("raise %s from %d to %d: %w", name, was, value, err)
	}
	return was, true, nil
}
