package registry

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"
)

// asBlob is the Accept-Encoding of requests for blobs, and of no others: those may take as long as they get on.
const asBlob = "identity"

// maxTalk is how many times as long as it may bring nothing an answer may take in whole that isn't a blob.
const maxTalk = 4

var (
	errStalled = errors.New("nothing came for too long")
	errEndless = errors.New("an answer didn't end")
)

// watched is the body of an answer that is given up when nothing of it comes for too long, or, where it isn't a blob, when
// it takes too long in whole: whoever reads it waits no longer, be it for a token or to throw it away.
type watched struct {
	io.ReadCloser
	ctx    context.Context //nolint:containedctx // the request's, which ends with its body
	cancel context.CancelCauseFunc
	stall  time.Duration
	idle   *time.Timer // runs while something is waited for
	whole  *time.Timer // nil with a blob
}

// watch watches the body of an answer to a request that ctx, and cancel, end.
func watch(ctx context.Context, cancel context.CancelCauseFunc, resp *http.Response, stall time.Duration) io.ReadCloser {
	w := &watched{ReadCloser: resp.Body, ctx: ctx, cancel: cancel, stall: stall}
	w.idle = time.AfterFunc(stall, func() { cancel(errStalled) })
	w.idle.Stop()
	if resp.Request.Header.Get("Accept-Encoding") != asBlob || resp.StatusCode >= http.StatusMultipleChoices {
		w.whole = time.AfterFunc(maxTalk*stall, func() { cancel(errEndless) })
	}
	return w
}

// Read implements [io.Reader].
func (w *watched) Read(p []byte) (int, error) {
	w.idle.Reset(w.stall)
	n, err := w.ReadCloser.Read(p)
	w.idle.Stop()
	if err == nil {
		return n, nil
	}
	// An answer that was given up may look as if it had ended.
	if why := context.Cause(w.ctx); errors.Is(why, errStalled) || errors.Is(why, errEndless) {
		err = why
	}
	return n, err
}

// Close implements [io.Closer].
func (w *watched) Close() error {
	w.idle.Stop()
	if w.whole != nil {
		w.whole.Stop()
	}
	err := w.ReadCloser.Close()
	w.cancel(nil)
	return err
}
