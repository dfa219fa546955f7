// Package disk is how the edge's records and events reach the disk.
//
// Each operation has a label, so that a test can make exactly one fail or be the last thing the process does (see
// package fault). Files is safe for concurrent use, on different paths.
package disk

import (
	"errors"
	"os"

	"github.com/dsec-io/dsec/internal/fault"
)

const mode = 0o600

// Files writes files. The zero Files does so without faults.
type Files struct{ Faults *fault.Set }

// Write puts data in a file, which it makes or empties first.
func (f Files) Write(label, path string, data []byte) error {
	part, end, fault := f.Faults.Write(label, data)
	err := fault
	if err == nil || len(part) > 0 {
		file, oerr := open(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC)
		if oerr == nil {
			_, oerr = file.Write(part)
			oerr = errors.Join(oerr, file.Close())
		}
		err = errors.Join(err, oerr)
	}
	end()
	return err
}

// Append adds data to the end of a file, which it makes if there is none.
func (f Files) Append(label, path string, data []byte) (err error) {
	file, err := open(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return f.AppendTo(label, file, data)
}

// AppendTo adds data to the end of an open file.
func (f Files) AppendTo(label string, file *os.File, data []byte) error {
	part, end, err := f.Faults.Write(label, data)
	if err == nil || len(part) > 0 {
		_, werr := file.Write(part)
		err = errors.Join(err, werr)
	}
	end()
	return err
}

// Rename gives a file the place of another.
func (f Files) Rename(label, from, to string) error {
	if err := f.Faults.At(label); err != nil {
		return err
	}
	return os.Rename(from, to)
}

// Remove removes a file.
func (f Files) Remove(label, path string) error {
	if err := f.Faults.At(label); err != nil {
		return err
	}
	return os.Remove(path)
}

// Sync has on the disk what was written to a file, or which names a folder has.
func (f Files) Sync(label, path string) (err error) {
	if err := f.Faults.At(label); err != nil {
		return err
	}
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return file.Sync()
}
