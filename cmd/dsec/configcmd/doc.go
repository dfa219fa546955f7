// Package configcmd is `dsec config`: which server commands talk to.
package configcmd

import (
	"github.com/spf13/cobra"

	"github.com/dsec-io/dsec/cmd/dsec/cli"
)

// app is what the commands have to work with.
type app struct{ *cli.App }

// Command returns `dsec config`.
func Command(a *cli.App) *cobra.Command { return app{a}.command() }
