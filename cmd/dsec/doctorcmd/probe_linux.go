package doctorcmd

import (
	"context"
	"os"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/doctor"
)

func probeMachine(ctx context.Context, o doctor.Options) (doctor.Report, error) {
	return doctor.Run(ctx, o), nil
}

func cleanMachine(ctx context.Context, o doctor.Options, kept bool) ([]doctor.Leftover, error) {
	if os.Geteuid() != 0 {
		return nil, api.FieldError(api.CodeInvalid, "--clean", "sudo dsec doctor --clean", "only root sees whether an instance is served")
	}
	return doctor.Clean(ctx, o, kept)
}
