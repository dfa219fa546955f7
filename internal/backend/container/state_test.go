package container

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"slices"
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
	mine := state{Boot: boot, PID: os.Getpid(), StartTime: start}
	fd, err := mine.open(boot)
	if err != nil {
		t.Fatalf("open() of this process = %v", err)
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
	for name, s := range map[string]state{
		"another-process": {Boot: boot, PID: os.Getpid(), StartTime: start + 1},
		"another-boot":    {Boot: "x", PID: os.Getpid(), StartTime: start},
		"never-born":      {Boot: boot},
		"zombie":          {Boot: boot, PID: pid, StartTime: zombieStart},
		"no-process":      {Boot: boot, PID: 1<<22 - 1, StartTime: 1},
	} {
		if fd, err := s.open(boot); !errors.Is(err, errGone) {
			t.Errorf("%s: open() = %d, %v, want errGone", name, fd, err)
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

func TestStateSurvivesTheRecord(t *testing.T) {
	want := state{Boot: "b", Shard: "shard-3", Project: "p", Own: true, Owner: 7, Base: 65536, PID: 9, StartTime: 8, User: "u", Hostname: "h", CPUs: 2}
	got, err := decodeState(want.encode())
	if err != nil || *got != want {
		t.Errorf("decodeState(encode()) = %+v, %v", got, err)
	}
	for _, nothing := range []string{"", "null", "{}"} {
		if s, err := decodeState(json.RawMessage(nothing)); err != nil || *s != (state{}) {
			t.Errorf("decodeState(%q) = %+v, %v", nothing, s, err)
		}
	}
	if _, err := decodeState(json.RawMessage("{")); err == nil {
		t.Error("decodeState of half a document worked")
	}
}

func TestWorkdirOwner(t *testing.T) {
	for user, want := range map[string][2]uint32{
		"": {0, 0}, "root": {0, 0}, "0": {0, 0}, "1000": {1000, 1000}, "1000:50": {1000, 50}, "1000:staff": {1000, 1000}, "app:7": {0, 0}, "-1": {0, 0},
	} {
		if u, g := workdirOwner(user); u != want[0] || g != want[1] {
			t.Errorf("workdirOwner(%q) = %d, %d, want %v", user, u, g, want)
		}
	}
}

func TestNamesHost(t *testing.T) {
	for hosts, want := range map[string]bool{
		"": false, "127.0.0.1 localhost": false, "127.0.0.1 localhost box": true, "127.0.0.1\tbox # x\n": true,
		"127.0.0.1 boxer": false, "# 127.0.0.1 box": false, "box 127.0.0.1": false,
	} {
		if got := namesHost(hosts, "box"); got != want {
			t.Errorf("namesHost(%q) = %v", hosts, got)
		}
	}
}

func TestUndoRunsBackwardsOnce(t *testing.T) {
	var u undo
	var got []int
	for i := range 3 {
		u.push(func() { got = append(got, i) })
	}
	u.run()
	u.run()
	if !slices.Equal(got, []int{2, 1, 0}) {
		t.Errorf("order %v", got)
	}
	u.push(func() { t.Error("run after release") })
	u.release()
	u.run()
}
