package doctorcmd

import (
	"context"

	"github.com/dsec-io/dsec/internal/doctor"
)

func probeMachine(ctx context.Context, o doctor.Options) (doctor.Report, error) {
	return doctor.Run(ctx, o), nil
}
