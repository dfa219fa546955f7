package importer

import (
	"bufio"
	"io"
	"os"

	"github.com/dsec-io/dsec/internal/image/erofs"
)

// spool holds what files hold, one after the other, until the image is written.
type spool struct {
	f   *os.File
	w   *bufio.Writer
	at  int64
	buf []byte
}

func newSpool(f *os.File) *spool {
	return &spool{f: f, w: bufio.NewWriterSize(f, 1<<20), buf: make([]byte, 128<<10)}
}

// writeError is a fault of the disk and not of what was read.
type writeError struct{ err error }

func (e *writeError) Error() string { return e.err.Error() }
func (e *writeError) Unwrap() error { return e.err }

// add appends the next size bytes of r and tells where they begin.
func (s *spool) add(r io.Reader, size int64) (int64, error) {
	at := s.at
	for left := size; left > 0; {
		k, err := io.ReadFull(r, s.buf[:min(left, int64(len(s.buf)))])
		if err != nil {
			return 0, err
		}
		if _, err := s.w.Write(s.buf[:k]); err != nil {
			return 0, &writeError{Stored("write to the image store", err)}
		}
		left -= int64(k)
	}
	s.at += size
	return at, nil
}

// reader reads a regular file that was added.
func (s *spool) reader(n *erofs.Node) (io.Reader, error) {
	if err := s.w.Flush(); err != nil {
		return nil, &writeError{Stored("write to the image store", err)}
	}
	return io.NewSectionReader(s.f, n.Offset, n.Size), nil
}
