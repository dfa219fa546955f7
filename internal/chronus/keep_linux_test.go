package chronus_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"golang.org/x/sys/unix"
)

func keep(id, script string) aether.ExecStart {
	return aether.ExecStart{ID: id, Shell: []byte(script), Keep: true}
}

func TestKeptProcessIsListedAndReplayed(t *testing.T) {
	s := newSandbox(t)
	start := keep("p1", "echo one; read x; echo got $x; exit 4")
	start.Stdin, start.Tag = true, "tagged"
	c := s.exec(start)
	c.until("output", func() bool { return len(c.out[0]) == 4 })
	list := s.processes()
	if len(list) != 1 || list[0].ID != "p1" || !list[0].Running || list[0].Tag != "tagged" || list[0].PID <= 1 || list[0].PID > 100 {
		t.Fatalf("processes %+v", list)
	}
	if c.started == nil || int(c.started.PIDInside) != list[0].PID {
		t.Errorf("started %+v", c.started)
	}
	wantCode(t, s.exec(keep("p1", "true")).finish(), api.CodeConflict)
	// A caller that goes away doesn't end it; the next one goes on where it was.
	c.st.Reset(nil)
	c = s.attach(aether.Attach{ID: "p1", StdoutOffset: 4, Stdin: true})
	if err := c.st.Write(t.Context(), aether.Stdin, []byte("in\n")); err != nil {
		t.Fatal(err)
	}
	wantExit(t, c.finish(), 4)
	if string(c.out[0]) != "got in\n" {
		t.Errorf("output %q", c.out[0])
	}
	s.wantDropped("p1")
	r := s.attach(aether.Attach{ID: "p1"}).finish()
	wantExit(t, r, 4)
	if string(r.out[0]) != "one\ngot in\n" {
		t.Errorf("replay %q", r.out[0])
	}
	if err := s.unary("signal", (&aether.Signal{ID: "p1", Signal: int32(unix.SIGTERM)}).AppendTo(nil), nil); !api.IsCode(err, api.CodeNoSuchProcess) {
		t.Errorf("signal to an ended process: %v", err)
	}
	if err := s.unary("forget", []byte("p1"), nil); err != nil {
		t.Error(err)
	}
	wantCode(t, s.attach(aether.Attach{ID: "p1"}).finish(), api.CodeNoSuchProcess)
}

func TestSignals(t *testing.T) {
	s := newSandbox(t)
	c := s.exec(keep("p", `trap 'echo term; exit 9' TERM; echo up; while :; do sleep 0.05; done`))
	c.until("output", func() bool { return len(c.out[0]) > 0 })
	if err := s.unary("signal", (&aether.Signal{ID: "p", Signal: int32(unix.SIGTERM)}).AppendTo(nil), nil); err != nil {
		t.Fatal(err)
	}
	wantExit(t, c.finish(), 9)
	c = s.exec(keep("q", `trap '' TERM; (trap '' TERM; sleep 999) & echo up; wait`))
	c.until("output", func() bool { return len(c.out[0]) > 0 })
	if err := c.st.Send(t.Context(), aether.MsgSignal, (&aether.Signal{Signal: int32(unix.SIGKILL), Tree: true}).AppendTo(nil)); err != nil {
		t.Fatal(err)
	}
	if r := c.finish(); r.err != nil || r.exited.Signal != int32(unix.SIGKILL) {
		t.Errorf("killed tree: %v, %+v", r.err, r.exited)
	}
	if err := s.unary("signal", (&aether.Signal{ID: "p", Signal: 65}).AppendTo(nil), nil); !api.IsCode(err, api.CodeInvalid) {
		t.Errorf("signal 65: %v", err)
	}
}

// Cases 13 and 19.
func TestOutputIsCompleteAndStatusesAreNotMixedUp(t *testing.T) {
	s := newSandbox(t)
	var wg sync.WaitGroup
	for w := range 32 {
		wg.Go(func() {
			for i := range 30 {
				code := int32((w*30 + i) % 200)
				r := s.exec(aether.ExecStart{Shell: fmt.Appendf(nil, "printf x%d; exit %d", code, code)}).finish()
				if r.err != nil || r.exited.Code != code || string(r.out[0]) != fmt.Sprintf("x%d", code) {
					t.Errorf("exit %d: %v, %+v, %q", code, r.err, r.exited, r.out[0])
				}
			}
		})
	}
	wg.Wait()
}

// Case 16.
func TestOutputIsCappedWhereItIsProduced(t *testing.T) {
	s := newSandbox(t)
	for name, script := range map[string]string{
		"short": `printf 0123456789; printf abcdefghij`,
		"long":  `printf 0123456789; i=0; while [ $i -lt 200000 ]; do echo $i; i=$((i+1)); done; printf abcdefghij`,
	} {
		t.Run(name, func(t *testing.T) {
			r := s.exec(aether.ExecStart{Shell: []byte(script), MaxOutput: 11}).finish()
			wantExit(t, r, 0)
			if string(r.out[0]) != "01234efghij" || !r.exited.Truncated || len(r.gaps) != 1 || r.off[0] != r.exited.StdoutTotal {
				t.Errorf("output %q, gaps %+v, %+v", r.out[0], r.gaps, r.exited)
			}
		})
	}
}

// Case 11.
func TestReaderThatDoesNotReadHoldsNothingUp(t *testing.T) {
	s := newSandbox(t)
	before := s.stats().PeakRSS
	idle := s.exec(keep("big", `yes | head -c 268435456`)) // and never read further
	idle.until("its start", func() bool { return idle.started != nil })
	busy := s.attach(aether.Attach{ID: "big"})
	pattern := bytes.Repeat([]byte("y\n"), 1<<17)
	for busy.step() {
		got := busy.out[0]
		phase := (busy.off[0] - int64(len(got))) % 2
		if !bytes.Equal(got, pattern[phase:][:len(got)]) {
			t.Fatalf("wrong bytes before %d", busy.off[0])
		}
		busy.out[0] = got[:0]
	}
	if busy.exited == nil || busy.exited.StdoutTotal != 256<<20 || busy.off[0] != 256<<20 {
		t.Fatalf("%v, %+v, %d", busy.err, busy.exited, busy.off[0])
	}
	if grown := s.stats().PeakRSS - before; grown > 64<<20 {
		t.Errorf("the shard grew by %d MiB", grown>>20)
	}
	idle.st.Reset(nil)
}

// Case 17.
func TestLosslessProcessWaitsForItsReader(t *testing.T) {
	s := newSandbox(t)
	const total = 64 << 20
	start := keep("p", fmt.Sprintf(`i=0; yes 0123456789abcde | head -c %d; echo end >&2`, total))
	start.Lossless = true
	c := s.exec(start)
	// It can't end while nobody reads.
	for range 3 {
		c.step()
	}
	if p := s.processes(); !p[0].Running {
		t.Error("it ended without its reader")
	}
	for c.step() {
		c.out[0] = c.out[0][:0]
	}
	if c.err != nil || len(c.gaps) != 0 || c.off[0] != total || string(c.out[1]) != "end\n" {
		t.Errorf("%v, gaps %+v, %d bytes, %q", c.err, c.gaps, c.off[0], c.out[1])
	}
}

// Case 12.
func TestReattachingNeitherLosesNorRepeats(t *testing.T) {
	s := newSandbox(t)
	const lines = 20000
	s.exec(keep("p", fmt.Sprintf(`i=0; while [ $i -lt %d ]; do echo line $i; i=$((i+1)); done; exit 3`, lines))).step()
	var got []byte
	for {
		c := s.attach(aether.Attach{ID: "p", StdoutOffset: int64(len(got))})
		for range 1 + rand.IntN(5) {
			c.step()
		}
		got = append(got, c.out[0]...)
		if len(c.gaps) > 0 {
			t.Fatalf("gaps %+v", c.gaps)
		}
		if c.exited != nil {
			if c.exited.Code != 3 {
				t.Errorf("%+v", c.exited)
			}
			break
		}
		c.st.Reset(nil)
	}
	wantLines(t, got, lines)
}

func wantLines(t testing.TB, got []byte, lines int) {
	t.Helper()
	for i, line := range strings.Split(strings.TrimSuffix(string(got), "\n"), "\n") {
		if want := fmt.Sprintf("line %d", i); line != want {
			t.Fatalf("line %d is %q", i, line)
		}
	}
	if n := bytes.Count(got, []byte("\n")); n != lines {
		t.Errorf("%d lines, want %d", n, lines)
	}
}

// Case 20.
func TestNothingLeaksPerCommand(t *testing.T) {
	s := newSandbox(t)
	batch := func(n int) {
		var wg sync.WaitGroup
		for w := range 4 {
			wg.Go(func() {
				for i := range n {
					switch (i + w) % 4 {
					case 0:
						s.exe("true")
					case 1:
						s.exe("/nope")
					case 2:
						s.exec(aether.ExecStart{Argv: bytesOf("true"), Cwd: []byte("/nope")}).finish()
					case 3:
						c := s.exec(aether.ExecStart{Argv: bytesOf("sleep", "100"), Stdin: true})
						if i%8 < 4 {
							c.step()
						}
						c.st.Reset(nil)
					}
				}
			})
		}
		wg.Wait()
		eventually(t, "the last command's end", func() bool { return len(s.processes()) == 0 })
	}
	batch(20)
	before := s.stats()
	batch(250)
	eventually(t, "flat counts", func() bool {
		after := s.stats()
		return after.FDs <= before.FDs+4 && after.Goroutines <= before.Goroutines+4
	})
}

// A shard that is killed again and again loses no byte and no status of a kept process.
func TestKilledShardLosesNothing(t *testing.T) {
	s := newSandbox(t)
	for round := range 12 {
		id := fmt.Sprintf("p%d", round)
		lines, code := 3000, int32(20+round)
		script := fmt.Sprintf(`i=0; while [ $i -lt %d ]; do echo line $i; i=$((i+1)); [ $((i %% 500)) = 0 ] && sleep 0.01; done; exit %d`, lines, code)
		started := s.exec(keep(id, script))
		started.until("its start", func() bool { return started.started != nil })
		kills := 1 + round%3
		var got []byte
		for k := 0; ; k++ {
			c := s.attach(aether.Attach{ID: id, StdoutOffset: int64(len(got))})
			if k < kills {
				for range rand.IntN(4) {
					c.step()
				}
				s.killShard()
			}
			for c.step() {
			}
			got = append(got, c.out[0]...)
			if c.exited != nil {
				if !c.exited.HasCode || c.exited.Code != code || c.exited.InfraError != "" {
					t.Errorf("round %d: %+v", round, c.exited)
				}
				break
			}
			if k > kills+5 {
				t.Fatalf("round %d: %v", round, c.err)
			}
		}
		wantLines(t, got, lines)
		if out := s.sh("echo new"); out != "new\n" {
			t.Errorf("new command after the restart: %q", out)
		}
	}
}

func TestWhatAKilledShardHadIsThereAgain(t *testing.T) {
	s := newSandbox(t)
	for _, start := range []aether.ExecStart{
		keep("ended", "echo done; exit 5"), keep("silent", "sleep 0.5; echo late; exit 6"), keep("limited", "sleep 100"),
	} {
		if start.ID == "limited" {
			start.TimeoutMS = 1500
		}
		c := s.exec(start)
		c.until("its start", func() bool { return c.started != nil })
		if start.ID == "ended" {
			c.finish()
		}
	}
	withInput := keep("input", "cat; echo; exit 7")
	withInput.Stdin = true
	c := s.exec(withInput)
	if err := c.st.Write(t.Context(), aether.Stdin, []byte("before ")); err != nil {
		t.Fatal(err)
	}
	c.until("the echo", func() bool { return len(c.out[0]) == 7 })
	began := time.Now()
	s.killShard()
	wantExit(t, s.exe("true"), 0)
	if d := time.Since(began); d > 20*time.Second {
		t.Errorf("a new command took %v", d)
	}
	if list := s.processes(); len(list) != 4 {
		t.Errorf("processes %+v", list)
	}
	for id, code := range map[string]int32{"ended": 5, "silent": 6} {
		r := s.attach(aether.Attach{ID: id}).finish()
		wantExit(t, r, code)
		if len(r.out[0]) != 5 {
			t.Errorf("%s: %q", id, r.out[0])
		}
	}
	c = s.attach(aether.Attach{ID: "input", Stdin: true})
	if err := c.st.Write(t.Context(), aether.Stdin, []byte("after")); err != nil {
		t.Fatal(err)
	}
	if err := c.st.CloseWrite(aether.Stdin); err != nil {
		t.Fatal(err)
	}
	wantExit(t, c.finish(), 7)
	if string(c.out[0]) != "before after\n" {
		t.Errorf("input over a restart: %q", c.out[0])
	}
	if r := s.attach(aether.Attach{ID: "limited"}).finish(); r.exited == nil || !r.exited.TimedOut {
		t.Errorf("time-out over a restart: %v, %+v", r.err, r.exited)
	}
}

func TestCommandInFlightIsLostWithItsShard(t *testing.T) {
	s := newSandbox(t)
	c := s.exec(aether.ExecStart{Argv: bytesOf("sleep", "100")})
	c.until("its start", func() bool { return c.started != nil })
	s.killShard()
	if r := c.finish(); r.err == nil || r.exited != nil {
		t.Errorf("got %+v", r)
	}
}

// Records of ended processes go when they are many, the oldest first; a project's next process isn't refused for them.
func TestRecordsMakeRoom(t *testing.T) {
	s := newSandbox(t)
	const many = 700
	for i := range many {
		wantExit(t, s.exec(keep(fmt.Sprintf("p%d", i), "echo x; echo y >&2")).finish(), 0)
	}
	eventually(t, "the janitor", func() bool { return len(s.processes()) <= 256 })
	if list := s.processes(); list[len(list)-1].ID != fmt.Sprintf("p%d", many-1) {
		t.Errorf("the newest is %s", list[len(list)-1].ID)
	}
	before := s.processes()
	s.killShard()
	if after := s.processes(); len(after) != len(before) {
		t.Errorf("%d processes, %d before the restart", len(after), len(before))
	}
	r := s.attach(aether.Attach{ID: fmt.Sprintf("p%d", many-1)}).finish()
	wantExit(t, r, 0)
	if string(r.out[0])+string(r.out[1]) != "x\ny\n" {
		t.Errorf("replay %q", r.out)
	}
}

// A box that is removed while commands start in it never has one of them end up in another box.
func TestRemovalDuringStarts(t *testing.T) {
	n := newNode(t)
	keeper := n.sandbox("stays", nil)
	for round := range 15 {
		id := fmt.Sprintf("box%d", round)
		s := n.sandbox(id, nil)
		s.sh("echo " + id + " >/id")
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for {
					r := s.exe("cat", "/id")
					if r.err != nil || r.exited.Signal != 0 {
						return
					}
					if string(r.out[0]) != id+"\n" {
						t.Errorf("in %s: %q, %q", id, r.out[0], r.out[1])
					}
				}
			})
		}
		eventually(t, "a command", func() bool { return s.stats().Goroutines > 0 })
		if err := s.box.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
	}
	wantExit(t, keeper.exe("true"), 0)
}

// wantDropped gives input to a process that takes none: it isn't acknowledged as taken.
func (s *sandbox) wantDropped(id string) {
	s.Helper()
	m := aether.Attach{ID: id, Stdin: true, FromNow: true}
	st, err := s.connect().Open(s.Context(), aether.Open{Method: "attach", Sandbox: s.id, Body: m.AppendTo(nil)})
	if err != nil {
		s.Fatal(err)
	}
	defer st.Reset(nil)
	if err := errors.Join(st.Write(s.Context(), aether.Stdin, []byte("lost")), st.Send(s.Context(), aether.MsgAck, nil)); err != nil {
		return // told by the end of the stream
	}
	for {
		f, err := st.Recv(s.Context())
		if err != nil {
			return
		}
		var ack aether.Ack
		taken := f.Channel == aether.Message && f.Type == aether.MsgAck && ack.Unmarshal(f.Data) == nil && !ack.Dropped
		f.Release()
		if taken {
			s.Error("input that nobody took was acknowledged")
		}
	}
}

func TestInputThatIsNotTakenIsNotAcknowledged(t *testing.T) {
	s := newSandbox(t)
	c := s.exec(aether.ExecStart{ID: "closed", Shell: []byte("exec </dev/null; echo up; sleep 1"), Keep: true, Stdin: true})
	c.until("output", func() bool { return len(c.out[0]) > 0 })
	s.wantDropped("closed")
	wantExit(t, s.attach(aether.Attach{ID: "closed"}).finish(), 0)
	s.wantDropped("closed")
}
