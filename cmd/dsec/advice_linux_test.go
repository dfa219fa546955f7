package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/dsec-io/dsec/internal/doctor"
	"github.com/dsec-io/dsec/internal/need"
)

// minimal stands in for sysctl(8) where that isn't installed.
const minimal = `command -v sysctl >/dev/null || sysctl() { echo "${2#*=}" >"/proc/sys/$(echo "${2%%=*}" | tr . /)"; }
`

// TestDoctorAdviceWorks makes a machine worse for one process, asks the doctor, does what it says, and asks again.
// Sysctls are files of the test's own there, mounted over the machine's in a mount namespace.
func TestDoctorAdviceWorks(t *testing.T) {
	need.Root(t)
	need.Command(t, "mount")
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	sysctl := filepath.Join(dir, "sysctl")
	for check, worse := range map[string]string{
		"inotify":          "mount --bind " + sysctl + " /proc/sys/fs/inotify/max_user_instances",
		"pid-max":          "mount --bind " + sysctl + " /proc/sys/kernel/pid_max",
		"mounts":           "mount --bind " + sysctl + " /proc/sys/fs/mount-max",
		"open-files":       "ulimit -n 4096",
		"terminals":        "mount --bind " + sysctl + " /proc/sys/kernel/pty/max",
		"mappings":         "mount --bind " + sysctl + " /proc/sys/vm/max_map_count",
		"namespace-limits": "mount --bind " + sysctl + " /proc/sys/user/max_net_namespaces",
		"machine-files":    "mount --bind " + sysctl + " /proc/sys/fs/aio-max-nr",
	} {
		t.Run(check, func(t *testing.T) {
			ask := func(advice string) doctor.Check {
				t.Helper()
				if err := os.WriteFile(sysctl, []byte("128\n"), 0o600); err != nil {
					t.Fatal(err)
				}
				script := "set -e\n" + minimal + worse + "\n{ :\n" + advice + "\n} >&2\nexec " + self + " doctor --json --data " + dir + "/data --id-ranges " + dir + "/ids.json"
				cmd := exec.CommandContext(t.Context(), "sh", "-c", script)
				cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
				cmd.Env = append(os.Environ(), asProgram+"=1")
				out, err := cmd.Output()
				var r doctor.Report
				if jsonErr := json.Unmarshal(out, &r); jsonErr != nil {
					t.Fatalf("%v, %v: %s", err, jsonErr, out)
				}
				i := slices.IndexFunc(r.Checks, func(c doctor.Check) bool { return c.Name == check })
				if i < 0 {
					t.Fatalf("nothing about %s", check)
				}
				return r.Checks[i]
			}
			before := ask("")
			if before.Status != doctor.Degraded || before.Fix == "" {
				t.Fatalf("before: %+v", before)
			}
			if _, command := strings.CutPrefix(before.Fix, "whoever starts"); command {
				if out, err := exec.CommandContext(t.Context(), "sh", "-c", "ulimit -n 1048576").CombinedOutput(); err == nil {
					t.Errorf("the limit could be raised here: %s", out)
				}
				return // nothing that this process could do
			}
			if after := ask(before.Fix); after.Status != doctor.OK {
				t.Errorf("after `%s`: %+v", before.Fix, after)
			}
		})
	}
}

// TestDoctorAdviceOnFolders: another data folder is what helps where none can be.
func TestDoctorAdviceOnFolders(t *testing.T) {
	need.Root(t)
	dir := t.TempDir()
	for data, want := range map[string]doctor.Status{"/proc/none": doctor.Missing, dir + "/data": doctor.OK} {
		out, stderr, _ := dsec(t, []string{"HOME=" + dir}, "", "doctor", "--json", "--data", data, "--id-ranges", dir+"/ids.json")
		var r doctor.Report
		if err := json.Unmarshal([]byte(out), &r); err != nil {
			t.Fatalf("%v: %q, %s", err, out, stderr)
		}
		for _, c := range r.Checks {
			if c.Name == "data-folder" && c.Status != want {
				t.Errorf("with --data %s: %+v", data, c)
			}
		}
	}
}
