package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/rl/env"
	"github.com/dsec-io/dsec/rl/sandboxenv"
	"github.com/dsec-io/dsec/rl/vec"
)

// command is a task of one program, which has to exit with 0.
type command struct{ argv []string }

// Spec implements [sandboxenv.Task].
func (c command) Spec() env.Spec {
	spec, err := env.NewSpec("command", 1, env.Reals(0, 1, 1), env.Discrete{N: 1})
	if err != nil {
		panic(err) // it's constant
	}
	return spec
}

// Begin implements [sandboxenv.Task].
func (c command) Begin(uint64) sandboxenv.Episode { return c }

// Setup implements [sandboxenv.Episode].
func (c command) Setup() libdsec.Cmd {
	return libdsec.Cmd{Shell: "cat >/tmp/bench-true && chmod 755 /tmp/bench-true", Stdin: bytes.NewReader(trueELF(runtime.GOARCH))}
}

// Act implements [sandboxenv.Episode].
func (c command) Act([]int32) libdsec.Cmd { return libdsec.Cmd{Argv: c.argv} }

// Verify implements [sandboxenv.Episode].
func (c command) Verify() *libdsec.Cmd { return nil }

// Judge implements [sandboxenv.Episode].
func (c command) Judge(acted, _ *libdsec.Result) sandboxenv.Verdict {
	if acted.ExitCode == nil || *acted.ExitCode != 0 {
		return sandboxenv.Verdict{}
	}
	return sandboxenv.Verdict{Reward: 1}
}

// Observe implements [sandboxenv.Episode].
func (c command) Observe(*libdsec.Result, []float32) {}

// The two ways to step sandboxes.
const (
	atOnce    = "at-once"
	oneByOne  = "sequential"
	stepBatch = "step"
)

// rlSandboxes measures steps of sandboxes that are stepped at once, against one after another.
func (b *bench) rlSandboxes(ctx context.Context) (err error) {
	s, err := b.current(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	client, err := libdsec.New(libdsec.WithEndpoint(s.client.base, s.client.token))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	cpu := float64(limitCPU)
	spec := api.Spec{Image: s.client.image, Resources: api.Resources{CPU: &cpu, MemoryMB: new(int64(limitMemoryMB)), PIDs: new(int64(limitPIDs))}}
	pool, err := sandboxenv.NewPool(client, spec, min(b.Sandboxes, 8))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pool.Close()) }()
	b.notef("a step is one command in each of %d sandboxes through libdsec over one Aether connection, started anew (no shell session); sequential is the same in one sandbox, one command after another", b.Sandboxes)
	b.notef("tiny-true is %d bytes without a libc; busybox-true is the image's busybox, static, with a libc; client and server are on the same CPUs", len(trueELF(runtime.GOARCH)))
	for _, prog := range []program{{"tiny-true", "/tmp/bench-true", tinyTrue}, {"busybox-true", realTrue, realTrue}} {
		if err := b.rlProgram(ctx, pool, prog); err != nil {
			return err
		}
	}
	return b.rlShells(ctx, pool)
}

func (b *bench) rlProgram(ctx context.Context, pool *sandboxenv.Pool, prog program) (err error) {
	rows := b.Sandboxes
	many, err := steppers(ctx, pool, prog, rows)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, many.Close()) }()
	one, err := steppers(ctx, pool, prog, 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, one.Close()) }()
	n, rounds := b.counts(200, 20)
	b.sayf("rl: %d steps of %s in %d sandboxes", n, prog.name, rows)
	p := &plan{n: n, rounds: rounds, concurrency: 1, failed: b.failed, contenders: []*contender{
		{name: atOnce, do: func(ctx context.Context, l *laps) error { return stepAll(ctx, many, l) }},
		{name: oneByOne, do: func(ctx context.Context, l *laps) error {
			for range rows {
				if err := stepAll(ctx, one, &laps{}); err != nil {
					return err
				}
			}
			l.lap(stepBatch)
			return nil
		}},
	}}
	p.warm(ctx)
	tallies := p.run(ctx)
	b.keep(rows, renamed(tallies, "rl-"+prog.name))
	r := tallies[atOnce].result(RL+".sandboxes."+prog.name, "steps/s", rows, each(tallies[atOnce], rows))
	r.Peak = rows
	r.against(oneByOne, each(tallies[oneByOne], rows), true)
	b.document.Results = append(b.document.Results, r)
	return nil
}

// each is the throughput of operations of so many commands, in commands.
func each(t *tally, rows int) Figure {
	f, n := t.throughput(), float64(rows)
	f.N *= rows
	f.Value, f.P10, f.P50, f.P90, f.P99 = f.Value*n, f.P10*n, f.P50*n, f.P90*n, f.P99*n
	return f
}

func steppers(ctx context.Context, pool *sandboxenv.Pool, prog program, rows int) (vec.Vector, error) {
	v, err := vec.NewSerial(sandboxenv.Maker(pool, command{[]string{prog.inside}}, sandboxenv.Config{}), rows)
	if err != nil {
		return nil, err
	}
	if err := v.Reset(ctx, 1); err != nil {
		return nil, errors.Join(err, v.Close())
	}
	return v, nil
}

// stepAll steps, and wants a command that exited with 0 in every row.
func stepAll(ctx context.Context, v vec.Vector, l *laps) error {
	if err := v.Step(ctx); err != nil {
		return err
	}
	l.lap(stepBatch)
	for i, reward := range v.Buffers().Rewards {
		if reward != 1 {
			return fmt.Errorf("row %d: mask %d, reward %v", i, v.Buffers().Masks[i], reward)
		}
	}
	return nil
}
