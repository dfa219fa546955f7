package main

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/dsec-io/dsec/libdsec"
)

// app is what a command has to work with.
type app struct {
	env     []string
	stdin   io.Reader
	stdout  io.Writer
	stderr  io.Writer
	signals *signalRouter
	status  int // what a command that ran to its end exits with

	endpoint, token, contextName string
}

// run is the whole program. It returns the exit code.
func run(ctx context.Context, args, env []string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	a := &app{env: env, stdin: stdin, stdout: stdout, stderr: stderr}
	a.signals = newSignalRouter(func(s os.Signal) { cancel(&interruptedError{s}) })
	defer a.signals.close()

	root := a.root() //nolint:contextcheck // commands get ctx from ExecuteContext
	root.SetArgs(withDash(root, args))
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return a.status
	}
	if i, ok := errors.AsType[*interruptedError](context.Cause(ctx)); ok {
		err = i
	}
	a.report(err)
	return exitCode(err)
}

func (a *app) root() *cobra.Command {
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
		Version:           version(),
		Args:              subcommand,
		RunE:              group,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	f := root.PersistentFlags()
	f.StringVar(&a.endpoint, "endpoint", "", "address of the API server (http://HOST:PORT)")
	f.StringVar(&a.token, "token", "", "token to show it; better in DSEC_TOKEN, where no process list shows it")
	f.StringVar(&a.contextName, "context", "", "use this context instead of the current one")
	root.SetVersionTemplate(versionLine())
	root.SetFlagErrorFunc(usageError)
	root.AddCommand(a.devCommand(), a.runCommand(), a.sandboxCommand(), a.imageCommand(), a.eventsCommand(), a.rlCommand(), a.benchCommand(), a.doctorCommand(),
		a.configCommand(), a.versionCommand(), a.completionCommand())
	return root
}

// getenv reads the environment that run was given.
func (a *app) getenv(name string) string {
	v, _ := a.lookupEnv(name)
	return v
}

func (a *app) lookupEnv(name string) (string, bool) {
	for i := len(a.env) - 1; i >= 0; i-- {
		if k, v, ok := strings.Cut(a.env[i], "="); ok && k == name {
			return v, true
		}
	}
	return "", false
}

// settings finds the server: flags first, then what libdsec.Resolve says.
func (a *app) settings() (libdsec.Settings, error) {
	store := libdsec.UserContexts(a.getenv)
	flagged := func(name string) string {
		switch {
		case name == libdsec.EnvEndpoint && a.endpoint != "":
			return a.endpoint
		case name == libdsec.EnvToken && a.token != "":
			return a.token
		case a.contextName != "" && name != libdsec.EnvToken:
			return "" // a context named by flag beats an endpoint from the environment
		}
		return a.getenv(name)
	}
	if a.contextName != "" && a.endpoint == "" {
		s, err := store.Read(a.contextName)
		if err == nil && a.token != "" {
			s.Token = a.token
		}
		return s, err
	}
	return libdsec.Resolve(flagged, store)
}

func (a *app) client() (*libdsec.Client, error) {
	s, err := a.settings()
	if err != nil {
		return nil, err
	}
	return libdsec.New(libdsec.WithSettings(s), libdsec.WithUserAgent("dsec/"+version()))
}

// withClient runs fn with a client that is closed afterwards.
func (a *app) withClient(fn func(*libdsec.Client) error) (err error) {
	c, err := a.client()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	return fn(c)
}

// terminal gives the descriptor of a stream that is a terminal.
func terminal(stream any) (fd int, ok bool) {
	f, isFile := stream.(*os.File)
	if !isFile || !term.IsTerminal(int(f.Fd())) {
		return -1, false
	}
	return int(f.Fd()), true
}
