package sandboxcmd

import (
	"context"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/cmd/dsec/cli"
	"github.com/dsec-io/dsec/libdsec"
)

// watchEvery is how often a listing that is watched is made anew.
const watchEvery = 2 * time.Second

// listFlags say which sandboxes are listed.
type listFlags struct {
	state  string
	labels []string
	all    bool
}

func (a app) listCommand() *cobra.Command {
	var f listFlags
	var format string
	var quiet, watch bool
	cmd := &cobra.Command{
		Use:        "ls",
		Aliases:    []string{"list"},
		SuggestFor: []string{"ps"},
		Short:      "List sandboxes",
		Long:       "Lists the sandboxes that live, newest first; with --all or --state also those that ended within the last hour.",
		Example:    "  dsec sandbox ls\n  dsec sandbox ls -l team=rl -q\n  dsec sandbox ls --state failed -o json\n  dsec sandbox ls --watch",
		Args:       cli.Exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if quiet {
				format = cli.FormatName
			}
			return a.WithClient(func(c *libdsec.Client) error {
				list := func(ctx context.Context) error {
					list, err := f.list(ctx, c)
					if err != nil {
						return err
					}
					return a.sandboxes(format, list)
				}
				if watch {
					return a.Repeat(cmd.Context(), watchEvery, list)
				}
				return list(cmd.Context())
			})
		},
	}
	fs := cmd.Flags()
	fs.BoolVarP(&f.all, "all", "a", false, "also those that have ended")
	fs.StringVar(&f.state, "state", "", "only those in this `STATE`, such as running or failed")
	cli.Complete(cmd, "state", cobra.FixedCompletions(states(), cobra.ShellCompDirectiveNoFileComp))
	fs.StringArrayVarP(&f.labels, "label", "l", nil, "only those with this label `KEY=VALUE` (repeatable)")
	fs.BoolVarP(&quiet, "quiet", "q", false, "ids only; the same as -o name")
	fs.BoolVarP(&watch, "watch", "w", false, "list again every 2 seconds, until Ctrl-C")
	cli.OutputFlag(cmd, &format)
	cmd.MarkFlagsMutuallyExclusive("quiet", "output")
	return cmd
}

// states are the states that a sandbox may be in.
func states() []string {
	return []string{
		string(api.StateCreating), string(api.StateRunning), string(api.StatePausing), string(api.StatePaused), string(api.StateResuming),
		string(api.StateSnapshotting), string(api.StateForking), string(api.StateStopping), string(api.StateStopped), string(api.StateFailed),
	}
}

func (f *listFlags) list(ctx context.Context, c *libdsec.Client) ([]api.Sandbox, error) {
	want, err := cli.Pairs("--label", f.labels)
	if err != nil {
		return nil, err
	}
	if f.state != "" && !slices.Contains(states(), f.state) {
		return nil, api.FieldError(api.CodeInvalid, "--state", "a state such as running, paused or failed", "no state %q", f.state)
	}
	list, err := cli.Collect(ctx, c, libdsec.ListOptions{State: api.State(f.state), Labels: want})
	if err != nil {
		return nil, err
	}
	if !f.all && f.state == "" {
		list = slices.DeleteFunc(list, func(sb api.Sandbox) bool { return sb.State.Ended() })
	}
	return list, nil
}
