package bench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// machine tells in one line what the figures are from.
func machine(ctx context.Context, peers []string) string {
	parts := []string{
		fmt.Sprintf("%s, %d CPUs, %s", field("/proc/cpuinfo", "model name"), runtime.NumCPU(), memory()),
		"Linux " + release(), runtime.Version(),
	}
	for _, p := range peers {
		out, err := exec.CommandContext(ctx, p, "--version").Output()
		first, _, _ := strings.Cut(string(out), "\n")
		if err == nil {
			parts = append(parts, first)
		}
	}
	return strings.Join(parts, "; ")
}

// field finds a "key : value" line of a file of /proc.
func field(file, key string) string {
	raw, err := os.ReadFile(file)
	if err != nil {
		return "?"
	}
	for line := range strings.Lines(string(raw)) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == key {
			return strings.TrimSpace(v)
		}
	}
	return runtime.GOARCH
}

func memory() string {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return "? GiB"
	}
	return fmt.Sprintf("%.1f GiB", float64(info.Totalram)*float64(info.Unit)/(1<<30))
}

func release() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "?"
	}
	return unix.ByteSliceToString(u.Release[:])
}

// load is the machine's load average over the last minute.
func load() string {
	raw, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "?"
	}
	one, _, _ := strings.Cut(string(raw), " ")
	return one
}
