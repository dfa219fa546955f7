// Package sandboxcmd is `dsec sandbox`, `dsec run`, `dsec events` and `dsec top`: sandboxes, and the commands in them.
package sandboxcmd

import (
	"github.com/spf13/cobra"

	"github.com/dsec-io/dsec/cmd/dsec/cli"
)

// app is what the commands have to work with.
type app struct{ *cli.App }

// Command returns `dsec sandbox`.
func Command(a *cli.App) *cobra.Command { return app{a}.command() }

// RunCommand returns `dsec run`.
func RunCommand(a *cli.App) *cobra.Command { return app{a}.runCommand() }

// EventsCommand returns `dsec events`.
func EventsCommand(a *cli.App) *cobra.Command { return app{a}.eventsCommand() }

// TopCommand returns `dsec top`.
func TopCommand(a *cli.App) *cobra.Command { return app{a}.topCommand() }
