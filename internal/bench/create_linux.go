package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/dsec-io/dsec/api"
)

// The names of our contenders in the create benchmark.
const (
	pooled   = "pools-on"
	unpooled = "pools-off"
)

// create measures whole lives: create, first command, stop.
func (b *bench) create(ctx context.Context) (err error) {
	on, err := b.current(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, on.close()) }()
	b.notef("pools off: a `dsec dev --no-context --pool 0` was started for this")
	off, err := b.startServer(ctx, "nopool", "--pool", "0")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, off.close()) }()
	if on.first != off.first { // the same command everywhere, or the parts can't be compared
		off.client.image, off.first = on.client.image, on.first
	}
	contenders, closePeers, err := b.lives()
	defer closePeers() // and its notes
	if err != nil {
		return err
	}
	servers, ours := []*server{on, off}, []*contender{}
	for i, s := range servers {
		c, err := lifeOf([]string{pooled, unpooled}[i], s)
		if err != nil {
			return err
		}
		ours = append(ours, c)
	}
	contenders = append(ours[:2:2], contenders...)
	b.notef("the first command is %s of the image (%s); limits of all: %d CPU, %d MiB, %d processes", on.first, what(on.first),
		limitCPU, limitMemoryMB, limitPIDs)
	b.notef("peers: same image mounted by EROFS, all namespaces with a user namespace, no seccomp filter, read-only root (ours is writable and filtered); " +
		"crun and runc: create+start, exec, kill, delete; bwrap: one run that is all of it, without limits")
	n, rounds := b.counts(500, 50)
	for _, level := range b.levels(1, 8, 64) {
		b.sayf("create: %d lives at concurrency %d", n, level)
		p := &plan{contenders: contenders, n: n, rounds: rounds, concurrency: level, failed: b.failed}
		p.warm(ctx)
		tallies := p.run(ctx)
		b.keep(level, tallies)
		b.lifeResults(level, tallies)
		for i, c := range ours {
			if err := b.profile(ctx, fmt.Sprintf("%s-%s-c%d", Create, c.name, level), servers[i], c, level); err != nil {
				return err
			}
		}
	}
	return nil
}

func what(command string) string {
	if command == tinyTrue {
		return "129 bytes, no libc"
	}
	return "busybox, static, with a libc"
}

func lifeOf(name string, s *server) (*contender, error) {
	spec, err := s.client.createBody()
	if err != nil {
		return nil, err
	}
	command, err := json.Marshal(api.ExecRequest{Argv: []string{s.first}})
	if err != nil {
		return nil, err
	}
	return &contender{name: name, do: func(ctx context.Context, l *laps) error { return s.client.life(ctx, l, spec, command) }}, nil
}

// warm has every contender do one operation that doesn't count: caches are cold only once.
func (p *plan) warm(ctx context.Context) {
	one := *p
	one.n, one.rounds, one.concurrency = 1, 1, 1
	one.failed = func(string, error) {} // what fails now fails again
	one.run(ctx)
}

func (b *bench) lifeResults(level int, tallies map[string]*tally) {
	for _, ours := range []string{pooled, unpooled} {
		t := tallies[ours]
		r := t.result(Create+"."+ours+".lives", "lives/s", level, t.throughput())
		for _, peer := range b.Peers {
			r.against(peer, tallies[peer].throughput(), true)
		}
		b.document.Results = append(b.document.Results, r)
		for _, step := range []string{stepFirst, stepCreate, stepExec, stepStop, stepLife} {
			r := t.result(Create+"."+ours+"."+step, "ms", level, t.timing(step, milliseconds()))
			r.Failures = 0 // told above
			for _, peer := range b.Peers {
				f := tallies[peer].timing(step, milliseconds())
				f.Failures = 0
				r.against(peer, f, false)
			}
			b.document.Results = append(b.document.Results, r)
		}
	}
}
