package sandboxcmd

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/spf13/cobra"

	"github.com/dsec-io/dsec/cmd/dsec/cli"
	"github.com/dsec-io/dsec/cmd/dsec/show"
	"github.com/dsec-io/dsec/libdsec"
)

// atOnce is how many requests one command makes at a time.
const atOnce = 16

func (a app) stopCommand() *cobra.Command {
	var all bool
	var labels []string
	cmd := &cobra.Command{
		Use:     "stop [flags] SANDBOX...",
		Aliases: []string{"rm", "delete", "kill"},
		Short:   "Stop sandboxes with everything in them",
		Long:    "Stops sandboxes with everything in them and prints their ids. Stopping one that has ended is no error.",
		Example: "  dsec sandbox stop SANDBOX\n  dsec sandbox stop -l team=rl\n  dsec sandbox stop --all",
		Args: func(cmd *cobra.Command, args []string) error {
			ways := 0
			for _, said := range []bool{all, len(labels) > 0, len(args) > 0} {
				if said {
					ways++
				}
			}
			switch ways {
			case 1:
				return nil
			case 0:
				return cli.UsageError(cmd, errors.New("name sandboxes, or say --label or --all"))
			}
			return cli.UsageError(cmd, errors.New("names, --label and --all don't go together"))
		},
		ValidArgsFunction: a.CompleteSandboxes,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.WithClient(func(c *libdsec.Client) error {
				if len(args) == 0 {
					list, err := (&listFlags{labels: labels}).list(cmd.Context(), c)
					if err != nil {
						return err
					}
					for i := range list {
						args = append(args, list[i].ID)
					}
				}
				return a.stopAll(cmd.Context(), c, args)
			})
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "stop all sandboxes of the project")
	cmd.Flags().StringArrayVarP(&labels, "label", "l", nil, "stop those with this label `KEY=VALUE` (repeatable: all of them)")
	return cmd
}

// stopAll goes on after a failure and reports all of them, in the order of the ids.
func (a app) stopAll(ctx context.Context, c *libdsec.Client, ids []string) error {
	var failed error
	for i, err := range each(ctx, ids, func(id string) error { return a.stopOne(ctx, c.Sandbox(id)) }) {
		switch {
		case err == nil:
			if err := a.Write([]byte(show.Line(ids[i]) + "\n")); err != nil {
				return err
			}
		case len(ids) == 1 || ctx.Err() != nil:
			return err
		default:
			a.Report(fmt.Errorf("stop %s: %w", ids[i], err))
			failed = &cli.StatusError{Code: cli.ExitCode(err)}
		}
	}
	return failed
}

func (a app) stopOne(ctx context.Context, sb *libdsec.Sandbox) error {
	_, err := sb.Stop(ctx)
	return err
}

// each calls fn for every id, several at once, and yields what came of it in the order of the ids. Those that weren't
// begun when the loop is left, or ctx ends, aren't.
func each(ctx context.Context, ids []string, fn func(string) error) func(yield func(int, error) bool) {
	return func(yield func(int, error) bool) {
		ctx, cancel := context.WithCancelCause(ctx)
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel(errors.New("nobody waits any more"))
		results := make([]chan error, len(ids))
		for i := range results {
			results[i] = make(chan error, 1) // its sender never waits
		}
		next := make(chan int)
		wg.Go(func() {
			defer close(next)
			for i := range ids {
				select {
				case next <- i:
				case <-ctx.Done():
					return
				}
			}
		})
		for range min(atOnce, len(ids)) {
			wg.Go(func() {
				for i := range next {
					results[i] <- fn(ids[i])
				}
			})
		}
		for i := range ids {
			var err error
			select {
			case err = <-results[i]:
			case <-ctx.Done():
				err = context.Cause(ctx)
			}
			if !yield(i, err) {
				return
			}
		}
	}
}
