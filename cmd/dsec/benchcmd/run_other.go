//go:build !linux

package benchcmd

import (
	"context"

	"github.com/dsec-io/dsec/cmd/dsec/cli"
)

func (a app) bench(context.Context, string, *benchFlags) error { return cli.LinuxOnly("dsec bench") }
