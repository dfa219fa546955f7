package main

import (
	"context"
	"errors"
	"log/slog"

	"github.com/dsec-io/dsec/internal/devmode"
	"github.com/dsec-io/dsec/internal/doctor"
	"github.com/dsec-io/dsec/libdsec"
)

// serveDev runs dsec dev until a signal ends it, which is its normal end.
func (a *app) serveDev(ctx context.Context, f *devFlags, logger *slog.Logger) error {
	store := libdsec.UserContexts(a.getenv)
	err := devmode.Run(ctx, devmode.Config{
		DataDir: f.data, Listen: f.listen, Keep: f.keep, Hosts: f.hosts, ImageStore: f.images, IDRanges: f.idRanges,
		Ready: a.stdout, Logger: logger,
		OnReady: func(file devmode.ContextFile) {
			if f.noContext || alive(ctx, store) {
				return
			}
			if err := adopt(store, file.Path); err != nil {
				logger.WarnContext(ctx, "the current context wasn't set", slog.Any("err", err))
			}
		},
	})
	if interrupted, ok := errors.AsType[*interruptedError](err); ok && interrupted != nil {
		return nil
	}
	return err
}

func probeMachine(ctx context.Context, o doctor.Options) (doctor.Report, error) {
	return doctor.Run(ctx, o), nil
}
