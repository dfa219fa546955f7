//go:build !linux

package doctorcmd

import (
	"context"

	"github.com/dsec-io/dsec/cmd/dsec/cli"
	"github.com/dsec-io/dsec/internal/doctor"
)

func probeMachine(context.Context, doctor.Options) (doctor.Report, error) {
	return doctor.Report{}, cli.LinuxOnly("dsec doctor")
}

func cleanMachine(context.Context, doctor.Options, bool) ([]doctor.Leftover, error) {
	return nil, cli.LinuxOnly("dsec doctor")
}
