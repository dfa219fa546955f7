package cli

import (
	"runtime"

	"github.com/dsec-io/dsec/api"
)

// LinuxOnly is the error of a command that other systems don't have.
func LinuxOnly(command string) error {
	return api.FieldError(api.CodeNotImplemented, "", "run it on Linux, and point DSEC_ENDPOINT and DSEC_TOKEN at it from here",
		"%s runs on Linux only, this is %s", command, runtime.GOOS)
}
