package ports

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
)

// Why a connection is cut before its time, or at it.
var (
	errGone    = errors.New("the client has gone")
	errOver    = errors.New("both directions have ended")
	errDropped = errors.New("the sandbox has ended")
)

func died() *api.Error { return api.Errorf(api.CodeSandboxDied, "the sandbox has ended") }

// conn is one connection between a stream and a port.
type conn struct {
	server *Server
	st     *aether.Stream
	place  Place
	port   uint16
	cancel context.CancelCauseFunc // ends what waits for the stream

	// mu guards what follows, and is held while deadlines are set.
	mu              sync.Mutex
	f               *os.File // the socket; nil before and after it
	cause           error    // why it is cut; nil: it isn't
	inOver, outOver bool     // towards the port, and from it

	// Only toPort touches broken.
	broken bool // the program takes nothing more
	// wasReset is set by toPort when the kernel told it what fromPort wanted to know.
	wasReset bool // guarded by mu
}

// cut makes everything that waits for the stream or the socket return.
func (c *conn) cut(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cause == nil {
		c.cause = cause
	}
	c.cancel(cause)
	if c.f != nil {
		_ = c.f.SetDeadline(time.Unix(1, 0)) // closed meanwhile: nobody waits
	}
}

func (c *conn) cutBy() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause
}

// hold makes f the socket to cut, with a deadline for writes.
func (c *conn) hold(f *os.File, deadline time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cause != nil {
		return c.cause
	}
	c.f = f
	return f.SetWriteDeadline(deadline)
}

func (c *conn) letGo() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.f = nil
}

// run is the connection's life. Inner ends with it, or when it is cut; outer when the shard ends.
func (c *conn) run(outer, inner context.Context) error {
	var watcher sync.WaitGroup
	defer watcher.Wait()
	defer c.cancel(errOver)
	watcher.Go(func() {
		select {
		case <-c.st.Done():
			c.cut(errGone)
		case <-c.place.Ended():
			c.cut(errDropped)
		case <-inner.Done():
			c.cut(context.Cause(inner))
		}
	})
	addr, err := c.dial()
	if err != nil {
		return err
	}
	f := c.f // nobody changes it any more
	defer func() { _ = f.Close() }()
	if err := c.st.Send(inner, aether.MsgReply, []byte(addr.String())); err != nil {
		return context.Cause(inner)
	}
	out := make(chan struct{})
	go func() {
		defer close(out)
		c.fromPort(inner, f)
	}()
	err = c.toPort(inner, f)
	c.cancel(err)
	<-out
	return c.finish(outer, f, err)
}

// finish ends the connection for the reason that toPort has returned.
func (c *conn) finish(ctx context.Context, f *os.File, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, errOver):
		return c.st.Close()
	case errors.Is(err, io.EOF):
		_ = c.st.Close() // lost meanwhile: the program shall have its input all the same
		c.linger(ctx, f)
		return nil
	case errors.Is(err, errDropped):
		c.fault(ctx, died())
		return nil
	}
	// The client has aborted, or its connection is lost: the program must not take what it has for everything.
	abort(f)
	return errGone
}

// toPort passes on what comes on the stream, and returns why it doesn't any more: io.EOF when the client has closed.
func (c *conn) toPort(ctx context.Context, f *os.File) error {
	for {
		frame, err := c.st.Recv(ctx)
		if err != nil {
			return err
		}
		if frame.Channel == aether.Stdin {
			if len(frame.Data) > 0 && !c.broken {
				c.put(ctx, f, frame.Data)
			}
			if frame.End {
				c.endInput(f)
			}
		}
		frame.Release()
	}
}

// put writes to the program. When that takes nothing more, the client is told, and what it sends is dropped: what the
// program has sent is still on its way.
func (c *conn) put(ctx context.Context, f *os.File, data []byte) {
	_, err := f.Write(data)
	if err == nil || ctx.Err() != nil {
		return
	}
	c.broken = true
	c.mu.Lock()
	// After a FIN the kernel says EPIPE. ECONNRESET means that there was none, and it is told once: here, and then not to
	// the reader, for whom a broken end would look like an orderly one.
	c.wasReset = errors.Is(err, unix.ECONNRESET)
	c.mu.Unlock()
	ack := aether.Ack{Dropped: true}
	_ = c.st.Send(ctx, aether.MsgAck, ack.AppendTo(nil)) // the client has gone: Recv says so
	c.over(&c.inOver)
}

// endInput is the half-close of the client's direction.
func (c *conn) endInput(f *os.File) {
	if !c.broken {
		control(f, func(fd int) { _ = unix.Shutdown(fd, unix.SHUT_WR) }) // reset meanwhile: fromPort sees it
	}
	c.over(&c.inOver)
}

// over notes the end of a direction, and ends the connection when it was the second.
func (c *conn) over(direction *bool) {
	c.mu.Lock()
	*direction = true
	both := c.inOver && c.outOver
	c.mu.Unlock()
	if both {
		c.cancel(errOver)
	}
}

// fromPort passes on what the program sends.
func (c *conn) fromPort(ctx context.Context, f *os.File) {
	raw, err := f.SyscallConn()
	for err == nil {
		var n int
		var buf *[]byte
		if n, buf, err = c.read(raw); n > 0 {
			if c.st.Write(ctx, aether.Stdout, (*buf)[:n]) != nil {
				err = errGone
			}
		}
		if buf != nil {
			c.server.chunks.Put(buf)
		}
	}
	c.mu.Lock()
	wasReset := c.wasReset
	c.mu.Unlock()
	switch {
	case ctx.Err() != nil, errors.Is(err, errGone):
		return
	case errors.Is(err, io.EOF) && !wasReset && !ended(c.place, false):
		_ = c.st.CloseWrite(aether.Stdout) // the client has gone: toPort sees it
		c.over(&c.outOver)
		return
	case ended(c.place, true):
		c.fault(ctx, died())
	default:
		c.fault(ctx, api.FieldError(api.CodePortFailed, "port", "", "the program behind port %d reset the connection", c.port))
	}
	c.cancel(errOver)
}

// rawConn is the part of a syscall.RawConn that reads.
type rawConn interface {
	Read(f func(fd uintptr) bool) error
}

// read waits for data without holding a buffer, then reads it into one.
func (c *conn) read(raw rawConn) (n int, buf *[]byte, err error) {
	waited := raw.Read(func(fd uintptr) bool {
		buf = c.server.chunks.Get().(*[]byte) // the pool holds nothing else
		for {
			n, err = unix.Read(int(fd), *buf)
			if !errors.Is(err, unix.EINTR) {
				break
			}
		}
		if errors.Is(err, unix.EAGAIN) {
			c.server.chunks.Put(buf)
			buf = nil
			return false
		}
		return true
	})
	switch {
	case waited != nil:
		return 0, buf, waited
	case err == nil && n == 0:
		return 0, buf, io.EOF
	}
	return max(n, 0), buf, err
}

// fault ends the client's stream with an error that comes after all data.
func (c *conn) fault(ctx context.Context, e *api.Error) {
	if body, err := json.Marshal(e); err == nil {
		_ = c.st.Send(ctx, aether.MsgReply, body) // the client has gone
	}
	_ = c.st.Close() // as above
}

// Bounds on delivering what a client has sent before it left.
const (
	lingerTime  = time.Minute
	lingerPause = 20 * time.Millisecond
)

// linger lets the program have all that the client has sent. Closing a socket with unread data would make the kernel throw
// away what it still has to send, so what the program sends meanwhile is taken and dropped.
func (c *conn) linger(ctx context.Context, f *os.File) {
	if !c.broken {
		control(f, func(fd int) { _ = unix.Shutdown(fd, unix.SHUT_WR) })
	}
	scratch := c.server.chunks.Get().(*[]byte) // the pool holds nothing else
	defer c.server.chunks.Put(scratch)
	for end := time.Now().Add(lingerTime); time.Now().Before(end) && ctx.Err() == nil; {
		unsent := 0
		control(f, func(fd int) { unsent, _ = unix.IoctlGetInt(fd, unix.SIOCOUTQ) })
		if unsent == 0 {
			return
		}
		_ = f.SetReadDeadline(time.Now().Add(lingerPause)) // an open socket has deadlines
		if _, err := f.Read(*scratch); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
	}
}

// abort makes the coming close of a socket a reset.
func abort(f *os.File) {
	control(f, func(fd int) {
		_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}) // an orderly end, then
	})
}

func control(f *os.File, do func(fd int)) {
	raw, err := f.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) { do(int(fd)) }) // closed: nothing to do
}
