package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
)

// opTime bounds one operation of a client, whatever happens to the node meanwhile. The SDK itself gives up after a minute.
const opTime = 3 * time.Minute

// worker is a client that does one thing after another until the time is over.
type worker struct {
	m     *model
	c     *libdsec.Client
	r     *rand.Rand
	name  string
	tries int
	over  func() bool
}

// within is the context of one operation.
func within() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), opTime)
}

func (w *worker) key() string {
	w.tries++
	return fmt.Sprintf("%s-%d", w.name, w.tries)
}

// spec is what a worker asks for under a key, whenever it asks.
func spec(kind, key string) api.Spec {
	s := small(kind)
	s.Labels["key"] = key
	if kind != "resident" {
		s.Command = nil
	}
	if kind == "client" || kind == "abandoned" {
		s.TTL.RunningS = new(int64(15))
	}
	return s
}

func (w *worker) create(kind string) *box {
	key := w.key()
	ctx, cancel := within()
	defer cancel()
	sb, err := w.c.CreateOnce(ctx, key, spec(kind, key))
	if err != nil {
		w.m.notMade(key, err)
		return nil
	}
	w.m.did("create")
	return w.m.made(key, sb.ID())
}

func (w *worker) stop(b *box) {
	b.mu.Lock()
	b.stopping = true
	b.mu.Unlock()
	w.m.note(b, "stop is asked for")
	ctx, cancel := within()
	defer cancel()
	if _, err := w.c.Sandbox(b.id).Stop(ctx); err != nil {
		w.m.allowed(b, "stop", err)
		return
	}
	b.mu.Lock()
	b.stopped = true
	b.mu.Unlock()
	w.m.note(b, "stopped")
	w.m.did("stop")
}

// cycle is a short life.
func (w *worker) cycle() {
	b := w.create("cycle")
	if b == nil {
		return
	}
	w.print(b, 10)
	if w.r.IntN(4) == 0 {
		w.line(b)
	}
	w.stop(b)
	w.m.did("create/stop cycle")
}

// print runs a command whose output and exit code are known.
func (w *worker) print(b *box, lines int) {
	word, code := fmt.Sprintf("%s.%d", w.name, w.r.IntN(1e6)), w.r.IntN(100)
	cmd := libdsec.Cmd{Shell: fmt.Sprintf("i=0; while [ $i -lt %d ]; do echo %s $i; i=$((i+1)); done; exit %d", lines, word, code)}
	var want strings.Builder
	for i := range lines {
		fmt.Fprintf(&want, "%s %d\n", word, i)
	}
	w.command(b, "exec", cmd, code, want.String())
}

// stream runs one with more output than any buffer on the way holds.
func (w *worker) stream(b *box) {
	const n = 30000
	var want strings.Builder
	for i := 1; i <= n; i++ {
		fmt.Fprintln(&want, i)
	}
	w.command(b, "stream", libdsec.Cmd{Argv: []string{"seq", "1", fmt.Sprint(n)}, MaxOutput: 1 << 20}, 0, want.String())
}

func (w *worker) command(b *box, what string, cmd libdsec.Cmd, code int, want string) (ok bool) {
	ctx, cancel := within()
	defer cancel()
	res, err := w.c.Sandbox(b.id).Exec(ctx, cmd)
	return w.judge(b, what, ending{res, err}, code, want)
}

// ending is what a client was told of a command.
type ending struct {
	res *libdsec.Result
	err error
}

// judge compares how a command ended with how it had to.
func (w *worker) judge(b *box, what string, got ending, code int, want string) bool {
	res, err := got.res, got.err
	switch {
	case err != nil:
		w.m.allowed(b, what, err)
	case res.InfraError != "":
		w.m.count(w.m.refused, what+" infra_error")
		w.m.note(b, "%s: infra_error: %s", what, res.InfraError)
	case res.ExitCode != nil && *res.ExitCode == code && string(res.Stdout) == want:
		w.m.did(what)
		return true
	case res.ExitCode == nil && res.Signal == "SIGKILL" && (b.isKilled() || b.isStopping()):
		w.m.count(w.m.refused, what+" killed with its sandbox")
	default:
		w.m.fail(b, "%s: %+v with %d bytes of output that begins %.60q, want code %d and %d bytes", what, res.ExitStatus, len(res.Stdout), res.Stdout, code, len(want))
	}
	return false
}

// line runs a command that leaves a line, under a key: however often it is sent, it runs once.
func (w *worker) line(b *box) {
	word := w.key()
	b.line(word, asked)
	ctx, cancel := within()
	defer cancel()
	res, err := w.c.Sandbox(b.id).Exec(ctx, libdsec.Cmd{Shell: "echo '" + word + ";' >> /ran && echo ok", Key: word})
	if err == nil && res.InfraError == "" && res.ExitCode != nil && *res.ExitCode == 1 && len(res.Stdout) == 0 {
		w.m.count(w.m.refused, "line: the sandbox's disk was full")
		return
	}
	if w.judge(b, "line", ending{res, err}, 0, "ok\n") {
		b.line(word, answered)
		w.m.note(b, "line %s", word)
	}
}

// process starts one that goes on by itself, and reads its output slowly, over broken connections.
func (w *worker) process(b *box) {
	const n = 4000
	ctx, cancel := within()
	defer cancel()
	var got strings.Builder
	gaps := 0
	p, err := w.c.Sandbox(b.id).Start(ctx, libdsec.Cmd{Argv: []string{"seq", "1", fmt.Sprint(n)}}, libdsec.StartOptions{Handlers: libdsec.Handlers{
		OnStdout: func(d []byte) error {
			<-time.After(time.Millisecond)
			got.Write(d)
			return nil
		},
		OnGap: func(libdsec.Gap) error { gaps++; return nil },
	}})
	if err != nil {
		w.m.allowed(b, "process", err)
		return
	}
	st, err := p.Wait(ctx)
	if gaps > 0 && err == nil && st.InfraError == "" {
		w.m.fail(b, "process: %d gaps and no infra_error: %+v", gaps, st)
		return
	}
	var want strings.Builder
	for i := 1; i <= n; i++ {
		fmt.Fprintln(&want, i)
	}
	w.judge(b, "process", ending{&libdsec.Result{ExitStatus: st, Stdout: []byte(got.String())}, err}, 0, want.String())
}

// nap pauses a sandbox and wakes it, by name or by work for it.
func (w *worker) nap(b *box) {
	ctx, cancel := within()
	defer cancel()
	sb := w.c.Sandbox(b.id)
	if _, err := sb.Pause(ctx); err != nil {
		w.m.allowed(b, "pause", err)
		return
	}
	w.m.did("pause")
	w.m.note(b, "paused")
	switch w.r.IntN(3) {
	case 0:
		if _, err := sb.Resume(ctx); err != nil {
			w.m.allowed(b, "resume", err)
			return
		}
		w.m.did("resume")
	case 1:
		w.print(b, 3)
	default: // whoever comes next wakes it
	}
}

func (w *worker) patch(b *box) {
	ctx, cancel := within()
	defer cancel()
	_, err := w.c.Sandbox(b.id).Patch(ctx, api.Patch{Resources: &api.Resources{MemoryMB: new(int64(32 + w.r.IntN(32)))}})
	if e, ok := errors.AsType[*api.Error](err); ok && e.Code == api.CodeConflict {
		return // what it uses can't be taken back: a page cache that was written to
	}
	if err != nil {
		w.m.allowed(b, "patch", err)
		return
	}
	w.m.did("patch")
}

// cycles makes and stops sandboxes.
func (w *worker) cycles() {
	for !w.over() {
		w.cycle()
	}
}

// residents looks after some sandboxes that live long.
func (w *worker) residents() {
	const many = 4
	var mine []*box
	for !w.over() {
		if len(mine) < many {
			if b := w.create("resident"); b != nil {
				b.mu.Lock()
				b.spare = w.r.IntN(2) == 0
				b.mu.Unlock()
				mine = append(mine, b)
			}
			continue
		}
		i := w.r.IntN(many)
		b := mine[i]
		switch n := w.r.IntN(100); {
		case n < 25:
			w.line(b)
		case n < 50:
			w.print(b, 50)
		case n < 60:
			w.stream(b)
		case n < 70:
			w.process(b)
		case n < 85:
			w.nap(b)
		case n < 95:
			w.patch(b)
		default:
			w.stop(b)
			mine = append(mine[:i], mine[i+1:]...)
		}
		if b.isKilled() {
			w.stop(b)
			for j := range mine {
				if mine[j] == b {
					mine = append(mine[:j], mine[j+1:]...)
					break
				}
			}
		}
	}
}

// abandons asks for sandboxes and leaves: what was made ends by its time.
func (w *worker) abandons() {
	for !w.over() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(w.r.IntN(60))*time.Millisecond)
		key := w.key()
		if _, err := w.c.CreateOnce(ctx, key, spec("abandoned", key)); err != nil {
			w.m.did("create abandoned")
		}
		cancel()
		<-time.After(time.Duration(w.r.IntN(1000)) * time.Millisecond)
	}
}

// clientEnv makes a process of this test a client that is killed one day.
const clientEnv = "DSEC_CHAOS_CLIENT"

// client is such a process: it makes sandboxes and runs commands in them for as long as it lives.
func client(endpoint, token string) {
	c, err := libdsec.New(libdsec.WithEndpoint(endpoint, token))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	for {
		sb, err := c.CreateOnce(context.Background(), libdsec.NewKey(), spec("client", "none"))
		if err != nil {
			continue
		}
		_, _ = sb.Exec(context.Background(), libdsec.Cmd{Argv: []string{"seq", "1", "50000"}}) // killed at any time
	}
}

// clients starts such processes and kills them.
func (w *worker) clients(endpoint, token string) {
	for !w.over() {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), clientEnv+"="+endpoint+" "+token)
		if err := cmd.Start(); err != nil {
			w.m.fail(nil, "start a client: %v", err)
			return
		}
		<-time.After(500*time.Millisecond + time.Duration(w.r.IntN(1500))*time.Millisecond)
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it says that it was killed
		w.m.broke("client killed")
		<-time.After(time.Duration(w.r.IntN(2000)) * time.Millisecond)
	}
}
