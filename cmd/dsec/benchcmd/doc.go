// Package benchcmd is `dsec bench`: a server as its clients meet it.
package benchcmd

import (
	"github.com/spf13/cobra"

	"github.com/dsec-io/dsec/cmd/dsec/cli"
)

// app is what the commands have to work with.
type app struct{ *cli.App }

// Command returns `dsec bench`.
func Command(a *cli.App) *cobra.Command { return app{a}.command() }
