package proc_test

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/dsec-io/dsec/internal/linux/proc"
)

func TestStartTimeTellsProcessesApart(t *testing.T) {
	// A name that looks like the end of the name field.
	dir := t.TempDir()
	odd := filepath.Join(dir, "a) R 1 2")
	if err := os.Symlink("/bin/sleep", odd); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(odd, "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	mine, err := proc.StartTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	its, err := proc.StartTime(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if mine == 0 || its < mine {
		t.Errorf("start times: own %d, child's %d", mine, its)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if _, err := proc.StartTime(cmd.Process.Pid); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("StartTime() of a dead process = %v", err)
	}
}

func TestBootID(t *testing.T) {
	a, err := proc.BootID()
	if err != nil || len(a) != 36 {
		t.Errorf("BootID() = %q, %v", a, err)
	}
}
