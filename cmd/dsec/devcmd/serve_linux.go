package devcmd

import (
	"context"
	"errors"
	"io"
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
	if f.orphans <= 0 {
		return api.FieldError(api.CodeInvalid, "--orphan-limit", "an hour is 1h", "sandboxes can't go on for %v", f.orphans)
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
		DataDir: f.data, Listen: f.listen, Keep: f.keep, Hosts: f.hosts, Registries: f.registries, ImageStore: f.images, IDRanges: f.idRanges,
		PoolSize: poolSize(f.pool), Ready: a.readyTo(), Logger: logger, Capacity: f.capacity, Orphans: f.orphans,
		OnReady: func(file devmode.ContextFile) {
			if f.noContext || alive(ctx, store) {
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

// readyTo is where the ready line goes. Whoever reads it at a terminal is told what to do next, too.
func (a app) readyTo() io.Writer {
	if _, tty := cli.Terminal(a.Stdout); tty {
		return greeter{a.Stdout}
	}
	return a.Stdout
}

// greeter says after a line what may be done now.
type greeter struct{ to io.Writer }

func (g greeter) Write(line []byte) (int, error) {
	n, err := g.to.Write(line)
	if err == nil {
		_, err = io.WriteString(g.to, "in another terminal: dsec run busybox -- echo hello; Ctrl-C here ends it with its sandboxes\n")
	}
	return n, err
}

// poolSize is the flag as devmode takes it, to which 0 is the default.
func poolSize(flag int) int {
	if flag <= 0 {
		return -1
	}
	return flag
}
