package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/dsec-io/dsec/cmd/dsec/cli"
	"github.com/dsec-io/dsec/cmd/dsec/rlcmd"
)

func rlCommand(a *cli.App) *cobra.Command {
	_, tty := cli.Terminal(a.Stdout)
	return rlcmd.Command(rlcmd.Host{
		Stdout: a.Stdout, Stderr: a.Stderr, Terminal: tty,
		Route:       func(handler func(os.Signal)) func() { return a.Signals.Route(handler) },
		Interrupted: func(s os.Signal) error { return &cli.InterruptedError{Signal: s} },
	})
}
