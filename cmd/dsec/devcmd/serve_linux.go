package devcmd

import (
	"context"
	"errors"
	"log/slog"
	"os"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/cmd/dsec/cli"
	"github.com/dsec-io/dsec/internal/devmode"
	"github.com/dsec-io/dsec/libdsec"
)

// serveDev runs dsec dev until a signal ends it, which is its normal end.
func (a app) serveDev(ctx context.Context, f *devFlags, logger *slog.Logger) (err error) {
	if os.Geteuid() != 0 {
		return api.FieldError(api.CodeInvalid, "", "sudo dsec dev; `dsec doctor` tells what else it needs", "dsec dev makes sandboxes, and that needs root")
	}
	if f.profiles != "" {
		stop, profilesErr := devmode.ServeProfiles(ctx, f.profiles)
		if profilesErr != nil {
			return profilesErr
		}
		defer func() { err = errors.Join(err, stop()) }()
	}
	store := libdsec.UserContexts(a.Getenv)
	err = devmode.Run(ctx, devmode.Config{
		DataDir: f.data, Listen: f.listen, Keep: f.keep, Hosts: f.hosts, ImageStore: f.images, IDRanges: f.idRanges,
		PoolSize: poolSize(f.pool), Ready: a.Stdout, Logger: logger, Capacity: f.capacity,
		OnReady: func(file devmode.ContextFile) {
			if f.noContext || cli.Alive(ctx, store) {
				return
			}
			if err := cli.Adopt(store, file.Path); err != nil {
				logger.WarnContext(ctx, "the current context wasn't set", slog.Any("err", err))
			}
		},
	})
	if interrupted, ok := errors.AsType[*cli.InterruptedError](err); ok && interrupted != nil {
		return nil
	}
	return err
}

// poolSize is the flag as devmode takes it, to which 0 is the default.
func poolSize(flag int) int {
	if flag <= 0 {
		return -1
	}
	return flag
}
