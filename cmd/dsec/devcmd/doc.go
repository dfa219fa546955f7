// Package devcmd is `dsec dev`: a whole DSec on this machine.
package devcmd

import (
	"github.com/spf13/cobra"

	"github.com/dsec-io/dsec/cmd/dsec/cli"
)

// app is what the commands have to work with.
type app struct{ *cli.App }

// Command returns `dsec dev`.
func Command(a *cli.App) *cobra.Command { return app{a}.command() }
