package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/dsec-io/dsec/cmd/dsec/rlcmd"
)

func (a *app) rlCommand() *cobra.Command {
	_, tty := terminal(a.stdout)
	return rlcmd.Command(rlcmd.Host{
		Stdout: a.stdout, Stderr: a.stderr, Terminal: tty,
		Route:       func(handler func(os.Signal)) func() { return a.signals.route(handler) },
		Interrupted: func(s os.Signal) error { return &interruptedError{s} },
	})
}
