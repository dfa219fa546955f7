package sandboxcmd

import (
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dsec-io/dsec/cmd/dsec/cli"
	"github.com/dsec-io/dsec/cmd/dsec/show"
	"github.com/dsec-io/dsec/internal/transfer"
	"github.com/dsec-io/dsec/libdsec"
)

func (a app) copyCommand() *cobra.Command {
	var user string
	cmd := &cobra.Command{
		Use:   "cp [flags] SOURCE DESTINATION",
		Short: "Copy files and directories into or out of a sandbox",
		Long: "One side is SANDBOX:PATH with an absolute path, the other a local path, or - for a tar stream on stdin or stdout.\n" +
			"A directory is copied with everything below it; what is in the destination already is merged with. As with cp, a\n" +
			"source goes into a destination that is a directory, under its own name; SOURCE/. is what is in it. What is made\n" +
			"in the sandbox belongs to its user (see --user); what is made here belongs to you.",
		Example: "  dsec sandbox cp ./project SANDBOX:/work\n  dsec sandbox cp SANDBOX:/work/result.json .\n" +
			"  tar c src | dsec sandbox cp - SANDBOX:/work\n  dsec sandbox cp SANDBOX:/work - | tar t",
		Args:              cli.Exactly("SOURCE", "DESTINATION"),
		ValidArgsFunction: a.completePlace,
		RunE: func(cmd *cobra.Command, args []string) error {
			from, to := transfer.ParsePlace(args[0]), transfer.ParsePlace(args[1])
			if (from.Sandbox == "") == (to.Sandbox == "") {
				return cli.UsageError(cmd, errors.New("exactly one side must be SANDBOX:PATH"))
			}
			if _, tty := cli.Terminal(a.Stdout); tty && args[1] == "-" {
				return cli.UsageError(cmd, errors.New("a tar isn't for a terminal: pipe it, or name a folder"))
			}
			return a.WithClient(func(c *libdsec.Client) error {
				x := &transfer.Copy{Stdin: a.Stdin, Stdout: a.Stdout}
				defer a.progressOf(args[0], &x.Meter)()
				if to.Sandbox != "" {
					return x.Upload(cmd.Context(), c.Sandbox(to.Sandbox).Files().As(user), from.Path, to.Path)
				}
				return x.Download(cmd.Context(), c.Sandbox(from.Sandbox).Files().As(user), from.Path, to.Path)
			})
		},
	}
	cmd.Flags().StringVarP(&user, "user", "u", "", "user of the sandbox who reads and writes there: NAME, UID, NAME:GROUP or UID:GID")
	return cmd
}

// completePlace completes SANDBOX: where what is typed begins one, and leaves files to the shell.
func (a app) completePlace(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 1 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ids, _ := a.CompleteSandboxes(cmd, nil, typed)
	var places []cobra.Completion
	for _, c := range ids {
		id, what, _ := strings.Cut(c, "\t")
		if strings.HasPrefix(id, typed) {
			places = append(places, cobra.CompletionWithDesc(id+":", what))
		}
	}
	if len(places) == 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return places, cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
}

// progressOf is [app.progress] with a meter.
func (a app) progressOf(what string, m *transfer.Meter) (done func()) {
	if _, tty := cli.Terminal(a.Stderr); !tty {
		return func() {}
	}
	return m.Show(a.Stderr, show.Line(what), cli.ProgressDelay, cli.ProgressTick)
}
