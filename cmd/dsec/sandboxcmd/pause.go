package sandboxcmd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/cmd/dsec/cli"
	"github.com/dsec-io/dsec/libdsec"
)

func (a app) pauseCommand() *cobra.Command {
	return a.turnCommand(&cobra.Command{
		Use:   "pause [flags] SANDBOX...",
		Short: "Make sandboxes stand still",
		Long: "Makes everything in sandboxes stand still, and prints their ids when it does. Memory, processes, files and open\n" +
			"connections stay as they are. It goes on with dsec sandbox resume, or as soon as something is to be done in it: a\n" +
			"command, a terminal, a file, a port. Looking (get, ls, ps, logs, events, stats) wakes nothing. While it is paused the\n" +
			"time of --max-running stands still, and that of --max-paused runs. Pausing a paused sandbox is no error.",
		Example: "  dsec sandbox pause SANDBOX\n  dsec sandbox ls -o name --state running | xargs dsec sandbox pause",
	}, func(ctx context.Context, sb *libdsec.Sandbox) (api.Sandbox, error) { return sb.Pause(ctx) })
}

func (a app) resumeCommand() *cobra.Command {
	var running time.Duration
	cmd := a.turnCommand(&cobra.Command{
		Use:     "resume [flags] SANDBOX...",
		Short:   "Let paused sandboxes go on",
		Long:    "Lets paused sandboxes go on where they were, and prints their ids when they do. Resuming one that runs is no error.",
		Example: "  dsec sandbox resume SANDBOX\n  dsec sandbox resume --max-running 1h SANDBOX",
	}, func(ctx context.Context, sb *libdsec.Sandbox) (api.Sandbox, error) {
		if running > 0 {
			return sb.ResumeFor(ctx, running)
		}
		return sb.Resume(ctx)
	})
	cmd.Flags().Var((*cli.Seconds)(&running), "max-running", "at least this time (90s, 2h) until --max-running of its creation stops it")
	return cmd
}

// turnCommand completes a command that does one thing to each of several sandboxes.
func (a app) turnCommand(cmd *cobra.Command, turn func(context.Context, *libdsec.Sandbox) (api.Sandbox, error)) *cobra.Command {
	var format string
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cli.UsageError(cmd, errors.New("SANDBOX is missing"))
		}
		return nil
	}
	cmd.ValidArgsFunction = a.CompleteSandboxes
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.WithClient(func(c *libdsec.Client) error {
			done, failed := a.turnAll(cmd, args, func(ctx context.Context, id string) (api.Sandbox, error) { return turn(ctx, c.Sandbox(id)) })
			if len(done) == 0 {
				return failed
			}
			if format == cli.FormatTable {
				format = cli.FormatName
			}
			return errors.Join(a.sandboxes(format, done), failed)
		})
	}
	cli.OutputFlag(cmd, &format)
	return cmd
}

// turnAll goes on after a failure and reports all of them, in the order of the ids.
func (a app) turnAll(cmd *cobra.Command, ids []string, turn func(context.Context, string) (api.Sandbox, error)) (done []api.Sandbox, failed error) {
	ctx := cmd.Context()
	var mu sync.Mutex // guards got
	got := map[string]api.Sandbox{}
	for i, err := range each(ctx, ids, func(id string) error {
		info, err := turn(ctx, id)
		mu.Lock()
		defer mu.Unlock()
		got[id] = info
		return err
	}) {
		switch {
		case err == nil:
			mu.Lock()
			done = append(done, got[ids[i]])
			mu.Unlock()
		case len(ids) == 1 || ctx.Err() != nil:
			return done, err
		default:
			a.Report(fmt.Errorf("%s %s: %w", cmd.Name(), ids[i], err))
			failed = &cli.StatusError{Code: cli.ExitCode(err)}
		}
	}
	return done, failed
}
