package spawn

import (
	"errors"
	"runtime"
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
	w := &Watch{Tick: time.Millisecond}
	for range 40 { // one may be stopped before its parent runs again
		leaveAlone(t, w)
	}
	if n := w.Stopped.Load(); n != 0 {
		t.Errorf("%d were killed because they were stopped", n)
	}
}

func leaveAlone(t *testing.T, w *Watch) {
	t.Helper()
	var o, c Script
	sh := [][]byte{[]byte("sh"), []byte("-c"), []byte("kill -STOP $$; exit 7")}
	c.Call(unix.SYS_EXECVE, c.String("/bin/sh"), c.Strings(sh), c.Strings(nil))
	parentOf(&o, &c)
	out := mustRun(t, Attr{Cgroup: -1, Watch: w, Linger: 20 * time.Millisecond}, &o)
	if out.Ended || out.ChildFD < 0 {
		t.Fatalf("Run() = %+v, and it ended with %v", out, mustWait(t, out.ChildTID))
	}
	defer unix.Close(out.ChildFD)
	var ws unix.WaitStatus
	for pid, end := 0, time.Now().Add(time.Minute); pid == 0; runtime.Gosched() {
		// Again and again: on a busy machine it may not have come to its stop yet.
		err := unix.PidfdSendSignal(out.ChildFD, unix.SIGCONT, nil, 0)
		if err == nil {
			pid, err = unix.Wait4(out.ChildTID, &ws, unix.WNOHANG, nil)
		}
		if err != nil || time.Now().After(end) {
			t.Fatalf("the command doesn't go on: %v", err)
		}
	}
	if !ws.Exited() || ws.ExitStatus() != 7 {
		t.Errorf("the command ended with %v", ws)
	}
}
