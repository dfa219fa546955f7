package edgelink

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
)

const (
	uploadChunk = 128 << 10
	stallTime   = 2 * time.Minute // how long a client may send nothing

	// An answer that overtakes the upload reaches the client only while the rest of the upload is still taken: data that
	// nobody reads makes the kernel reset the connection, answer and all.
	lingerTime  = time.Second
	lingerBytes = 64 << 20
)

// Controller is what of an [net/http.ResponseController] an upload needs.
type Controller interface {
	EnableFullDuplex() error
	SetReadDeadline(deadline time.Time) error
}

// Upload passes a body on to a stream. It has a goroutine of its own, because the edge may have something to say before
// the end of the body, which then never comes.
type Upload struct {
	st    *aether.Stream
	body  io.Reader
	rc    Controller
	quit  atomic.Bool // no more is wanted
	hurry atomic.Bool // nor is what is on its way
	wg    sync.WaitGroup
	err   error // why the body wasn't passed on to its end; read after wg
	over  atomic.Bool
}

// StartUpload begins to pass a body on to the stdin of a stream.
func StartUpload(ctx context.Context, rc Controller, body io.Reader, st *aether.Stream) *Upload {
	up := &Upload{st: st, body: body, rc: rc}
	_ = up.rc.EnableFullDuplex() // not supported: then there is no connection to share
	up.wg.Go(func() {
		up.err = up.run(ctx)
		up.over.Store(up.err == nil)
		if up.err != nil {
			st.Reset(api.Errorf(api.CodeInvalid, "the upload broke off"))
		}
	})
	return up
}

func (up *Upload) run(ctx context.Context) error {
	buf := make([]byte, uploadChunk)
	for {
		_ = up.rc.SetReadDeadline(time.Now().Add(stallTime)) // not supported: no limit
		if up.quit.Load() {
			return up.discard(buf, errors.New("nothing more is wanted"))
		}
		n, err := up.body.Read(buf)
		if n > 0 {
			if werr := up.st.Write(ctx, aether.Stdin, buf[:n]); werr != nil {
				return up.discard(buf, werr)
			}
		}
		if errors.Is(err, io.EOF) {
			_ = up.rc.SetReadDeadline(time.Time{}) // as above
			return up.st.CloseWrite(aether.Stdin)
		}
		if err != nil {
			return &uploadError{err}
		}
	}
}

// Discard takes what a client goes on sending of a body that is no longer wanted, for a second at most, so that it can
// read the answer it was given.
func Discard(rc Controller, body io.Reader) {
	discard(rc, body, make([]byte, uploadChunk), func() bool { return false })
}

func discard(rc Controller, body io.Reader, buf []byte, hurry func() bool) {
	_ = rc.SetReadDeadline(time.Now().Add(lingerTime)) // not supported: the body ends with the request
	for left := lingerBytes; left > 0 && !hurry(); {
		n, err := body.Read(buf)
		if err != nil {
			return
		}
		left -= n
	}
}

// discard takes what the client goes on sending, and returns why it isn't wanted.
func (up *Upload) discard(buf []byte, why error) error {
	discard(up.rc, up.body, buf, up.hurry.Load)
	return why
}

// uploadError is a failure to read the body.
type uploadError struct{ err error }

func (e *uploadError) Error() string { return "read the upload: " + e.err.Error() }

// Unwrap is what the client is told, if it is still there.
func (e *uploadError) Unwrap() []error {
	return []error{e.err, api.Errorf(api.CodeInvalid, "the upload broke off: %v", e.err)}
}

// Result waits for the edge's answer. What comes on stdout until then is given to output.
func (up *Upload) Result(ctx context.Context, output func([]byte) error) ([]byte, error) {
	for {
		f, err := up.st.Recv(ctx)
		if err != nil {
			return nil, up.why(err)
		}
		var answer []byte
		switch {
		case f.Channel == aether.Message && f.Type == aether.MsgReply:
			answer = append([]byte{}, f.Data...)
		case f.Channel == aether.Stdout:
			err = output(f.Data)
		}
		f.Release()
		if answer != nil || err != nil {
			return answer, err
		}
	}
}

// why is the cause of the stream's end: what the edge says, else what the body has failed with.
func (up *Upload) why(err error) error {
	if _, told := errors.AsType[*api.Error](err); told {
		return err
	}
	up.Close()
	if broken, ok := errors.AsType[*uploadError](up.err); ok {
		return broken
	}
	return err
}

// Linger ends the upload after the answer was sent: what the client is still sending is taken and dropped, for a second
// at most.
func (up *Upload) Linger() {
	up.quit.Store(true)
	if !up.over.Load() {
		_ = up.rc.SetReadDeadline(time.Now().Add(lingerTime)) // as in discard
	}
	up.st.Reset(nil)
	up.wg.Wait()
}

// Close ends the upload wherever it is, and waits for that.
func (up *Upload) Close() {
	up.quit.Store(true)
	up.hurry.Store(true)
	if !up.over.Load() {
		_ = up.rc.SetReadDeadline(time.Unix(1, 0)) // not supported: the body ends with the request
	}
	up.st.Reset(nil)
	up.wg.Wait()
}
