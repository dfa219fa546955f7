package sandboxcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/cmd/dsec/cli"
	"github.com/dsec-io/dsec/libdsec"
)

// execFlags say how a command is connected.
type execFlags struct {
	stdin      bool
	tty        bool
	timeout    time.Duration
	detachKeys string

	changed func(string) bool
	keys    []byte // detachKeys, parsed
}

func (f *execFlags) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.Var((*cli.Seconds)(&f.timeout), "timeout", "kill the command after this time (30s, 5m); exit code 124")
	f.addStreams(fs)
}

// addStreams adds what also holds for a command that runs already.
func (f *execFlags) addStreams(fs *pflag.FlagSet) {
	fs.BoolVarP(&f.stdin, "interactive", "i", false, "connect stdin")
	fs.BoolVarP(&f.tty, "tty", "t", false, "give it a terminal (default: when stdin and stdout are one)")
	fs.StringVar(&f.detachKeys, "detach-keys", "", "`KEYS` that let go of a command at a terminal, such as ctrl-p,ctrl-q")
	f.changed = fs.Changed
}

// resolve fills in what wasn't said: at a terminal a command gets a terminal and our input.
func (f *execFlags) resolve(a app) error {
	_, in := cli.Terminal(a.Stdin)
	_, out := cli.Terminal(a.Stdout)
	if in && out && !f.changed("interactive") && !f.changed("tty") {
		f.stdin, f.tty = true, true
	}
	if f.tty && f.stdin && !in {
		return api.FieldError(api.CodeInvalid, "--tty", "leave -t away", "stdin isn't a terminal")
	}
	var err error
	if f.keys, err = parseDetachKeys(f.detachKeys); err != nil {
		return api.FieldError(api.CodeInvalid, "--detach-keys", "such as ctrl-p,ctrl-q", "%v", err)
	}
	return nil
}

func (a app) execCommand() *cobra.Command {
	var ex execFlags
	var env envFlags
	var user, workdir, session, key string
	cmd := &cobra.Command{
		Use:         "exec [flags] SANDBOX [--] CMD...",
		Annotations: map[string]string{cli.TakesCommand: "yes"},
		Short:       "Run a command in a sandbox",
		Long: "Runs a command in a sandbox and prints what it prints. At a terminal the command gets a terminal too; otherwise\n" +
			"its input is empty unless -i is given. The exit code is the command's.",
		Example: "  dsec sandbox exec SANDBOX -- ls -l /\n" +
			"  dsec sandbox exec -i SANDBOX -- sh < script.sh\n" +
			"  dsec sandbox exec -u nobody -w /tmp -e KEY=value SANDBOX -- env",
		Args: func(cmd *cobra.Command, args []string) error {
			if err := cli.WithCommand("SANDBOX")(cmd, args); err != nil {
				return err
			}
			if len(args) < 2 {
				return cli.UsageError(cmd, errors.New("CMD is missing"))
			}
			return nil
		},
		ValidArgsFunction: a.CompleteSandbox,
		RunE: func(cmd *cobra.Command, args []string) error {
			vars, err := env.env(a.LookupEnv)
			if err != nil {
				return err
			}
			if err := ex.resolve(a); err != nil {
				return err
			}
			return a.WithClient(func(c *libdsec.Client) error {
				return a.foreground(cmd.Context(), c.Sandbox(args[0]), libdsec.Cmd{
					Argv: cli.CommandOf(args), Env: vars, Cwd: workdir, User: user, Session: session, Timeout: ex.timeout, Key: key,
				}, &ex)
			})
		},
	}
	ex.add(cmd)
	env.add(cmd)
	cmd.Flags().StringVarP(&user, "user", "u", "", "`USER` to run as (default: the sandbox's)")
	cmd.Flags().StringVarP(&workdir, "workdir", "w", "", "working directory `DIR` (default: the sandbox's)")
	cmd.Flags().StringVar(&session, "session", "", "run in this shell session, `ID`")
	addKey(cmd, &key)
	return cmd
}

func (a app) shellCommand() *cobra.Command {
	var ex execFlags
	var user, workdir string
	cmd := &cobra.Command{
		Use:   "shell [flags] SANDBOX",
		Short: "Open a shell in a sandbox",
		Long: "Opens an interactive shell: bash where the image has it, else sh. Ctrl-C, Ctrl-Z and the like go to the shell;\n" +
			"its exit code is the command's.",
		Example:           "  dsec sandbox shell SANDBOX\n  dsec sandbox shell -u nobody SANDBOX",
		Args:              cli.Exactly("SANDBOX"),
		ValidArgsFunction: a.CompleteSandbox,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := ex.resolve(a); err != nil {
				return err
			}
			ex.stdin = true
			return a.WithClient(func(c *libdsec.Client) error {
				return a.foreground(cmd.Context(), c.Sandbox(args[0]), libdsec.Cmd{
					Shell: loginShell, Cwd: workdir, User: user, Timeout: ex.timeout,
				}, &ex)
			})
		},
	}
	ex.add(cmd)
	cmd.Flags().StringVarP(&user, "user", "u", "", "`USER` to run as (default: the sandbox's)")
	cmd.Flags().StringVarP(&workdir, "workdir", "w", "", "working directory `DIR` (default: the sandbox's)")
	return cmd
}

// loginShell becomes the best shell there is.
const loginShell = `if command -v bash >/dev/null 2>&1; then exec bash; else exec sh; fi`

// foreground runs a command connected to our streams and sets the exit code to its own.
func (a app) foreground(ctx context.Context, sb *libdsec.Sandbox, cmd libdsec.Cmd, ex *execFlags) error {
	if ex.tty {
		return a.interactive(ctx, sb, cmd, ex)
	}
	var in io.Reader
	if ex.stdin {
		in = a.Stdin
	}
	cmd.Stdin = in
	fw := &forwarder{}
	// From here on an interrupt is the command's business. The first context stays alive for it.
	runCtx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	defer a.Signals.Route(func(s os.Signal) { fw.signal(runCtx, cancel, s) })()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	p, err := a.startOrShell(runCtx, sb, cmd, libdsec.StartOptions{Lossless: true, Handlers: libdsec.Handlers{
		OnStdout: a.copyTo(a.Stdout), OnStderr: a.copyTo(a.Stderr), OnGap: a.reportGap,
	}})
	if err != nil {
		return err
	}
	fw.to(runCtx, p)
	st, err := p.Wait(context.WithoutCancel(runCtx))
	return a.finish(st, err)
}

// startOrShell starts a command. When none was named and the image doesn't say what to run either, that's a shell.
func (a app) startOrShell(ctx context.Context, sb *libdsec.Sandbox, cmd libdsec.Cmd, o libdsec.StartOptions) (*libdsec.Process, error) {
	p, err := sb.Start(ctx, cmd, o)
	if len(cmd.Argv) == 0 && cmd.Shell == "" && api.IsCode(err, api.CodeInvalid) {
		cmd.Shell = loginShell
		p, err = sb.Start(ctx, cmd, o)
	}
	return p, err
}

func (a app) copyTo(w io.Writer) func([]byte) error {
	return func(b []byte) error {
		_, err := w.Write(b)
		return err
	}
}

func (a app) reportGap(g libdsec.Gap) error {
	fmt.Fprintf(a.Stderr, "dsec: %d bytes of %s are missing here\n", g.Length, g.Stream)
	return nil
}

// finish sets the exit code to the command's, and says what the code alone doesn't.
func (a app) finish(st api.ExitStatus, err error) error {
	switch {
	case err == nil:
	case errors.Is(err, syscall.EPIPE):
		// Our reader has gone, as with `| head`; a command of this machine would have died from SIGPIPE.
		a.Status = cli.ExitSignalled + int(syscall.SIGPIPE)
		return nil
	default:
		return err
	}
	a.Status = cli.StatusCode(st)
	if note := cli.StatusNote(st); note != nil {
		a.Report(note)
	}
	return nil
}
