package main

import (
	"context"
	"errors"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/dsec-io/dsec/cmd/dsec/benchcmd"
	"github.com/dsec-io/dsec/cmd/dsec/cli"
	"github.com/dsec-io/dsec/cmd/dsec/configcmd"
	"github.com/dsec-io/dsec/cmd/dsec/devcmd"
	"github.com/dsec-io/dsec/cmd/dsec/doctorcmd"
	"github.com/dsec-io/dsec/cmd/dsec/iamcmd"
	"github.com/dsec-io/dsec/cmd/dsec/imagecmd"
	"github.com/dsec-io/dsec/cmd/dsec/portcmd"
	"github.com/dsec-io/dsec/cmd/dsec/sandboxcmd"
)

// run is the whole program. It returns the exit code.
func run(ctx context.Context, args, env []string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	a := &cli.App{Env: env, Stdin: stdin, Stdout: stdout, Stderr: stderr}
	a.Signals = cli.NewSignals(func(s os.Signal) { cancel(&cli.InterruptedError{Signal: s}) })
	defer a.Signals.Close()

	root := root(a) //nolint:contextcheck // commands get ctx from ExecuteContext
	root.SetArgs(cli.WithDash(root, args))
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return a.Status
	}
	if i, ok := errors.AsType[*cli.InterruptedError](context.Cause(ctx)); ok {
		err = i
	}
	a.Report(err)
	return cli.ExitCode(err)
}

func root(a *cli.App) *cobra.Command {
	root := &cobra.Command{
		Use:   "dsec",
		Short: "Elastic compute for AI agents: sandboxes on demand",
		Long: "dsec makes sandboxes and runs commands in them.\n\n" +
			"It finds its server by, in this order: the flags --endpoint and --token, DSEC_ENDPOINT and DSEC_TOKEN, the\n" +
			"context file that DSEC_CONTEXT names, and the current context (see `dsec config`).\n\n" +
			"Exit codes: 0; a command's own for run and exec; 124 timed out; 125 DSec failed; 126 not executable;\n" +
			"127 not found; 128+n ended by signal n; 130 interrupted.",
		Example:           "  dsec dev                               # a whole DSec on this machine\n  dsec run busybox -- echo hello         # in another terminal\n  dsec run -it busybox                   # a shell",
		SilenceErrors:     true,
		SilenceUsage:      true,
		Version:           cli.Version(),
		Args:              cli.Subcommand,
		RunE:              cli.Group,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	f := root.PersistentFlags()
	f.StringVar(&a.Endpoint, "endpoint", "", "address of the API server (http://HOST:PORT)")
	f.StringVar(&a.Token, "token", "", "token to show it; better in DSEC_TOKEN, where no process list shows it")
	f.StringVar(&a.ContextName, "context", "", "use this context instead of the current one")
	f.StringVar(&a.Project, "project", "", "act in this project instead of the token's own")
	cli.Complete(root, "project", iamcmd.CompleteProject(a))
	root.SetVersionTemplate(versionLine())
	cli.Complete(root, "context", func(cmd *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return a.CompleteContexts(cmd, nil, typed)
	})
	root.SetFlagErrorFunc(cli.FlagError)
	root.SetHelpCommand(helpCommand())
	sandbox := sandboxcmd.Command(a)
	sandbox.AddCommand(portcmd.Command(a))
	root.AddCommand(
		devcmd.Command(a), sandboxcmd.RunCommand(a), sandbox, imagecmd.Command(a), sandboxcmd.EventsCommand(a), sandboxcmd.TopCommand(a),
		rlCommand(a), benchcmd.Command(a), doctorcmd.Command(a), configcmd.Command(a), versionCommand(a), completionCommand(a),
	)
	root.AddCommand(iamcmd.Commands(a)...)
	cli.OnlyKnown(root)
	return root
}
