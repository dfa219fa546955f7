// Package proc reads what /proc says about processes and this boot.
package proc

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
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
