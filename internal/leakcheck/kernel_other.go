//go:build !linux

package leakcheck

import "errors"

// Take needs Linux.
func Take() (Snapshot, error) { return Snapshot{}, errors.ErrUnsupported }
