//go:build !linux

package disk

import "os"

func open(path string, flags int) (*os.File, error) { return os.OpenFile(path, flags, mode) }
