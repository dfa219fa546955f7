package spawn

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// parentOf makes o the script of a helper that makes one child, as commands are made.
func parentOf(o, c *Script) {
	o.Reset()
	o.Clone(unix.CLONE_PARENT, c)
	o.Exit()
}

func TestLingerSeesAShortCommandThrough(t *testing.T) {
	var o, c Script
	c.Exit()
	parentOf(&o, &c)
	out := mustRun(t, Attr{Cgroup: -1, Watch: &Watch{}, Linger: time.Minute}, &o)
	if !out.Ended || out.ChildFD < 0 || out.FDErr != nil {
		t.Fatalf("Run() = %+v", out)
	}
	defer unix.Close(out.ChildFD)
	if _, err := Wait(out.PID); !errors.Is(err, unix.ECHILD) {
		t.Errorf("the helper is still there: %v", err)
	}
	if ws := mustWait(t, out.ChildTID); !ws.Exited() || ws.ExitStatus() != 0 {
		t.Errorf("the child ended with %v", ws)
	}
}

func TestLingerLeavesALongCommand(t *testing.T) {
	var o, c Script
	c.Call(unix.SYS_EXECVE, c.String("/bin/sleep"), c.Strings([][]byte{[]byte("sleep"), []byte("1000")}), c.Strings(nil))
	parentOf(&o, &c)
	began := time.Now()
	out := mustRun(t, Attr{Cgroup: -1, Watch: &Watch{}, Linger: 10 * time.Millisecond}, &o)
	if took := time.Since(began); took < 10*time.Millisecond {
		t.Errorf("it waited %v", took)
	}
	if out.Ended || out.ChildFD < 0 {
		t.Fatalf("Run() = %+v", out)
	}
	defer unix.Close(out.ChildFD)
	if err := unix.PidfdSendSignal(out.ChildFD, unix.SIGKILL, nil, 0); err != nil {
		t.Error(err)
	}
	if ws := mustWait(t, out.ChildTID); ws.Signal() != unix.SIGKILL {
		t.Errorf("the child ended with %v", ws)
	}
}

// The watchdog kills children that are stopped on their way to the exec. A command that is stopped afterwards is the
// sandbox's own affair, also while it is being waited for.
func TestWatchdogLeavesCommandsAlone(t *testing.T) {
	var o, c Script
	sh := [][]byte{[]byte("sh"), []byte("-c"), []byte("kill -STOP $$; exit 7")}
	c.Call(unix.SYS_EXECVE, c.String("/bin/sh"), c.Strings(sh), c.Strings(nil))
	parentOf(&o, &c)
	w := &Watch{Tick: time.Millisecond}
	out := mustRun(t, Attr{Cgroup: -1, Watch: w, Linger: 200 * time.Millisecond}, &o)
	if out.Ended || out.ChildFD < 0 {
		t.Fatalf("Run() = %+v", out)
	}
	defer unix.Close(out.ChildFD)
	if err := unix.PidfdSendSignal(out.ChildFD, unix.SIGCONT, nil, 0); err != nil {
		t.Error(err)
	}
	for ws := mustWait(t, out.ChildTID); ; ws = mustWait(t, out.ChildTID) {
		if ws.Stopped() || ws.Continued() {
			continue
		}
		if !ws.Exited() || ws.ExitStatus() != 7 {
			t.Errorf("the command ended with %v", ws)
		}
		break
	}
	if n := w.Stopped.Load(); n != 0 {
		t.Errorf("%d were killed because they were stopped", n)
	}
}
