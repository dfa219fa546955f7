package apiserver

import (
	"context"
	"errors"
	"io"
	"net/http"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/apiserver/lifetime"
	"github.com/dsec-io/dsec/internal/budget"
)

// inputChunk is how much of a stdin body is read at a time.
const inputChunk = 32 << 10

// inputStream writes to a running process. It is an attachment of its own: the newest has the input, the older is told.
// What the process prints in the meantime comes here too and is dropped, or it would wait for us.
type inputStream struct {
	st    *aether.Stream
	acked chan bool     // one per acknowledgement: whether all input was taken
	ended chan struct{} // closed when the stream has ended
	err   error         // why; read after ended
	stop  context.CancelCauseFunc
}

// openInput takes the input of a process.
func (s *Server) openInput(ctx context.Context, c *call, id, pid string) (*inputStream, error) {
	m := aether.Attach{ID: pid, Stdin: true, FromNow: true}
	st, err := s.open(ctx, c, aether.Open{Method: "attach", Sandbox: id, Body: m.AppendTo(nil)})
	if err != nil {
		return nil, err
	}
	f, err := first(ctx, st)
	if err != nil {
		st.Reset(nil)
		return nil, err
	}
	f.Release()
	return newInput(ctx, st), nil
}

// newInput takes over a stream whose output nobody wants.
func newInput(ctx context.Context, st *aether.Stream) *inputStream {
	in := &inputStream{st: st, acked: make(chan bool, 1), ended: make(chan struct{})}
	ctx, in.stop = context.WithCancelCause(ctx)
	go in.drain(ctx)
	return in
}

func (in *inputStream) drain(ctx context.Context) {
	defer close(in.ended)
	for {
		f, err := in.st.Recv(ctx)
		if err != nil {
			in.err = err
			in.st.Reset(nil) // a write that waits ends
			return
		}
		ack := f.Channel == aether.Message && f.Type == aether.MsgAck
		var m aether.Ack
		taken := ack && m.Unmarshal(f.Data) == nil && !m.Dropped
		f.Release()
		if ack {
			select {
			case in.acked <- taken:
			default: // more than was asked for
			}
		}
	}
}

// settle waits until the sandbox has handed all that was written to the process, however long that doesn't read. Ending
// the stream earlier could lose what is on its way. A process that has ended takes no more.
func (in *inputStream) settle(ctx context.Context) error {
	if err := in.st.Send(ctx, aether.MsgAck, nil); err != nil {
		return in.why(err)
	}
	select {
	case taken := <-in.acked:
		if !taken {
			return errNotTaken()
		}
		return nil
	case <-in.ended:
		return in.why(in.err)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// why is the cause of a failed write: what the other side said, if it said something.
func (in *inputStream) why(err error) error {
	in.stop(errors.New("the input is over"))
	<-in.ended
	if e, ok := errors.AsType[*api.Error](in.err); ok {
		return e
	}
	if errors.Is(in.err, io.EOF) || errors.Is(err, io.EOF) {
		return errNotTaken()
	}
	return err
}

func errNotTaken() error {
	return api.Errorf(api.CodeWrongState, "the process has ended or closed its input")
}

func (in *inputStream) close() {
	in.stop(nil)
	<-in.ended
	in.st.Reset(nil)
}

// stdin appends a body to a process's input as it comes, in order, and answers when the process's side has it all.
func (s *Server) stdin(c *call, r *http.Request) error {
	id, pid, err := inSandbox(r, "pid", api.CodeNoSuchProcess)
	if err != nil {
		return err
	}
	q, err := query(r, "close")
	if err != nil {
		return err
	}
	end, err := q.flag("close")
	if err != nil {
		return err
	}
	ctx := r.Context()
	in, err := s.openInput(ctx, c, id, pid)
	if err != nil {
		return err
	}
	defer in.close()
	n, err := in.copyFrom(ctx, r.Body)
	if err == nil && end {
		err = in.st.CloseWrite(aether.Stdin)
	}
	if err == nil {
		err = in.settle(ctx)
	}
	if err != nil {
		return err
	}
	return c.json(http.StatusOK, api.Written{Written: n})
}

// copyFrom writes a body. Waiting for the process is waiting in Write, which holds back the client in turn.
func (in *inputStream) copyFrom(ctx context.Context, body io.Reader) (int64, error) {
	var total int64
	chunk := make([]byte, inputChunk)
	for {
		n, err := body.Read(chunk)
		if n > 0 {
			if err := in.st.Write(ctx, aether.Stdin, chunk[:n]); err != nil {
				return total, in.why(err)
			}
			total += int64(n)
		}
		if errors.Is(err, io.EOF) {
			return total, nil
		}
		if err != nil {
			return total, api.Errorf(api.CodeInvalid, "the body couldn't be read: %v", err)
		}
	}
}

// feeding is input that came with a start request, on its way to the process.
type feeding struct {
	done chan struct{} // closed when it is written, or can't be
	hold *budget.Hold  // the memory of it; nil: none
}

// feedProcess writes the input of a process. It goes on after the request: the process has been told of, and what was
// sent for it must reach it.
func (s *Server) feedProcess(st *aether.Stream, data []byte, end bool) *feeding {
	f := &feeding{done: make(chan struct{})}
	ctx := lifetime.Until(s.stop)
	s.background.Go(func() {
		defer close(f.done)
		if len(data) > 0 && st.Write(ctx, aether.Stdin, data) != nil {
			return // the process has ended
		}
		if end {
			_ = st.CloseWrite(aether.Stdin) // as above
		}
	})
	return f
}

// letGo ends a process's stream, not the process, once its input has arrived. f may be nil.
func (s *Server) letGo(st *aether.Stream, f *feeding) {
	if f == nil {
		st.Reset(nil)
		return
	}
	s.background.Go(func() {
		if f.hold != nil {
			defer f.hold.Close()
		}
		in := newInput(lifetime.Until(s.stop), st)
		defer in.close()
		<-f.done
		_ = in.settle(lifetime.Until(s.stop)) // nobody waits for how it went
	})
}
