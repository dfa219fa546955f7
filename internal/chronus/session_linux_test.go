package chronus_test

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
)

func (s *sandbox) newSession(want api.Session) string {
	s.Helper()
	body, err := json.Marshal(want)
	if err != nil {
		s.Fatal(err)
	}
	var got api.Session
	if err := s.unary("session.create", body, &got); err != nil {
		s.Fatal(err)
	}
	return got.ID
}

// in runs a script in a session and returns what it printed.
func (s *sandbox) in(id, script string, env ...string) string {
	s.Helper()
	r := s.exec(aether.ExecStart{Shell: []byte(script), Session: id, Env: bytesOf(env...)}).finish()
	if r.err != nil || r.exited.InfraError != "" {
		s.Fatalf("in session: %q: %v, %+v, %q", script, r.err, r.exited, r.out)
	}
	return string(r.out[0]) + string(r.out[1])
}

func TestSessionKeepsDirectoryAndEnvironment(t *testing.T) {
	s := newSandbox(t)
	id := s.newSession(api.Session{Cwd: "/tmp"})
	s.in(id, `mkdir "it's a
dir"; cd it*; export A="x'y
z" B=1; C=notexported; unset GONE`, "GONE=1", "STAYS=1")
	for _, step := range []struct{ script, want string }{
		{`pwd; echo "$PWD"`, "/tmp/it's a\ndir\n/tmp/it's a\ndir\n"},
		{`echo "$A|$B|$C|$GONE|$STAYS"`, "x'y\nz|1|||1\n"},
		{`unset B STAYS; exit 3`, ""},
		{`echo "$B|$STAYS"; cd ..`, "|\n"},
		{`pwd; set -C; trap 'echo bye' 0; export D=4`, "/tmp\nbye\n"},
		{`echo $D; false`, "4\n"},
		{`echo "unclosed`, ""},
		{`echo $D; cat <<X`, "4\n"},
		{`echo $D; IFS=0123456789; sh -c "exit 12"`, "4\n"},
		{`set -eu; cd /; false; cd /tmp`, ""},
		{`pwd`, "/\n"},
	} {
		got := s.in(id, step.script, "GONE=1", "STAYS=1")
		if got != step.want && step.script != `echo "unclosed` {
			t.Errorf("%q: %q, want %q", step.script, got, step.want)
		}
	}
	r := s.exec(aether.ExecStart{Shell: []byte(`IFS=0123456789; sh -c "exit 12"`), Session: id}).finish()
	wantExit(t, r, 12)
	// Arguments are words, whatever is in them, and builtins act on the session.
	r = s.exec(aether.ExecStart{Argv: bytesOf("cd", "/tmp/it's a\ndir"), Session: id}).finish()
	wantExit(t, r, 0)
	// A changed variable of the caller's counts, and a directory given for once becomes the session's.
	if got := s.in(id, `echo $STAYS; pwd`, "STAYS=2"); got != "2\n/tmp/it's a\ndir\n" {
		t.Errorf("got %q", got)
	}
	var list []api.Session
	if err := s.unary("session.list", nil, &list); err != nil || len(list) != 1 || list[0].Busy || list[0].Cwd != "/tmp/it's a\ndir" {
		t.Errorf("sessions %+v, %v", list, err)
	}
	if err := s.unary("session.close", []byte(id), nil); err != nil {
		t.Error(err)
	}
	wantCode(t, s.exec(aether.ExecStart{Argv: bytesOf("true"), Session: id}).finish(), api.CodeNoSuchSession)
}

func TestSessionsOfAUser(t *testing.T) {
	s := newSandbox(t)
	id := s.newSession(api.Session{User: "1234", Cwd: "/tmp"})
	s.in(id, `export A=1; cd /usr`)
	if got := s.in(id, `id -u; echo $A; pwd`); got != "1234\n1\n/usr\n" {
		t.Errorf("got %q", got)
	}
}

// Case 9.
func TestStuckCommandDoesNotBreakItsSession(t *testing.T) {
	s := newSandbox(t)
	one, two := s.newSession(api.Session{}), s.newSession(api.Session{})
	s.in(one, `cd /tmp; export A=1`)
	for name, stuck := range map[string]string{
		"interruptible": `cd /usr; sleep 999`,
		"stubborn":      `trap '' INT; (trap '' INT; setsid sleep 999) & while :; do sleep 1; done`,
	} {
		t.Run(name, func(t *testing.T) {
			c := s.exec(aether.ExecStart{Shell: []byte("echo up;" + stuck), Session: one})
			c.until("output", func() bool { return len(c.out[0]) > 0 })
			if got := s.in(two, `echo two`); got != "two\n" {
				t.Errorf("the other session: %q", got)
			}
			began := time.Now()
			if err := s.unary("session.interrupt", []byte(one), nil); err != nil {
				t.Fatal(err)
			}
			if got := s.in(one, `pwd; echo $A`); got != "/tmp\n1\n" {
				t.Errorf("after the interruption: %q", got)
			}
			if d := time.Since(began); d > 20*time.Second {
				t.Errorf("took %v", d)
			}
			c.finish()
		})
	}
	r := s.exec(aether.ExecStart{Shell: []byte(`cd /usr; sleep 999`), Session: one, TimeoutMS: 200}).finish()
	if r.exited == nil || !r.exited.TimedOut {
		t.Errorf("%v, %+v", r.err, r.exited)
	}
	if got := s.in(one, `pwd`); got != "/tmp\n" {
		t.Errorf("after a time-out: %q", got)
	}
}

// A command is at work a moment before the shard knows it as running. Whoever has seen it at work can end it all the same.
func TestCommandOfASessionIsEndedHoweverEarly(t *testing.T) {
	s := newSandbox(t)
	const rounds = 60
	slow := 0
	for i := range rounds {
		id := s.newSession(api.Session{})
		c := s.exec(aether.ExecStart{Shell: fmt.Appendf(nil, "echo >/tmp/%d; sleep 999", i), Session: id, TimeoutMS: 60_000})
		mark := fmt.Sprintf("%s/upper/%s/u/tmp/%d", s.data, s.id, i)
		for end := time.Now().Add(time.Minute); ; runtime.Gosched() {
			if _, err := os.Lstat(mark); err == nil {
				break
			}
			if time.Now().After(end) {
				t.Fatal("the command doesn't come to work")
			}
		}
		var list []api.Session
		if err := s.unary("session.list", nil, &list); err != nil || len(list) != 1 || !list[0].Busy {
			t.Errorf("round %d: %+v, %v; want a busy session", i, list, err)
		}
		if i%2 == 0 {
			began := time.Now()
			if err := s.unary("session.interrupt", []byte(id), nil); err != nil {
				t.Fatal(err)
			}
			if time.Since(began) > time.Second {
				slow++
			}
		}
		if err := s.unary("session.close", []byte(id), nil); err != nil {
			t.Fatal(err)
		}
		if r := c.finish(); r.exited == nil || r.exited.TimedOut || r.exited.HasCode && r.exited.Code == 0 {
			t.Fatalf("round %d: %v, %+v", i, r.err, r.exited)
		}
	}
	if slow > rounds/4 { // half of the commands were interrupted, and one that doesn't care is killed after 1.5 s
		t.Errorf("%d interruptions took over a second", slow)
	}
}

func TestSessionCommandsTakeTurns(t *testing.T) {
	s := newSandbox(t)
	id := s.newSession(api.Session{})
	s.in(id, `export N=0`)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			r := s.exec(aether.ExecStart{Shell: []byte(`export N=$((N+1))`), Session: id}).finish()
			if r.err != nil {
				t.Error(r.err)
			}
		})
	}
	wg.Wait()
	if got := s.in(id, `echo $N`); got != "20\n" {
		t.Errorf("N = %q", got)
	}
}

// Case 27, in a session.
func TestSessionWhoseDirectoryIsGone(t *testing.T) {
	s := newSandbox(t)
	id := s.newSession(api.Session{})
	s.in(id, `mkdir /tmp/d; cd /tmp/d`)
	s.sh(`rmdir /tmp/d`)
	e := wantCode(t, s.exec(aether.ExecStart{Argv: bytesOf("pwd"), Session: id}).finish(), api.CodeWorkdirNotFound)
	if !strings.Contains(e.Detail, "/tmp/d") || !strings.Contains(e.Hint, "cwd") {
		t.Errorf("error %q", e.Detail)
	}
	r := s.exec(aether.ExecStart{Argv: bytesOf("pwd"), Session: id, Cwd: []byte("/")}).finish()
	wantExit(t, r, 0)
	if got := s.in(id, `pwd`); got != "/\n" {
		t.Errorf("got %q", got)
	}
}

func TestSessionOutlivesItsShard(t *testing.T) {
	s := newSandbox(t)
	id := s.newSession(api.Session{User: "1234"})
	s.in(id, `cd /tmp; export A=1`, "B=2")
	running := s.exec(aether.ExecStart{Shell: []byte(`echo up; sleep 0.5; cd /usr; export A=3`), Session: id, Keep: true, Env: bytesOf("B=2")})
	running.until("output", func() bool { return len(running.out[0]) > 0 })
	s.killShard()
	if got := s.in(id, `pwd; echo $A$B; id -u`, "B=2"); got != "/usr\n32\n1234\n" {
		t.Errorf("got %q", got)
	}
}

// What sessions remember is the shard's memory, not the sandbox's: it has a limit of its own.
func TestSessionsTogetherRememberLittle(t *testing.T) {
	s := newSandbox(t)
	const many = 30
	ids := make([]string, many)
	for i := range ids {
		ids[i] = s.newSession(api.Session{})
		s.in(ids[i], `export SMALL=1`)
		s.in(ids[i], `x=$(head -c 90000 /dev/zero | tr '\0' x); for i in 0 1 2 3 4 5 6 7 8 9; do export "A$i=$x"; done; cd /tmp`)
	}
	if err := s.unary("gc", nil, nil); err != nil {
		t.Fatal(err)
	}
	var st struct {
		HeapBytes int64 `json:"heap_bytes"`
	}
	if err := s.unary("stats", nil, &st); err != nil || st.HeapBytes > 16<<20 {
		t.Errorf("the shard's heap is %d bytes, %v", st.HeapBytes, err)
	}
	for i, want := range map[int]string{0: "/tmp\n1 90000\n", many - 1: "/tmp\n1 0\n"} {
		if got := s.in(ids[i], `pwd; echo $SMALL ${#A9}`); got != want {
			t.Errorf("session %d: %q, want %q", i, got, want)
		}
	}
	if err := s.unary("session.close", []byte(ids[0]), nil); err != nil {
		t.Error(err)
	}
	s.in(ids[many-1], `export "A9=$(head -c 90000 /dev/zero | tr '\0' x)"`)
	if got := s.in(ids[many-1], `echo ${#A9}`); got != "90000\n" {
		t.Errorf("after another session's end: %q", got)
	}
}

func TestSessionKeepsItsDirectoryWhenItsVariablesAreTooLarge(t *testing.T) {
	s := newSandbox(t)
	id := s.newSession(api.Session{})
	s.in(id, `export KEPT=1`)
	s.in(id, `x=$(printf %0100000d 0); i=0; while [ $i -lt 30 ]; do export "A$i=$x"; i=$((i+1)); done; KEPT=2; cd /tmp`)
	if got := s.in(id, `pwd; echo $KEPT ${#A0}`); got != "/tmp\n1 0\n" {
		t.Errorf("got %q", got)
	}
}

// Case 26.
func TestNoShell(t *testing.T) {
	s := newSandbox(t)
	id := s.newSession(api.Session{})
	s.sh(`cp /bin/busybox /tmp/true; rm /bin/sh`)
	wantExit(t, s.exe("/tmp/true"), 0)
	wantCode(t, s.exec(aether.ExecStart{Shell: []byte("true")}).finish(), api.CodeNoShell)
	wantCode(t, s.exec(aether.ExecStart{Shell: []byte("true"), Session: id}).finish(), api.CodeNoShell)
}
