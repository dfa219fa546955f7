package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/spawn"
	"golang.org/x/sys/unix"
)

// boxes is how many sandboxes the commands are spread over.
const boxes = 16

// program is a `true` that is measured.
type program struct {
	name   string
	inside string // its path in a sandbox
	in     string // and in the image, where bare runs and peers find it
}

// exec measures commands in sandboxes that run, against the same program started with no sandbox at all.
func (b *bench) exec(ctx context.Context) (err error) {
	s, err := b.current(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	programs := []program{{"tiny-true", "/tmp/bench-true", tinyTrue}, {"busybox-true", realTrue, realTrue}}
	ids, stop, err := b.sandboxes(ctx, s)
	defer func() { err = errors.Join(err, stop()) }()
	if err != nil {
		return err
	}
	peers, closePeers, err := b.containers(ctx)
	defer closePeers()
	if err != nil {
		return err
	}
	b.notef("tiny-true is %d bytes without a libc; busybox-true is the image's busybox, static, with a libc", len(trueELF(runtime.GOARCH)))
	b.notef("bare is a raw vfork, exec and wait of the same program, outside of any sandbox, from the bench process; over-bare is our quantile minus bare's")
	b.notef("commands are spread over %d sandboxes; HTTP/1.1 with kept connections; the client is on the same CPUs", boxes)
	n, rounds := b.counts(2000, 200)
	for _, level := range b.levels(1, 16, 64) {
		for _, prog := range programs {
			b.sayf("exec: %d of %s at concurrency %d", n, prog.name, level)
			ours, err := execOf(s, ids, prog)
			if err != nil {
				return err
			}
			all := []*contender{ours, {name: "bare", thread: b.place.enter, do: bare(filepath.Join(b.place.root, prog.in))}}
			for _, peer := range peers {
				all = append(all, peer(prog))
			}
			p := &plan{contenders: all, n: n, rounds: rounds, concurrency: level, failed: b.failed}
			p.warm(ctx)
			tallies := p.run(ctx)
			b.keep(level, renamed(tallies, prog.name))
			b.execResults(level, prog, tallies)
			if err := b.profile(ctx, fmt.Sprintf("%s-%s-c%d", Exec, prog.name, level), s, ours, level); err != nil {
				return err
			}
		}
	}
	return nil
}

// renamed puts the program's name into the series' for the files.
func renamed(tallies map[string]*tally, program string) map[string]*tally {
	for _, t := range tallies {
		for _, s := range t.steps {
			s.step = program
		}
	}
	return tallies
}

// sandboxes makes the sandboxes and gives each the program that its image may lack.
func (b *bench) sandboxes(ctx context.Context, s *server) (ids []string, stop func() error, err error) {
	stop = func() error {
		var err error
		for _, id := range ids {
			err = errors.Join(err, s.client.stop(context.WithoutCancel(ctx), id))
		}
		return err
	}
	spec, err := s.client.createBody()
	if err != nil {
		return nil, stop, err
	}
	bring, err := json.Marshal(api.ExecRequest{Shell: "cat >/tmp/bench-true && chmod 755 /tmp/bench-true", Stdin: trueELF(runtime.GOARCH)})
	if err != nil {
		return nil, stop, err
	}
	for range boxes {
		id, err := s.client.create(ctx, spec)
		if err != nil {
			return ids, stop, err
		}
		ids = append(ids, id)
		if err := s.client.exec(ctx, id, bring); err != nil {
			return ids, stop, err
		}
	}
	return ids, stop, nil
}

func execOf(s *server, ids []string, prog program) (*contender, error) {
	body, err := json.Marshal(api.ExecRequest{Argv: []string{prog.inside}})
	if err != nil {
		return nil, err
	}
	var turn atomic.Uint64
	return &contender{name: "dsec", do: func(ctx context.Context, l *laps) error {
		err := s.client.exec(ctx, ids[turn.Add(1)%uint64(len(ids))], body)
		l.lap(stepExec)
		return err
	}}, nil
}

// bare starts a program as cheaply as can be.
func bare(path string) func(context.Context, *laps) error {
	scripts := sync.Pool{New: func() any { return new(spawn.Script) }}
	return func(_ context.Context, l *laps) error {
		s := scripts.Get().(*spawn.Script) // nothing else is in it
		defer scripts.Put(s)
		s.Reset()
		s.Call(unix.SYS_EXECVE, s.String(path), s.Strings([][]byte{[]byte(path)}), s.Strings(nil)).As("execve")
		out, err := spawn.Run(spawn.Attr{Cgroup: -1}, s)
		if err != nil {
			return err
		}
		ws, err := spawn.Wait(out.PID)
		l.lap(stepExec)
		switch {
		case out.Failed != nil:
			return out.Failed
		case err != nil:
			return err
		case !ws.Exited() || ws.ExitStatus() != 0:
			return fmt.Errorf("%s ended with %v", path, ws)
		}
		return nil
	}
}

// peerShare: a peer's exec takes tens of our own, so it does fewer.
const peerShare = 10

// containers starts one container per peer that has an exec, and returns what makes a contender for a program.
func (b *bench) containers(ctx context.Context) (peers []func(program) *contender, closeAll func(), err error) {
	var down []func()
	closeAll = func() {
		err := b.inPlace(func() error {
			for _, f := range down {
				f()
			}
			return nil
		})
		if err != nil {
			b.failed("peers", err)
		}
	}
	for _, name := range b.Peers {
		if name == "bwrap" {
			b.notef("bwrap has no exec")
			continue
		}
		r, err := b.runtime(name)
		if err != nil {
			return nil, closeAll, err
		}
		id := r.id()
		down = append(down, func() {
			if err := r.remove(context.WithoutCancel(ctx), id); err != nil {
				b.failed(name, err)
			}
			r.close()
		})
		if err := b.inPlace(func() error { return r.create(ctx, id) }); err != nil {
			return nil, closeAll, err
		}
		peers = append(peers, func(prog program) *contender {
			return &contender{name: name, peer: true, thread: b.place.enter, share: peerShare, do: func(ctx context.Context, l *laps) error {
				err := r.run(ctx, "exec", id, prog.in)
				l.lap(stepExec)
				return err
			}}
		})
	}
	return peers, closeAll, nil
}

// inPlace runs f on a thread of its own in the place.
func (b *bench) inPlace(f func() error) error {
	done := make(chan error, 1) // one result
	go func() {
		err := b.place.enter()
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

func (b *bench) execResults(level int, prog program, tallies map[string]*tally) {
	add := func(r Result) { b.document.Results = append(b.document.Results, r) }
	ours, bare := tallies["dsec"], tallies["bare"]
	rate := ours.result(Exec+"."+prog.name+".rate", "execs/s", level, ours.throughput())
	took := ours.result(Exec+"."+prog.name+".latency", "us", level, ours.timing(prog.name, microseconds()))
	took.Failures = 0 // told with the rate
	for _, peer := range b.Peers {
		t := tallies[peer]
		if t == nil {
			continue
		}
		f := t.timing(prog.name, microseconds())
		f.Failures = 0
		rate.against(peer, t.throughput(), true)
		took.against(peer, f, false)
	}
	base := bare.result(Exec+"."+prog.name+".bare", "us", level, bare.timing(prog.name, microseconds()))
	over := took
	over.Name, over.Peers, over.Ratio = Exec+"."+prog.name+".over-bare", nil, nil
	over.P10, over.P50, over.P90, over.P99 = took.P10-base.P10, took.P50-base.P50, took.P90-base.P90, took.P99-base.P99
	over.Value = over.P50
	for _, r := range []Result{rate, took, base, over} {
		add(r)
	}
}
