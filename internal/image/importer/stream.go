package importer

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"

	"github.com/klauspost/compress/zstd"

	"github.com/dsec-io/dsec/api"
)

// maxWindow is how much memory a zstd stream may want; `zstd --long` wants as much.
const maxWindow = 128 << 20

// source is where bytes come from. It counts them and remembers why there were no more, so that the source's own faults
// aren't taken for the archive's.
type source struct {
	ctx   context.Context //nolint:containedctx // a Reader has no other way to end
	r     io.Reader
	bytes int64
	err   error
}

func (s *source) Read(p []byte) (int, error) {
	if s.ctx.Err() != nil {
		s.err = context.Cause(s.ctx)
		return 0, s.err
	}
	n, err := s.r.Read(p)
	s.bytes += int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}

// budget ends a stream that goes on for too long, as one that was made to grow when it's unpacked does.
type budget struct {
	r    io.Reader
	left *int64
}

func (b budget) Read(p []byte) (int, error) {
	if *b.left <= 0 {
		return 0, tooLarge("the archive unpacks to more than an image may have")
	}
	n, err := b.r.Read(p[:min(int64(len(p)), *b.left)])
	*b.left -= int64(n)
	return n, err
}

// decompress finds out how a stream is compressed and unpacks it. The returned function gives the memory back.
func decompress(r io.Reader) (io.Reader, func(), error) {
	b := bufio.NewReaderSize(r, 64<<10)
	head, err := b.Peek(6)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, err
	}
	starts := func(magic string) bool { return bytes.HasPrefix(head, []byte(magic)) }
	switch {
	case len(head) == 0:
		return nil, nil, fault("there is nothing in it")
	case starts("\x1f\x8b"):
		z, err := gzip.NewReader(b)
		if err != nil {
			return nil, nil, err
		}
		return z, func() {}, nil
	case starts("\x28\xb5\x2f\xfd") || len(head) >= 4 && head[0]&0xf0 == 0x50 && starts(string(head[:1])+"\x2a\x4d\x18"):
		z, err := zstd.NewReader(b, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderLowmem(true))
		if err != nil {
			return nil, nil, err
		}
		return z, z.Close, nil
	case starts("BZh"), starts("\xfd7zXZ\x00"):
		return nil, nil, refusal("unpack it, or pack it with gzip or zstd", "the archive is compressed with bzip2 or xz")
	}
	return b, func() {}, nil
}

// explain turns what reading has failed with into what a client can act on: its own fault, or that of what it reads from.
func (s *source) explain(what string, err error) error {
	if s.err != nil {
		return s.err
	}
	if _, own := errors.AsType[*writeError](err); own || asTyped(err) != nil {
		return err
	}
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return fault("%s ends too early", what)
	}
	if errors.Is(err, tar.ErrHeader) {
		return api.FieldError(api.CodeInvalid, fieldArchive, "give a folder or a tar, plain or compressed with gzip or zstd", "%s is no tar, or damaged: %v", what, err)
	}
	return fault("%s is damaged: %v", what, err)
}
