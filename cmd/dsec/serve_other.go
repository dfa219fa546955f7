//go:build !linux

package main

import (
	"context"
	"log/slog"
	"runtime"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/doctor"
)

func linuxOnly(command string) error {
	return api.FieldError(api.CodeNotImplemented, "", "run it on Linux, and point DSEC_ENDPOINT and DSEC_TOKEN at it from here",
		"%s runs on Linux only, this is %s", command, runtime.GOOS)
}

func (a *app) serveDev(context.Context, *devFlags, *slog.Logger) error { return linuxOnly("dsec dev") }

func (a *app) bench(context.Context, string, *benchFlags) error { return linuxOnly("dsec bench") }

func probeMachine(context.Context, doctor.Options) (doctor.Report, error) {
	return doctor.Report{}, linuxOnly("dsec doctor")
}
