package record

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"testing"

	"github.com/dsec-io/dsec/internal/linux/proc"
	"golang.org/x/sys/unix"
)

func TestStateFindsItsProcessOnly(t *testing.T) {
	boot, err := proc.BootID()
	if err != nil {
		t.Fatal(err)
	}
	start, err := proc.StartTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	mine := State{Boot: boot, PID: os.Getpid(), StartTime: start}
	fd, err := mine.Open(boot)
	if err != nil {
		t.Fatalf("Open() of this process = %v", err)
	}
	unix.Close(fd)

	cmd := exec.Command("true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	zombieStart, err := proc.StartTime(pid)
	if err != nil {
		t.Fatal(err)
	}
	// Until it is waited for it stays a zombie, whose pid and start time are all there.
	if err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]State{
		"another-process": {Boot: boot, PID: os.Getpid(), StartTime: start + 1},
		"another-boot":    {Boot: "x", PID: os.Getpid(), StartTime: start},
		"never-born":      {Boot: boot},
		"zombie":          {Boot: boot, PID: pid, StartTime: zombieStart},
		"no-process":      {Boot: boot, PID: 1<<22 - 1, StartTime: 1},
	} {
		if fd, err := s.Open(boot); !errors.Is(err, ErrGone) {
			t.Errorf("%s: Open() = %d, %v, want ErrGone", name, fd, err)
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

func TestStateSurvivesTheRecord(t *testing.T) {
	want := State{Boot: "b", Shard: "shard-3", Project: "p", Own: true, Owner: 7, Base: 65536, PID: 9, StartTime: 8, User: "u", Hostname: "h", CPUs: 2}
	got, err := Decode(want.Encode())
	if err != nil || *got != want {
		t.Errorf("Decode(Encode()) = %+v, %v", got, err)
	}
	for _, nothing := range []string{"", "null", "{}"} {
		if s, err := Decode(json.RawMessage(nothing)); err != nil || *s != (State{}) {
			t.Errorf("Decode(%q) = %+v, %v", nothing, s, err)
		}
	}
	if _, err := Decode(json.RawMessage("{")); err == nil {
		t.Error("Decode of half a document worked")
	}
}
