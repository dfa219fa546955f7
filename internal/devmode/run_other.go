//go:build !linux

package devmode

import (
	"context"
	"errors"
)

// Run needs Linux.
func Run(context.Context, Config) error {
	return errors.New("sandboxes run on Linux only; point this client at a DSec server there")
}
