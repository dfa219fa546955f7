//go:build !linux

package limits

import "errors"

func noFile() (int64, error) { return 0, errors.ErrUnsupported }

func setNoFile(int64) error { return errors.ErrUnsupported }
