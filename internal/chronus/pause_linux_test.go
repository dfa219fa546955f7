package chronus_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
)

// inside is the path of a sandbox's file as the host sees it, whatever the shard does.
func (s *sandbox) inside(path string) string {
	return fmt.Sprintf("/proc/%d/root%s", s.initPID(), path)
}

func (s *sandbox) initPID() int {
	s.Helper()
	var st struct{ PID int }
	if err := json.Unmarshal(s.box.State(), &st); err != nil || st.PID == 0 {
		s.Fatalf("state %s: %v", s.box.State(), err)
	}
	return st.PID
}

func (s *sandbox) pause() {
	s.Helper()
	if err := s.box.Pause(s.Context()); err != nil {
		s.Fatal(err)
	}
	if frozen, err := s.box.Paused(); err != nil || !frozen {
		s.Fatalf("Paused() = %v, %v after a pause", frozen, err)
	}
}

func (s *sandbox) resume() {
	s.Helper()
	if err := s.box.Resume(s.Context()); err != nil {
		s.Fatal(err)
	}
	if frozen, err := s.box.Paused(); err != nil || frozen {
		s.Fatalf("Paused() = %v, %v after a resume", frozen, err)
	}
}

// pass lets real time pass: what is to be shown is that it makes no difference.
func pass(d time.Duration) { <-time.After(d) }

// members are all processes of the sandbox, in no order of importance.
func (s *sandbox) members() []string {
	s.Helper()
	dirs, err := filepath.Glob(filepath.Join(s.folder(), "*", "cgroup.procs"))
	if err != nil {
		s.Fatal(err)
	}
	var all []string
	for _, f := range append(dirs, filepath.Join(s.folder(), "cgroup.procs")) {
		raw, err := os.ReadFile(f)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			s.Fatal(err)
		}
		all = append(all, strings.Fields(string(raw))...)
	}
	slices.Sort(all)
	return all
}

// folder is the sandbox's directory of cgroup v2.
func (s *sandbox) folder() string {
	s.Helper()
	for _, root := range []string{"/sys/fs/cgroup/unified", "/sys/fs/cgroup"} {
		found, err := filepath.Glob(filepath.Join(root, "dsec-"+s.instance, "shard-*", s.id, "cgroup.freeze"))
		if err == nil && len(found) == 1 {
			return filepath.Dir(found[0])
		}
	}
	s.Fatal("no cgroup v2 directory")
	return ""
}

// A tree that forks as fast as it can, in sessions of its own, beside programs that count, wait for a vforked child, are
// stopped, or sleep: nothing of it runs while the sandbox is paused, and all of it goes on.
func TestPausedTreeStandsStill(t *testing.T) {
	s := newSandbox(t)
	c := s.exec(keep("tree", `mkdir -p /c; cd /c
count() { i=0; while :; do i=$((i+1)); echo $i >$1.new; mv $1.new $1; done; }
fork() { j=0; while :; do (:); ( (:) & ); j=$((j+1)); echo $j >$1.new; mv $1.new $1; done; }
count a & (setsid sh -c 'i=0; while :; do i=$((i+1)); echo $i >b.new; mv b.new b; done' &)
fork d & (fork e &); (sh -c 'kill -STOP $$; sleep 1000' &)
setsid sleep 1000 & echo up; wait`))
	c.until("its start", func() bool { return bytes.Contains(c.out[0], []byte("up")) })
	read := func() string {
		var all []string
		for _, f := range []string{"a", "b", "d", "e"} {
			raw, err := os.ReadFile(s.inside("/c/" + f))
			if err != nil {
				return ""
			}
			all = append(all, strings.TrimSpace(string(raw)))
		}
		return strings.Join(all, " ")
	}
	eventually(t, "all to count", func() bool { return read() != "" })
	for round := range 3 {
		s.pause()
		counts, tree := read(), s.members()
		pass(50 * time.Millisecond) // for the kernel to add up what was used before
		used, err := s.box.Usage()
		if err != nil {
			t.Fatal(err)
		}
		pass(400 * time.Millisecond)
		after, err := s.box.Usage()
		if err != nil {
			t.Fatal(err)
		}
		if got := read(); got != counts || counts == "" {
			t.Errorf("round %d: counters %q became %q while paused", round, counts, got)
		}
		if got := s.members(); !slices.Equal(got, tree) {
			t.Errorf("round %d: processes %v became %v while paused", round, tree, got)
		}
		if d := after.CPUNanos - used.CPUNanos; d != 0 {
			t.Errorf("round %d: %v of processor time were used while paused", round, time.Duration(d))
		}
		s.resume()
		for i, was := range strings.Fields(counts) {
			eventually(t, "counter "+was+" to go on", func() bool {
				now := strings.Fields(read())
				return len(now) == 4 && now[i] != was
			})
		}
	}
}

// Kept output, the process list and everything else is there again when a shard dies while its sandbox is paused, and the
// new one doesn't touch what is frozen.
func TestShardDiesWhilePaused(t *testing.T) {
	s := newSandbox(t)
	const lines = 3000
	c := s.exec(keep("long", fmt.Sprintf(`i=0; while [ $i -lt %d ]; do echo line $i; i=$((i+1)); [ $((i %% 100)) = 0 ] && sleep 0.01; done; exit 9`, lines)))
	c.until("its first lines", func() bool { return len(c.out[0]) > 1000 })
	s.pause()
	for range 3 {
		s.killShard()
		if list := s.processes(); len(list) != 1 || !list[0].Running {
			t.Fatalf("processes after the shard's death: %+v", list)
		}
		wantCode(t, s.exe("true"), api.CodeFrozen)
		if err := s.unary("session.create", []byte(`{"id":"u","user":"root"}`), nil); !api.IsCode(err, api.CodeFrozen) {
			t.Errorf("a session of a user's: %v", err)
		}
		if frozen, err := s.box.Paused(); err != nil || !frozen {
			t.Fatalf("Paused() = %v, %v after the shard's death", frozen, err)
		}
	}
	s.pause() // a repeat is success
	s.resume()
	s.resume()
	wantExit(t, s.exe("true"), 0)
	// Thawed by somebody who couldn't reach the shard, it isn't paused.
	s.pause()
	if err := os.WriteFile(filepath.Join(s.folder(), "cgroup.freeze"), []byte("0"), 0); err != nil {
		t.Fatal(err)
	}
	wantExit(t, s.exe("true"), 0)
	r := s.attach(aether.Attach{ID: "long"}).finish()
	wantExit(t, r, 9)
	wantLines(t, r.out[0], lines)
	if st := s.stats(); st.Stopped != 0 {
		t.Errorf("%d helpers were stopped", st.Stopped)
	}
}

// A time-out counts the time in which the command could run, over a shard's death too; so does the grace of an interruption.
func TestTimeoutsStandStillWhilePaused(t *testing.T) {
	s := newSandbox(t)
	const limit = 2 * time.Second
	start := func(id string) *call {
		e := keep(id, `echo up; read x; exit 3`)
		e.TimeoutMS, e.Stdin = limit.Milliseconds(), true
		c := s.exec(e)
		c.until("its start", func() bool { return len(c.out[0]) > 0 })
		return c
	}
	session := s.newSession(api.Session{})
	stubborn := s.exec(aether.ExecStart{ID: "deaf", Shell: []byte(`trap '' INT; echo up; while :; do sleep 0.01; done`), Session: session})
	stubborn.until("its start", func() bool { return len(stubborn.out[0]) > 0 })
	began := time.Now()
	start("answered")
	silent := time.Now()
	start("silent")
	interrupted := make(chan error, 1)
	stream, err := s.connect().Open(t.Context(), aether.Open{Method: "session.interrupt", Sandbox: s.id, Body: []byte(session), Closed: true})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		_, err := stream.Recv(t.Context())
		interrupted <- err
	}()
	s.pause()
	paused := time.Now()
	pass(limit + time.Second)
	select {
	case err := <-interrupted:
		t.Errorf("the interruption ended while paused: %v", err)
	default:
	}
	if list := s.processes(); !list[0].Running || !list[1].Running || !list[2].Running {
		t.Errorf("ended while paused: %+v", list)
	}
	stood := time.Since(paused) // at least
	s.resume()
	if err := <-interrupted; err != nil {
		t.Errorf("interruption: %v", err)
	}
	s.pause()
	paused = time.Now()
	s.killShard()
	pass(limit / 2)
	stood += time.Since(paused)
	s.resume()
	c := s.attach(aether.Attach{ID: "answered", Stdin: true})
	if err := c.st.Write(t.Context(), aether.Stdin, []byte("x\n")); err != nil {
		t.Fatal(err)
	}
	r := c.finish()
	if ran := time.Since(began) - stood; ran < limit { // else the machine was too slow to tell
		wantExit(t, r, 3)
	} else {
		t.Logf("too slow: it ran for %v", ran)
	}
	r = s.attach(aether.Attach{ID: "silent"}).finish()
	if r.err != nil || !r.exited.TimedOut {
		t.Fatalf("silent: %v, %+v", r.err, r.exited)
	}
	if ran := time.Since(silent) - stood; ran < limit {
		t.Errorf("timed out after it had run for %v", ran)
	}
}

// Nothing is ever caught half-way: each command that races with pauses runs whole, or is refused before anything ran, and
// no helper is frozen or killed.
func TestPauseRacesStarts(t *testing.T) {
	s := newSandbox(t)
	s.sh(`echo hello >/f; (nc -lk -p 80 -e cat >/dev/null 2>&1 &)`)
	ctx, cancel := context.WithCancel(t.Context())
	var ran, refused, visits atomic.Int64
	var wg sync.WaitGroup
	for i := range 3 {
		wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				r := s.exec(aether.ExecStart{Shell: fmt.Appendf(nil, "echo %d >/n%d", n, i)}).finish()
				switch {
				case api.IsCode(r.err, api.CodeFrozen):
					if raw, err := os.ReadFile(s.inside(fmt.Sprintf("/n%d", i))); err == nil && string(raw) == fmt.Sprintf("%d\n", n) {
						t.Errorf("%d ran and was refused", n)
					}
					refused.Add(1)
				case r.err != nil || r.exited.Code != 0 || r.exited.Signal != 0:
					t.Errorf("exec: %v, %+v", r.err, r.exited)
					return
				default:
					ran.Add(1)
				}
			}
		})
	}
	wg.Go(func() {
		for ctx.Err() == nil {
			err := s.unary("file.op", []byte(`{"op":"stat","path":"L2Y="}`), nil)
			if err != nil && !api.IsCode(err, api.CodeFrozen) {
				t.Errorf("stat: %v", err)
				return
			}
			visits.Add(1)
		}
	})
	for range 60 {
		s.pause()
		for _, pid := range s.members() {
			if comm, _ := os.ReadFile("/proc/" + pid + "/comm"); bytes.Contains(comm, []byte("dsec-aeth")) {
				t.Errorf("a helper is frozen: %s", comm)
			}
		}
		s.resume()
		before := ran.Load()
		eventually(t, "a command", func() bool { return ran.Load() > before || t.Failed() })
	}
	cancel()
	wg.Wait()
	var st struct {
		Stopped int64 `json:"stopped_helpers"`
		Expired int64 `json:"expired_helpers"`
	}
	if err := s.unary("stats", nil, &st); err != nil || st.Stopped+st.Expired > 0 {
		t.Errorf("helpers were killed: %+v, %v", st, err)
	}
	t.Logf("%d ran, %d were refused, %d visits", ran.Load(), refused.Load(), visits.Load())
	if refused.Load() == 0 {
		t.Error("no command met a pause")
	}
}

// mountUnserved mounts a file system that nobody serves at a directory of the sandbox, until the test ends or release is
// called: whoever looks at it waits in the kernel.
func (s *sandbox) mountUnserved(dir string) (release func()) {
	s.Helper()
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		s.Fatal(err)
	}
	release = sync.OnceFunc(func() { _ = f.Close() })
	s.Cleanup(release)
	mount := exec.CommandContext(s.Context(), "nsenter", "-t", strconv.Itoa(s.initPID()), "-m", "mount", "-t", "fuse",
		"-o", "fd=3,rootmode=40000,user_id=0,group_id=0,allow_other", "none", dir)
	mount.ExtraFiles = []*os.File{f}
	if out, err := mount.CombinedOutput(); err != nil {
		s.Fatalf("mount: %v: %s", err, out)
	}
	return release
}

// A process that waits in the kernel can't be stopped: the pause fails in its time, names it, and everything goes on.
func TestPauseThatFailsIsTakenBack(t *testing.T) {
	s := newSandbox(t)
	s.sh("mkdir /lazy")
	c := s.exec(keep("counter", `i=0; while :; do i=$((i+1)); echo $i; sleep 0.01; done`))
	c.until("its start", func() bool { return len(c.out[0]) > 0 })
	release := s.mountUnserved("/lazy")
	reader := s.exec(keep("reader", `echo up; exec cat /lazy/file`))
	reader.until("its start", func() bool { return reader.started != nil })
	eventually(t, "the reader to wait", func() bool {
		var list []string
		for _, p := range s.members() {
			if raw, err := os.ReadFile("/proc/" + p + "/status"); err == nil && bytes.Contains(raw, []byte("State:\tD")) && bytes.Contains(raw, []byte("cat\n")) {
				list = append(list, p)
			}
		}
		return len(list) == 1
	})
	found := false
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		err := s.box.Pause(ctx)
		cancel()
		e, ok := errors.AsType[*api.Error](err)
		if !ok || e.Code != api.CodeConflict || e.RetryMS == 0 || !strings.Contains(e.Detail, "process reader") {
			t.Fatalf("Pause() = %v, %+v", err, e)
		}
		found = found || strings.Contains(e.Detail, "(cat)")
		t.Log(err)
		if frozen, err := s.box.Paused(); err != nil || frozen {
			t.Fatalf("Paused() = %v, %v after a pause that failed", frozen, err)
		}
		n := len(c.out[0])
		c.until("the counter", func() bool { return len(c.out[0]) > n+20 })
		wantExit(t, s.exe("true"), 0)
	}
	if !found {
		t.Error("the process in the kernel wasn't found")
	}
	release()
	s.pause()
	s.resume()
}

// Killed at any moment of a pause, a sandbox is gone at once, and so is everything that it had.
func TestStopRacesPause(t *testing.T) {
	n := newNode(t)
	const rounds = 200
	var longest time.Duration
	for i := range rounds {
		s := n.sandbox(fmt.Sprintf("b%d", i), nil)
		r := s.exec(keep("x", "(setsid sleep 1000 &); while :; do sleep 0.001; done"))
		for r.started == nil && r.step() {
		}
		var pauses sync.WaitGroup
		pauses.Go(func() {
			for range 1 + i%3 {
				_ = s.box.Pause(t.Context()) // of what may be dead
				if i%4 == 1 {
					_ = s.box.Resume(t.Context())
				}
			}
		})
		if i%5 == 0 {
			pauses.Wait() // frozen for certain, or thawed
		} else {
			pass(time.Duration(i%17) * 100 * time.Microsecond)
		}
		began := time.Now()
		if err := s.box.Stop(t.Context()); err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
		longest = max(longest, time.Since(began))
		pauses.Wait()
		if m, err := filepath.Glob("/sys/fs/cgroup/*/dsec-" + n.instance + "/shard-*/" + s.id); err != nil || len(m) > 0 {
			t.Fatalf("round %d: left %v, %v", i, m, err)
		}
		s.drop()
	}
	t.Logf("longest %v", longest)
	if longest > 20*time.Second {
		t.Errorf("a stop took %v", longest)
	}
}
