package sandboxcmd

import (
	"context"
	"errors"
	"io"
	"maps"

	"github.com/spf13/cobra"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/cmd/dsec/cli"
	"github.com/dsec-io/dsec/libdsec"
)

func (a app) command() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "sandbox",
		Aliases: []string{"sb"},
		Short:   "Make, use and stop sandboxes",
		Example: "  dsec sandbox create busybox\n  dsec sandbox ls -o name\n  dsec sb shell SANDBOX",
		Args:    cli.Subcommand,
		RunE:    cli.Group,
	}
	cmd.AddCommand(a.createCommand(), a.listCommand(), a.getCommand(), a.execCommand(), a.shellCommand(), a.attachCommand(),
		a.logsCommand(), a.stopCommand(), a.setCommand(), a.pauseCommand(), a.resumeCommand(), a.extendCommand(), a.statsCommand(), a.psCommand(), a.sandboxEventsCommand(),
		a.copyCommand())
	return cmd
}

func (a app) createCommand() *cobra.Command {
	var spec specFlags
	var format, key string
	cmd := &cobra.Command{
		Use:         "create [flags] IMAGE [-- CMD...]",
		Annotations: map[string]string{cli.TakesCommand: "yes", cli.FlagHints: flagHints},
		Short:       "Make a sandbox and print its id",
		Long: "Makes a sandbox and prints its id when it answers commands. It lives until it's stopped. CMD is a start process\n" +
			"that runs in it from the beginning; its output is the sandbox's log.",
		Example: "  dsec sandbox create busybox\n" +
			"  ID=$(dsec sandbox create -m 1g -l team=rl busybox)\n" +
			"  dsec sandbox create busybox -- httpd -f -p 8080",
		Args:              cli.WithCommand("IMAGE"),
		ValidArgsFunction: a.CompleteImage,
		RunE: func(cmd *cobra.Command, args []string) error {
			want, err := spec.spec(args[0], a.LookupEnv)
			if err != nil {
				return err
			}
			want.Command = cli.CommandOf(args)
			return a.WithClient(func(c *libdsec.Client) error {
				sb, err := a.create(cmd.Context(), c, want, key)
				if err != nil {
					return err
				}
				if err := context.Cause(cmd.Context()); err != nil {
					return errors.Join(err, a.stopOne(context.WithoutCancel(cmd.Context()), sb))
				}
				if format == cli.FormatTable {
					return a.names([]api.Sandbox{sb.Info()})
				}
				return a.sandbox(format, sb.Info())
			})
		},
	}
	spec.add(cmd)
	addKey(cmd, &key)
	cli.OutputFlag(cmd, &format)
	return cmd
}

func (a app) getCommand() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:               "get [flags] SANDBOX",
		Aliases:           []string{"inspect"},
		Short:             "Show a sandbox: its state and the spec in force",
		Example:           "  dsec sandbox get SANDBOX\n  dsec sandbox get -o json SANDBOX",
		Args:              cli.Exactly("SANDBOX"),
		ValidArgsFunction: a.CompleteSandbox,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.WithClient(func(c *libdsec.Client) error {
				sb, err := c.Get(cmd.Context(), args[0])
				if err != nil {
					return err
				}
				return a.sandbox(format, sb.Info())
			})
		},
	}
	cli.OutputFlag(cmd, &format)
	return cmd
}

func (a app) setCommand() *cobra.Command {
	var res resourceFlags
	var env envFlags
	var labels, unsetEnv, unsetLabels []string
	var format string
	cmd := &cobra.Command{
		Use:   "set [flags] SANDBOX",
		Short: "Change limits, variables or labels of a sandbox",
		Long: "Changes a sandbox; a paused one stays paused. Variables and labels that aren't named stay as they are; new variables hold for\n" +
			"commands started from then on.",
		Example:           "  dsec sandbox set -m 2g SANDBOX\n  dsec sandbox set -l stage=eval --unset-env KEY SANDBOX",
		Args:              cli.Exactly("SANDBOX"),
		ValidArgsFunction: a.CompleteSandbox,
		RunE: func(cmd *cobra.Command, args []string) error {
			vars, err := env.env(a.LookupEnv)
			if err != nil {
				return err
			}
			marks, err := cli.Pairs("--label", labels)
			if err != nil {
				return err
			}
			return a.WithClient(func(c *libdsec.Client) error {
				sb, err := c.Get(cmd.Context(), args[0])
				if err != nil {
					return err
				}
				var patch api.Patch
				patch.Env = edited(sb.Info().Spec.Env, vars, unsetEnv)
				patch.Labels = edited(sb.Info().Spec.Labels, marks, unsetLabels)
				if res.given() {
					patch.Resources = new(res.resources())
				}
				if patch == (api.Patch{}) {
					return cli.UsageError(cmd, errors.New("nothing to change"))
				}
				info, err := sb.Patch(cmd.Context(), patch)
				if err != nil {
					return err
				}
				return a.sandbox(format, info)
			})
		},
	}
	res.add(cmd.Flags())
	env.add(cmd)
	cmd.Flags().StringArrayVarP(&labels, "label", "l", nil, "label `KEY=VALUE` (repeatable)")
	cmd.Flags().StringArrayVar(&unsetEnv, "unset-env", nil, "variable `KEY` to remove (repeatable)")
	cmd.Flags().StringArrayVar(&unsetLabels, "unset-label", nil, "label `KEY` to remove (repeatable)")
	cli.OutputFlag(cmd, &format)
	return cmd
}

// edited is a map with changes applied; nil when there are none.
func edited(old, set map[string]string, unset []string) *map[string]string {
	if len(set) == 0 && len(unset) == 0 {
		return nil
	}
	m := map[string]string{}
	maps.Copy(m, old)
	maps.Copy(m, set)
	for _, k := range unset {
		delete(m, k)
	}
	return &m
}

func (a app) attachCommand() *cobra.Command {
	var ex execFlags
	cmd := &cobra.Command{
		Use:   "attach [flags] SANDBOX PROCESS",
		Short: "Connect to a process that was started before",
		Long: "Prints a process's output from its beginning, as far as it's kept, and goes on until it ends. With -i its stdin\n" +
			"or terminal is taken over; whoever had it before is told.",
		Example:           "  dsec sandbox attach SANDBOX PROCESS\n  dsec sandbox attach -it SANDBOX PROCESS",
		Args:              cli.Exactly("SANDBOX", "PROCESS"),
		ValidArgsFunction: a.CompleteProcess,
		RunE: func(cmd *cobra.Command, args []string) error {
			ex.changed = func(string) bool { return true } // nothing is taken over unasked
			if err := ex.resolve(a); err != nil {
				return err
			}
			return a.WithClient(func(c *libdsec.Client) error {
				return a.attach(cmd.Context(), c.Sandbox(args[0]), args[1], &ex)
			})
		},
	}
	ex.addStreams(cmd.Flags())
	return cmd
}

func (a app) attach(ctx context.Context, sb *libdsec.Sandbox, process string, ex *execFlags) error {
	connect := func(ctx context.Context, o libdsec.StartOptions) (*libdsec.Process, error) {
		return sb.Attach(ctx, process, libdsec.AttachOptions{Stdin: ex.stdin, Handlers: o.Handlers})
	}
	if ex.tty {
		return a.onTerminal(ctx, ex, connect)
	}
	p, err := connect(ctx, libdsec.StartOptions{Handlers: libdsec.Handlers{
		OnStdout: a.copyTo(a.Stdout), OnStderr: a.copyTo(a.Stderr), OnGap: a.reportGap,
	}})
	if err != nil {
		return err
	}
	if ex.stdin {
		go copyStdin(p, a.Stdin) // stdin can't be interrupted, so nobody waits for it
	}
	st, err := p.Wait(context.WithoutCancel(ctx))
	return a.finish(st, err)
}

func copyStdin(p *libdsec.Process, r io.Reader) {
	if _, err := io.Copy(p.Stdin(), r); err == nil {
		_ = p.Stdin().Close() // Wait says what became of the process
	}
}

func (a app) sandboxEventsCommand() *cobra.Command {
	var w eventFlags
	cmd := &cobra.Command{
		Use:               "events [flags] SANDBOX",
		Short:             "Show what happened to a sandbox",
		Example:           "  dsec sandbox events SANDBOX\n  dsec sandbox events -f -o json SANDBOX",
		Args:              cli.Exactly("SANDBOX"),
		ValidArgsFunction: a.CompleteSandbox,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.WithClient(func(c *libdsec.Client) error {
				return a.events(c.Sandbox(args[0]).Events(cmd.Context(), libdsec.WatchOptions{Follow: w.follow, Since: w.since}), &w)
			})
		},
	}
	w.add(cmd)
	cmd.Flags().Int64Var(&w.since, "since", 0, "only those after this sequence number")
	return cmd
}
