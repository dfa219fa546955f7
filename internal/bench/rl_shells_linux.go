package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/rl/sandboxenv"
)

// heldShell is a shell that runs in a sandbox all the time, and takes commands as lines.
type heldShell struct {
	box   *libdsec.Sandbox
	shell *libdsec.Process
	lines *bufio.Reader
}

func hold(ctx context.Context, pool *sandboxenv.Pool) (*heldShell, error) {
	box, err := pool.Get(ctx)
	if err != nil {
		return nil, err
	}
	p, err := box.Start(ctx, libdsec.Cmd{Argv: []string{"/bin/sh"}}, libdsec.StartOptions{StdinPipe: true})
	if err != nil {
		pool.Put(box) //nolint:contextcheck // it's stopped whatever has ended
		return nil, fmt.Errorf("hold a shell: %w", err)
	}
	return &heldShell{box: box, shell: p, lines: bufio.NewReader(p.Stdout())}, nil
}

// run has the shell run a program, and wants its exit code to be 0.
func (h *heldShell) run(program string) error {
	if _, err := io.WriteString(h.shell.Stdin(), program+"; echo $?\n"); err != nil {
		return err
	}
	switch line, err := h.lines.ReadString('\n'); {
	case err != nil:
		return err
	case line != "0\n":
		return fmt.Errorf("the held shell said %q", line)
	}
	return nil
}

// rlShells measures commands inside held shells. They pass DSec as a few bytes of input and output; the shell starts them.
func (b *bench) rlShells(ctx context.Context, pool *sandboxenv.Pool) (err error) {
	shells := make([]*heldShell, 0, b.Sandboxes)
	defer func() { //nolint:contextcheck // they're stopped whatever has ended
		for _, h := range shells {
			err = errors.Join(err, h.shell.Close())
			pool.Put(h.box)
		}
	}()
	for range b.Sandboxes {
		h, err := hold(ctx, pool)
		if err != nil {
			return err
		}
		shells = append(shells, h)
	}
	n, rounds := b.counts(200, 20)
	b.sayf("rl: %d lines to %d held shells", n, len(shells))
	p := &plan{n: n, rounds: rounds, concurrency: 1, failed: b.failed, contenders: []*contender{
		{name: atOnce, do: func(_ context.Context, l *laps) error {
			defer l.lap(stepBatch)
			return runAll(shells)
		}},
		{name: oneByOne, do: func(_ context.Context, l *laps) error {
			defer l.lap(stepBatch)
			for range shells {
				if err := shells[0].run(realTrue); err != nil {
					return err
				}
			}
			return nil
		}},
	}}
	p.warm(ctx)
	tallies := p.run(ctx)
	b.keep(len(shells), renamed(tallies, "rl-held-shell"))
	r := tallies[atOnce].result(RL+".held-shells.busybox-true", "commands/s", len(shells), each(tallies[atOnce], len(shells)))
	r.Peak = len(shells)
	r.against(oneByOne, each(tallies[oneByOne], len(shells)), true)
	b.document.Results = append(b.document.Results, r)
	b.notef("held-shells is counted apart: commands that a shell in each sandbox starts, which runs all the time and reads them as lines")
	return nil
}

func runAll(shells []*heldShell) error {
	errs := make([]error, len(shells))
	var wg sync.WaitGroup
	for i, h := range shells {
		wg.Go(func() { errs[i] = h.run(realTrue) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
