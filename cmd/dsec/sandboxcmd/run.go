package sandboxcmd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/cmd/dsec/cli"
	"github.com/dsec-io/dsec/cmd/dsec/show"
	"github.com/dsec-io/dsec/libdsec"
)

// stopLimit bounds how long a command waits for its sandbox to be gone.
const stopLimit = 30 * time.Second

func (a app) runCommand() *cobra.Command {
	var spec specFlags
	var ex execFlags
	var keep, rm bool
	var key string
	cmd := &cobra.Command{
		Use:         "run [flags] IMAGE [-- CMD...]",
		Annotations: map[string]string{cli.TakesCommand: "yes", cli.FlagHints: flagHints},
		Short:       "Make a sandbox, run a command in it, stop it",
		Long: "Makes a sandbox from an image, runs a command in it, prints what the command prints, and stops the sandbox.\n" +
			"Without a command it runs what the image says (ENTRYPOINT and CMD), else a shell (at a terminal bash, where there is one).\n\n" +
			"At a terminal the command gets a terminal too. Otherwise its input is empty unless -i is given. Ctrl-C and the\n" +
			"like go to the command. The exit code is the command's. The -- may be left away: what comes after IMAGE and its\n" +
			"flags is the command.",
		Example: "  dsec run busybox -- echo hello\n" +
			"  dsec run -it busybox                                 # a shell\n" +
			"  tar c . | dsec run -i busybox -- tar t               # pipe into it\n" +
			"  dsec run -m 2g --cpu 2 -e KEY=value busybox -- env   # limits and environment\n" +
			"  dsec run --timeout 30s busybox -- sleep 100          # exits with 124",
		Args:              cli.WithCommand("IMAGE"),
		ValidArgsFunction: a.CompleteImage,
		RunE: func(cmd *cobra.Command, args []string) error {
			want, err := spec.spec(args[0], a.LookupEnv)
			if err != nil {
				return err
			}
			return a.WithClient(func(c *libdsec.Client) error {
				return a.runInNew(cmd.Context(), c, want, runPlan{ex: &ex, argv: cli.CommandOf(args), keep: keep || !rm, key: key})
			})
		},
	}
	spec.add(cmd)
	ex.add(cmd)
	addKey(cmd, &key)
	cmd.Flags().BoolVar(&keep, "keep", false, "leave the sandbox running, and say its id on stderr")
	cmd.Flags().BoolVar(&rm, "rm", true, "stop the sandbox at the end; --rm=false is --keep")
	return cmd
}

// runPlan is what happens in a sandbox that run makes.
type runPlan struct {
	ex   *execFlags
	argv []string
	keep bool
	key  string
}

// runInNew makes the sandbox, runs the plan in it, and stops it whichever way that went.
func (a app) runInNew(ctx context.Context, c *libdsec.Client, spec api.Spec, plan runPlan) (err error) {
	if err := plan.ex.resolve(a); err != nil {
		return err
	}
	sb, err := a.create(ctx, c, spec, plan.key)
	if err != nil {
		return err
	}
	defer func() {
		if plan.keep || errors.Is(err, cli.ErrDetached) {
			// Its id is said nowhere else.
			fmt.Fprintf(a.Stderr, "sandbox %s goes on; dsec sandbox stop %[1]s ends it\n", show.Line(sb.ID()))
			return
		}
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
		defer cancel()
		if _, stopErr := sb.Stop(limited); stopErr != nil && !api.IsCode(stopErr, api.CodeNotFound) {
			err = errors.Join(err, stopErr)
		}
	}()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	// The sandbox has the variables, user and directory already.
	command := libdsec.Cmd{Argv: plan.argv, Timeout: plan.ex.timeout}
	if len(plan.argv) == 0 && plan.ex.tty {
		// What the image doesn't say would be the server's plain sh. If nothing is known of the image, it's for the server.
		if im, err := c.Images().Inspect(ctx, spec.Image); err == nil && len(im.Entrypoint)+len(im.Cmd) == 0 {
			command.Shell = loginShell
		}
	}
	if plan.key != "" {
		command.Key = plan.key + ".run"
	}
	return a.foreground(ctx, sb, command, plan.ex)
}

// create makes a sandbox. An interrupt doesn't break the request off, because then nobody would know what came of it:
// whoever called finds ctx ended, and the sandbox to stop.
func (a app) create(ctx context.Context, c *libdsec.Client, spec api.Spec, key string) (*libdsec.Sandbox, error) {
	done := a.Progress("creating the sandbox")
	defer done()
	limited, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() {
		time.AfterFunc(stopLimit, func() { cancel(context.Cause(ctx)) })
	})()
	if key != "" {
		return c.CreateOnce(limited, key, spec)
	}
	return c.Create(limited, spec)
}
