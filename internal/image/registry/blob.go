package registry

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/dsec-io/dsec/internal/image/importer"
)

const (
	blobBuffer = 128 << 10
	maxBreaks  = 5       // times that a blob may break off without getting on
	gettingOn  = 1 << 20 // bytes that count as getting on
)

var (
	errRestart  = errors.New("the registry can't go on where it broke off")
	errTooLong  = errors.New("more bytes came than the blob has")
	errPoisoned = errors.New("other bytes came than the digest says")
)

// transfer is one blob on its way.
type transfer struct {
	s    *session
	d    descriptor
	to   io.WriterAt
	got  func(n int64) // is told what has come; less than nothing for what has to come again
	warn func(string)

	at  int64
	sum hash.Hash
	buf []byte
}

// diskError is a fault of the disk, and not of what was read.
type diskError struct{ error }

func (e *diskError) Unwrap() error { return e.error }

// run fetches the blob: it goes on where the connection broke, and begins anew when the bytes aren't those of the digest.
func (t *transfer) run(ctx context.Context) error {
	t.sum, t.buf = sha256.New(), make([]byte, blobBuffer)
	wrong, breaks, before := 0, 0, int64(0)
	for {
		err := t.attempt(ctx)
		if err == nil && t.d.Digest != "sha256:"+hex.EncodeToString(t.sum.Sum(nil)) {
			err = errPoisoned
		}
		if err == nil {
			return nil
		}
		if _, disk := errors.AsType[*diskError](err); disk || ctx.Err() != nil {
			return err
		}
		if _, answered := errors.AsType[*transport.Error](err); answered || lasting(err) {
			return t.s.explain(err, "blob "+short(t.d.Digest)+" of "+t.s.ref.Repository)
		}
		switch {
		case errors.Is(err, errPoisoned), errors.Is(err, errTooLong):
			if wrong++; wrong == maxPoisoned {
				return poisoned(t.s, fmt.Errorf("blob %s came %d times with other bytes than its digest says", short(t.d.Digest), wrong))
			}
			t.restart()
		case errors.Is(err, errRestart):
			t.restart()
			fallthrough
		default:
			if t.at >= before+gettingOn {
				breaks = 0
			}
			if breaks++; breaks == maxBreaks {
				return t.s.explain(fmt.Errorf("blob %s broke off at %d of %d bytes: %w", short(t.d.Digest), t.at, t.d.Size, withoutURL(err)), "")
			}
		}
		t.warn(fmt.Sprintf("blob %s: %v: fetched again from byte %d of %d", short(t.d.Digest), withoutURL(err), t.at, t.d.Size))
		before = t.at
	}
}

// restart forgets what has come.
func (t *transfer) restart() {
	t.got(-t.at)
	t.at = 0
	t.sum.Reset()
}

// attempt makes one request for what is missing, and takes what comes.
func (t *transfer) attempt(ctx context.Context) error {
	header := http.Header{"Accept-Encoding": {asBlob}}
	want := []int{http.StatusOK}
	if t.at > 0 {
		header.Set("Range", fmt.Sprintf("bytes=%d-", t.at))
		want = []int{http.StatusOK, http.StatusPartialContent, http.StatusRequestedRangeNotSatisfiable}
	}
	resp, err := t.s.request(ctx, http.MethodGet, "/blobs/"+t.d.Digest, header, want...)
	if err != nil {
		return err
	}
	defer resp.Body.Close() // only read from
	switch {
	case resp.StatusCode == http.StatusRequestedRangeNotSatisfiable, resp.StatusCode == http.StatusPartialContent && !startsAt(resp.Header, t.at):
		return errRestart
	case resp.StatusCode == http.StatusOK && t.at > 0:
		t.restart() // all of it comes again
	}
	for {
		done, err := t.take(resp.Body)
		if done || err != nil {
			return err
		}
	}
}

// take takes what has come, and tells whether that was the last of it.
func (t *transfer) take(r io.Reader) (done bool, err error) {
	n, err := r.Read(t.buf)
	if int64(n) > t.d.Size-t.at {
		return false, errTooLong
	}
	if _, err := t.to.WriteAt(t.buf[:n], t.at); err != nil {
		return false, &diskError{importer.Stored("write to the image store", err)}
	}
	t.sum.Write(t.buf[:n])
	t.at += int64(n)
	t.got(int64(n))
	if !errors.Is(err, io.EOF) {
		return false, err
	}
	if t.at < t.d.Size {
		return false, fmt.Errorf("it ends after %d bytes: %w", t.at, io.ErrUnexpectedEOF)
	}
	return true, nil
}

// startsAt tells whether a partial answer begins where it was asked to.
func startsAt(h http.Header, at int64) bool {
	first, _, _ := strings.Cut(strings.TrimPrefix(h.Get("Content-Range"), "bytes "), "-")
	n, err := strconv.ParseInt(first, 10, 64)
	return err == nil && n == at
}

// memory is where a small blob goes.
type memory []byte

// WriteAt implements [io.WriterAt].
func (m memory) WriteAt(p []byte, at int64) (int, error) { return copy(m[at:], p), nil }

// small fetches a blob that fits into memory.
func (s *session) small(ctx context.Context, d descriptor, warn func(string)) ([]byte, error) {
	m := make(memory, d.Size)
	t := transfer{s: s, d: d, to: m, got: func(int64) {}, warn: warn}
	err := t.run(ctx)
	return m, err
}
