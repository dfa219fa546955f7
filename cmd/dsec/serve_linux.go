package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/bench"
	"github.com/dsec-io/dsec/internal/devmode"
	"github.com/dsec-io/dsec/internal/doctor"
	"github.com/dsec-io/dsec/libdsec"
)

// serveDev runs dsec dev until a signal ends it, which is its normal end.
func (a *app) serveDev(ctx context.Context, f *devFlags, logger *slog.Logger) error {
	if os.Geteuid() != 0 {
		return api.FieldError(api.CodeInvalid, "", "sudo dsec dev; `dsec doctor` tells what else it needs", "dsec dev makes sandboxes, and that needs root")
	}
	store := libdsec.UserContexts(a.getenv)
	err := devmode.Run(ctx, devmode.Config{
		DataDir: f.data, Listen: f.listen, Keep: f.keep, Hosts: f.hosts, ImageStore: f.images, IDRanges: f.idRanges,
		PoolSize: poolSize(f.pool), Ready: a.stdout, Logger: logger, Capacity: f.capacity,
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

// poolSize is the flag as devmode takes it, to which 0 is the default.
func poolSize(flag int) int {
	if flag <= 0 {
		return -1
	}
	return flag
}

// bench runs a benchmark against the server of the current context, if that answers.
func (a *app) bench(ctx context.Context, name string, f *benchFlags) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	o := bench.Options{
		Command: f.typed(name), N: f.n, Quick: f.quick, Concurrency: f.concurrency, Peers: f.peers, Sandboxes: f.sandboxes, Out: f.out,
		Store: f.images, Self: self, Env: a.env, Progress: a.stderr,
	}
	if s, err := a.settings(); err == nil && answers(ctx, s) {
		o.Endpoint, o.Token, o.Images = s.Endpoint, s.Token, ownImages(s.File)
	}
	doc, err := bench.Run(ctx, name, o)
	if err != nil {
		return err
	}
	if f.json {
		err = doc.WriteJSON(a.stdout)
	} else {
		err = doc.WriteTable(a.stdout)
	}
	if err == nil && doc.Failures() > 0 {
		err = &statusError{1}
	}
	return err
}

// answers tells whether there is a server behind settings.
func answers(ctx context.Context, s libdsec.Settings) bool {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	c, err := libdsec.New(libdsec.WithSettings(s))
	if err != nil {
		return false
	}
	defer func() { _ = c.Close() }()
	return c.Healthy(ctx) == nil
}

// ownImages is the image folder of the data folder that a context file is in; empty when it isn't in one.
func ownImages(contextFile string) string {
	data := filepath.Dir(contextFile)
	if _, err := os.Stat(filepath.Join(data, "instance")); contextFile == "" || err != nil {
		return ""
	}
	return filepath.Join(data, "images")
}

func probeMachine(ctx context.Context, o doctor.Options) (doctor.Report, error) {
	return doctor.Run(ctx, o), nil
}
