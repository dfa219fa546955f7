//go:build !linux

package devcmd

import (
	"context"
	"log/slog"

	"github.com/dsec-io/dsec/cmd/dsec/cli"
)

func (a app) serveDev(context.Context, *devFlags, *slog.Logger) error {
	return cli.LinuxOnly("dsec dev")
}
