package spawn

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func mustRun(t testing.TB, a Attr, s *Script) Outcome {
	t.Helper()
	out, err := Run(a, s)
	if err != nil {
		t.Fatalf("Run() = %v", err)
	}
	return out
}

func mustWait(t testing.TB, pid int) syscall.WaitStatus {
	t.Helper()
	ws, err := Wait(pid)
	if err != nil {
		t.Fatalf("wait for %d: %v", pid, err)
	}
	return ws
}

var plain = Attr{Cgroup: -1}

func TestResultsGoFromStepToStep(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var s Script
	for range 2 * stepsPerChunk { // over the edge of a chunk
		s.Call(unix.SYS_GETPPID).As("filler").Ignore()
	}
	dup := s.Call(unix.SYS_DUP, w.Fd())
	write := s.Call(unix.SYS_WRITE, 0, s.String("hello"), 5)
	closing := s.Call(unix.SYS_CLOSE, 0)
	dup.SaveTo(write, 0).SaveTo(closing, 0)
	bad := s.Call(unix.SYS_CLOSE, 0xffff).Ignore()
	s.Call(unix.SYS_EXIT_GROUP, 7)
	out := mustRun(t, plain, &s)
	w.Close()
	if out.Failed != nil {
		t.Fatalf("failed: %v", out.Failed)
	}
	if ws := mustWait(t, out.PID); ws.ExitStatus() != 7 {
		t.Errorf("exit status %d, want 7", ws.ExitStatus())
	}
	if got, _ := io.ReadAll(r); string(got) != "hello" {
		t.Errorf("pipe got %q", got)
	}
	if dup.Result() == 0 || write.Result() != 5 {
		t.Errorf("results: dup %d, write %d", dup.Result(), write.Result())
	}
	if bad.Errno() != syscall.EBADF || bad.Result() != 0 {
		t.Errorf("ignored step: errno %v, result %d", bad.Errno(), bad.Result())
	}
}

func TestExecGetsArgvAndEnvironment(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var s Script
	s.Call(unix.SYS_DUP3, w.Fd(), 1, 0)
	argv := s.Strings([][]byte{[]byte("sh"), []byte("-c"), []byte(`printf '%s,%s' "$0" "$X"`), []byte("zero")})
	env := s.Strings([][]byte{[]byte("X=y z")})
	first := s.Call(unix.SYS_EXECVE, s.String("/nonexistent/sh"), argv, env).Ignore()
	s.Call(unix.SYS_EXECVE, s.String("/bin/sh"), argv, env).Ignore()
	s.Call(unix.SYS_EXIT_GROUP, 127)
	out := mustRun(t, plain, &s)
	w.Close()
	got, _ := io.ReadAll(r)
	if ws := mustWait(t, out.PID); ws.ExitStatus() != 0 || string(got) != "zero,y z" {
		t.Errorf("status %v, output %q", ws, got)
	}
	if first.Errno() != syscall.ENOENT {
		t.Errorf("first candidate: %v, want ENOENT", first.Errno())
	}
}

func TestFailureNamesTheStep(t *testing.T) {
	var c, s Script
	c.Call(unix.SYS_GETPID)
	c.Call(unix.SYS_CHDIR, c.String("/nonexistent")).As("enter workdir")
	s.Clone(unix.CLONE_PARENT, &c)
	s.Call(unix.SYS_CLOSE, 0xffff).As("later failure")
	out := mustRun(t, plain, &s)
	mustWait(t, out.PID)
	mustWait(t, out.ChildTID)
	if out.Failed == nil {
		t.Fatal("no failure reported")
	}
	if f := *out.Failed; f.Script != 1 || f.Index != 1 || f.NR != unix.SYS_CHDIR || f.Name != "enter workdir" || !errors.Is(out.Failed, syscall.ENOENT) {
		t.Errorf("failure %+v", f)
	}
}

func TestErrorJumps(t *testing.T) {
	var s Script
	good := s.Call(unix.SYS_GETPID)
	bad := s.Call(unix.SYS_CLOSE, 0xffff)
	skipped := s.Call(unix.SYS_GETPPID)
	last := s.Call(unix.SYS_EXIT_GROUP, 9)
	good.Else(skipped)
	bad.Else(last)
	out := mustRun(t, plain, &s)
	if ws := mustWait(t, out.PID); ws.ExitStatus() != 9 || out.Failed != nil {
		t.Errorf("status %v, failure %v", ws, out.Failed)
	}
	if skipped.Result() != 0 {
		t.Error("the step between was run")
	}
}

func TestCloneThatTheKernelRefuses(t *testing.T) {
	var s Script
	if _, err := Run(Attr{Cgroup: 0xffff}, &s); !errors.Is(err, syscall.EBADF) {
		t.Errorf("Run() = %v, want EBADF", err)
	}
}

func TestNestedChildIsOursWithCloneParent(t *testing.T) {
	var c, s Script
	c.Call(unix.SYS_EXIT_GROUP, 5)
	s.Clone(unix.CLONE_PARENT, &c)
	s.Call(unix.SYS_EXIT_GROUP, 3)
	out := mustRun(t, plain, &s)
	if ws := mustWait(t, out.PID); ws.ExitStatus() != 3 {
		t.Errorf("outer: %v", ws)
	}
	if ws := mustWait(t, out.ChildTID); ws.ExitStatus() != 5 {
		t.Errorf("inner: %v", ws)
	}
}

// The kernel's OOM killer spares this program only while its child is in vfork, so a child that shares its memory must
// never run beside it.
func TestNobodyRunsBesideAChild(t *testing.T) {
	const rest = 30 * time.Millisecond
	var inner, outer Script
	for _, s := range []*Script{&inner, &outer} {
		s.Call(unix.SYS_NANOSLEEP, s.Word(0, uint64(rest)), 0)
	}
	outer.Clone(unix.CLONE_PARENT, &inner)
	began := time.Now()
	out := mustRun(t, plain, &outer)
	if took := time.Since(began); took < 2*rest {
		t.Errorf("Run() returned after %v, while a child was still at its steps", took)
	}
	mustWait(t, out.PID)
	mustWait(t, out.ChildTID)
}

func TestKilledChildIsReported(t *testing.T) {
	var s Script
	pid := s.Call(unix.SYS_GETPID)
	pid.SaveTo(s.Call(unix.SYS_KILL, 0, uintptr(unix.SIGKILL)), 0)
	out := mustRun(t, plain, &s)
	if ws := mustWait(t, out.PID); !ws.Signaled() || ws.Signal() != unix.SIGKILL {
		t.Errorf("status %v, want SIGKILL", ws)
	}
	if out.ChildTID != 0 {
		t.Errorf("ChildTID %d without a child", out.ChildTID)
	}
}

func TestHandlersDoNotSurvive(t *testing.T) {
	var s Script
	old := s.Word(0, 0, 0, 0)
	s.Call(unix.SYS_RT_SIGACTION, uintptr(unix.SIGURG), 0, old, 8)
	act := s.mem.chunks[0]
	out := mustRun(t, plain, &s)
	mustWait(t, out.PID)
	if act[0] != 0 {
		t.Errorf("SIGURG's handler in the child is %#x, want the default", act[0])
	}
}

// stopper is a script whose inner child stops itself before its exec, as a tenant's SIGSTOP would.
func stopper(outer, inner *Script) {
	outer.Reset()
	inner.Reset()
	pid := inner.Call(unix.SYS_GETPID)
	pid.SaveTo(inner.Call(unix.SYS_KILL, 0, uintptr(unix.SIGSTOP)), 0)
	outer.Clone(unix.CLONE_PARENT, inner)
}

// collect forces the garbage collector until the function it returns is called.
func collect() (stop func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				runtime.GC()
			}
		}
	})
	return func() { close(done); wg.Wait() }
}

const (
	roleEnv = "DSEC_SPAWN_TEST_ROLE"
	stops   = 20
)

// runStopped is the body of the two tests below: children stop while the collector is forced and others spawn on.
func runStopped(t testing.TB, hold bool) {
	defer collect()()
	w := &Watch{}
	var wg sync.WaitGroup
	done := make(chan struct{})
	others := 0
	wg.Go(func() {
		var s Script
		for {
			select {
			case <-done:
				return
			default:
			}
			s.Reset()
			s.Exit()
			out, err := Run(Attr{Cgroup: -1, Watch: w, holdP: hold}, &s)
			if err != nil {
				t.Errorf("other: %v", err)
				return
			}
			mustWait(t, out.PID)
			others++
		}
	})
	var o, i Script
	for range stops {
		stopper(&o, &i)
		out := mustRun(t, Attr{Cgroup: -1, Watch: w, holdP: hold}, &o)
		mustWait(t, out.PID)
		if ws := mustWait(t, out.ChildTID); ws.Signal() != unix.SIGKILL {
			t.Errorf("stopped child ended with %v", ws)
		}
	}
	close(done)
	wg.Wait()
	if w.Stopped.Load() != stops || w.Expired.Load() != 0 {
		t.Errorf("watchdog saw %d stops and %d expiries, want %d and 0", w.Stopped.Load(), w.Expired.Load(), stops)
	}
	if others < stops {
		t.Errorf("only %d other spawns during %d stops", others, stops)
	}
	t.Logf("%d other spawns during %d stops", others, stops)
}

func TestStoppedChildFreezesNobody(t *testing.T) { runStopped(t, false) }

// The remedy of the test above is that the P is released. With the P held, the collector waits for the stopped child's
// parent and the watchdog's timer never fires.
func TestHeldPFreezesTheProgram(t *testing.T) {
	if os.Getenv(roleEnv) == "hold" {
		runStopped(t, true)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	cmd := exec.Command(os.Args[0], "-test.run=^TestHeldPFreezesTheProgram$")
	cmd.Env = append(os.Environ(), roleEnv+"=hold")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		t.Fatalf("with the P held the program went on: %v\n%s", err, out.Bytes())
	case <-ctx.Done():
	}
	if err := unix.Kill(-cmd.Process.Pid, unix.SIGKILL); err != nil {
		t.Errorf("kill the frozen program: %v", err)
	}
	if err := <-ended; err == nil {
		t.Error("the killed program ended well")
	}
}

func TestWatchdogEndsWhatNeverComesToItsEnd(t *testing.T) {
	var c, s Script
	c.Call(unix.SYS_PPOLL, 0, 0, 0, 0, 0)
	s.Clone(unix.CLONE_PARENT, &c)
	s.Call(unix.SYS_PPOLL, 0, 0, 0, 0, 0)
	w := &Watch{Tick: 5 * time.Millisecond, Limit: 30 * time.Millisecond}
	out := mustRun(t, Attr{Cgroup: -1, Watch: w}, &s)
	for _, pid := range []int{out.PID, out.ChildTID} {
		if ws := mustWait(t, pid); ws.Signal() != unix.SIGKILL {
			t.Errorf("%d ended with %v", pid, ws)
		}
	}
	if w.Expired.Load() != 1 || w.Stopped.Load() != 0 {
		t.Errorf("expired %d, stopped %d", w.Expired.Load(), w.Stopped.Load())
	}
}

func openFDs(t testing.TB) int {
	t.Helper()
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(d)
}

func TestTenThousandRunsLeakNothing(t *testing.T) {
	const workers, each = 4, 2500
	w := &Watch{}
	fds, routines := openFDs(t), runtime.NumGoroutine()
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			var c, s Script
			arg := [][]byte{bytes.Repeat([]byte("x"), 100)}
			for range each {
				c.Reset()
				s.Reset()
				c.Strings(arg)
				c.Exit()
				s.Clone(unix.CLONE_PARENT, &c)
				out, err := Run(Attr{Cgroup: -1, Watch: w}, &s)
				if err != nil || out.Failed != nil {
					t.Errorf("Run() = %+v, %v", out, err)
					return
				}
				for _, pid := range []int{out.PID, out.ChildTID} {
					if _, err := Wait(pid); err != nil {
						t.Errorf("wait: %v", err)
					}
				}
			}
		})
	}
	wg.Wait()
	if n := openFDs(t); n != fds {
		t.Errorf("%d descriptors, %d before", n, fds)
	}
	// A goroutine is counted for a moment after it has told the WaitGroup that it is done.
	for end := time.Now().Add(time.Minute); runtime.NumGoroutine() > routines; runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("%d goroutines, %d before", runtime.NumGoroutine(), routines)
		}
	}
	var ws syscall.WaitStatus
	if pid, err := syscall.Wait4(-1, &ws, syscall.WNOHANG, nil); err != syscall.ECHILD {
		t.Errorf("a child is left: %d, %v", pid, err)
	}
}

func TestSteadyStateDoesNotAllocate(t *testing.T) {
	var c, s Script
	w := &Watch{}
	argv := [][]byte{[]byte("a"), []byte("b")}
	n := testing.AllocsPerRun(200, func() {
		c.Reset()
		s.Reset()
		c.Strings(argv)
		c.Exit()
		s.Call(unix.SYS_GETPID).SaveTo(s.Call(unix.SYS_GETPGID, 0), 0)
		s.Clone(unix.CLONE_PARENT, &c)
		out, err := Run(Attr{Cgroup: -1, Watch: w}, &s)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = Wait(out.PID)
		_, _ = Wait(out.ChildTID)
	})
	if n != 0 {
		t.Errorf("%v allocations per run", n)
	}
}

func TestResetGivesBackLargeMemory(t *testing.T) {
	var s Script
	s.Bytes(make([]byte, 16<<20))
	s.Reset()
	if n := len(s.mem.chunks); n != 0 {
		t.Errorf("%d chunks kept after a 16 MiB argument", n)
	}
}

func TestTinyInitIgnoresChildrenAndSleeps(t *testing.T) {
	img, err := TinyInit(runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.MemfdCreate("init", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, img); err != nil {
		t.Fatal(err)
	}
	path := "/proc/self/fd/" + strconv.Itoa(fd)
	ro, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)
	defer unix.Close(ro)
	var s Script
	s.Call(unix.SYS_EXECVEAT, uintptr(ro), s.String(""), s.Strings([][]byte{[]byte("init")}), s.Strings(nil), unix.AT_EMPTY_PATH)
	out := mustRun(t, plain, &s)
	if out.Failed != nil {
		t.Fatal(out.Failed)
	}
	sigIgn := func(pid string) uint64 {
		b, _ := os.ReadFile("/proc/" + pid + "/status")
		_, rest, _ := strings.Cut(string(b), "SigIgn:\t")
		line, _, _ := strings.Cut(rest, "\n")
		set, _ := strconv.ParseUint(line, 16, 64)
		return set
	}
	want := sigIgn("self") | 1<<(unix.SIGCHLD-1) // what was ignored before stays so: make ignores signals 32 and 33
	deadline := time.Now().Add(time.Minute)
	for sigIgn(strconv.Itoa(out.PID)) != want && time.Now().Before(deadline) {
		runtime.Gosched()
	}
	if got := sigIgn(strconv.Itoa(out.PID)); got != want {
		t.Errorf("SigIgn %016x, want %016x", got, want)
	}
	if err := unix.Kill(out.PID, unix.SIGKILL); err != nil {
		t.Errorf("init is gone: %v", err)
	}
	mustWait(t, out.PID)
}

func TestTinyInitIsAnELFForBoth(t *testing.T) {
	for arch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		b, err := TinyInit(arch)
		if err != nil {
			t.Fatal(err)
		}
		f, err := elf.NewFile(bytes.NewReader(b))
		if err != nil {
			t.Fatalf("%s: %v", arch, err)
		}
		if f.Machine != machine || len(f.Progs) != 1 || f.Progs[0].Filesz != uint64(len(b)) || len(b) > 256 {
			t.Errorf("%s: machine %v, %d segments, %d bytes", arch, f.Machine, len(f.Progs), len(b))
		}
	}
	if _, err := TinyInit("mips"); err == nil {
		t.Error("TinyInit(mips) worked")
	}
}

func BenchmarkNestedExit(b *testing.B) {
	var c, s Script
	w := &Watch{}
	b.ReportAllocs()
	for b.Loop() {
		c.Reset()
		s.Reset()
		s.Clone(unix.CLONE_PARENT, &c)
		out, err := Run(Attr{Cgroup: -1, Watch: w}, &s)
		if err != nil {
			b.Fatal(err)
		}
		_, _ = Wait(out.PID)
		_, _ = Wait(out.ChildTID)
	}
}
