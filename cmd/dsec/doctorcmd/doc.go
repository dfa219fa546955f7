// Package doctorcmd is `dsec doctor`: what this machine can do for DSec.
package doctorcmd

import (
	"github.com/spf13/cobra"

	"github.com/dsec-io/dsec/cmd/dsec/cli"
)

// app is what the commands have to work with.
type app struct{ *cli.App }

// Command returns `dsec doctor`.
func Command(a *cli.App) *cobra.Command { return app{a}.command() }
