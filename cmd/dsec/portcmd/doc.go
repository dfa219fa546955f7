// Package portcmd is `dsec sandbox port-forward`: ports of this machine that lead to ports inside a sandbox.
package portcmd

import (
	"github.com/spf13/cobra"

	"github.com/dsec-io/dsec/cmd/dsec/cli"
)

// app is what the commands have to work with.
type app struct{ *cli.App }

// Command returns `port-forward`.
func Command(a *cli.App) *cobra.Command { return app{a}.command() }
