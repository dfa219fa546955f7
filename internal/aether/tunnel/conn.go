package tunnel

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
)

// ErrDeaf is the error of a write to a program that takes nothing more. What it has to say can still be read.
var ErrDeaf = fmt.Errorf("the program takes nothing more: %w", syscall.EPIPE)

// Conn is a connection to a port inside a sandbox. It implements [net.Conn].
type Conn struct {
	dialer *Dialer
	st     *aether.Stream
	remote Addr
	rd, wr *deadline
	closed atomic.Bool
	deaf   atomic.Bool // the program takes nothing more

	writing sync.Mutex // held during a write: data of two writers doesn't mix

	reading sync.Mutex // guards what follows, and is held during a read
	frame   aether.Frame
	held    bool
	rest    []byte
	err     error // what comes after rest
}

// Addr is the address of a port: SANDBOX:PORT.
type Addr string

// Network implements [net.Addr].
func (Addr) Network() string { return "dsec" }

// String implements [net.Addr].
func (a Addr) String() string { return string(a) }

// LocalAddr implements [net.Conn]. This end has no address of its own.
func (c *Conn) LocalAddr() net.Addr { return Addr("client") }

// RemoteAddr implements [net.Conn].
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// Read implements [net.Conn].
func (c *Conn) Read(p []byte) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	if len(p) == 0 {
		return 0, nil
	}
	if err := c.fill(); err != nil {
		return 0, err
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	if len(c.rest) == 0 {
		c.release()
	}
	return n, nil
}

// WriteTo implements [io.WriterTo].
func (c *Conn) WriteTo(w io.Writer) (total int64, err error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	for {
		if err := c.fill(); err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return total, err
		}
		n, err := w.Write(c.rest)
		total += int64(n)
		c.rest = c.rest[n:]
		if err != nil {
			return total, err
		}
		c.release()
	}
}

// fill makes rest hold something.
func (c *Conn) fill() error {
	until := c.rd.now()
	if err := until.Err(); err != nil {
		return c.because(err)
	}
	for len(c.rest) == 0 {
		c.release()
		if c.err != nil {
			return c.err
		}
		f, err := c.st.Recv(until)
		switch {
		case expired(err):
			return c.because(err)
		case errors.Is(err, io.EOF):
			// Closed without an end of the data.
			c.err = api.Errorf(api.CodePortFailed, "the connection broke off")
			continue
		case err != nil:
			c.err = told(err)
			continue
		}
		c.frame, c.held = f, true
		switch {
		case f.Channel == aether.Stdout:
			c.rest = f.Data
			if f.End {
				c.err = io.EOF
			}
		case f.Channel == aether.Message && f.Type == aether.MsgReply:
			c.err = fault(f.Data)
		case f.Channel == aether.Message && f.Type == aether.MsgAck:
			c.deaf.Store(true)
		}
	}
	return nil
}

// told is an error of a stream as a user of the connection meets it.
func told(err error) error {
	if _, ok := errors.AsType[*api.Error](err); ok {
		return err
	}
	return api.Errorf(api.CodeUnavailable, "the connection to the sandbox was lost: %v", err)
}

// because tells a deadline from a Close.
func (c *Conn) because(err error) error {
	if c.closed.Load() {
		return net.ErrClosed
	}
	return err
}

func (c *Conn) release() {
	if c.held {
		c.frame.Release()
		c.held = false
	}
	c.rest = nil
}

// chunk is how much is written at a time. It fits one frame everywhere.
const chunk = aether.MaxDataAether

// Write implements [net.Conn].
func (c *Conn) Write(p []byte) (n int, err error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	for {
		until := c.wr.now()
		if err := until.Err(); err != nil {
			return n, c.because(err)
		}
		if c.hear(); c.deaf.Load() {
			return n, ErrDeaf
		}
		if len(p) == 0 {
			return n, nil
		}
		part := p[:min(chunk, len(p))]
		if err := c.st.Write(until, aether.Stdin, part); err != nil {
			if expired(err) {
				return n, c.because(err)
			}
			return n, told(err)
		}
		n += len(part)
		p = p[len(part):]
	}
}

// hear looks for what the other side says of what is written to it, once nobody reads any more who would come across it.
func (c *Conn) hear() {
	if !c.reading.TryLock() {
		return
	}
	defer c.reading.Unlock()
	for c.err != nil && !c.deaf.Load() {
		f, err := c.st.Recv(passed())
		if err != nil {
			if errors.Is(err, io.EOF) {
				c.deaf.Store(true)
			}
			return
		}
		if f.Channel == aether.Message && f.Type == aether.MsgAck {
			c.deaf.Store(true)
		}
		f.Release()
	}
}

// CloseWrite ends the direction towards the port, after everything written.
func (c *Conn) CloseWrite() error {
	if c.closed.Load() {
		return net.ErrClosed
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	return c.st.CloseWrite(aether.Stdin)
}

// Close implements [net.Conn]. What was written before is still delivered, as long as there is somebody who takes it.
func (c *Conn) Close() error {
	if !c.end() {
		return nil
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	_ = c.st.CloseWrite(aether.Stdin) // a stream that was lost is closed, too
	_ = c.st.Close()
	c.dialer.linger(c.st)
	return nil
}

// Abort ends the connection at once: the program sees a reset.
func (c *Conn) Abort() {
	if c.end() {
		c.st.Reset(nil)
	}
}

// end makes every call return, and tells whether it was the first to.
func (c *Conn) end() bool {
	if c.closed.Swap(true) {
		return false
	}
	c.rd.set(time.Unix(1, 0))
	c.wr.set(time.Unix(1, 0))
	c.reading.Lock() // until nobody receives any more
	defer c.reading.Unlock()
	c.release()
	c.err = net.ErrClosed
	return true
}

// SetDeadline implements [net.Conn].
func (c *Conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline implements [net.Conn].
func (c *Conn) SetReadDeadline(t time.Time) error { return c.setDeadline(c.rd, t) }

// SetWriteDeadline implements [net.Conn].
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.setDeadline(c.wr, t) }

func (c *Conn) setDeadline(d *deadline, t time.Time) error {
	if c.closed.Load() {
		return net.ErrClosed
	}
	d.set(t)
	if c.closed.Load() {
		d.set(time.Unix(1, 0)) // what Close had set
		return net.ErrClosed
	}
	return nil
}

// deadline is that of the calls in one direction.
type deadline struct {
	mu    sync.Mutex // guards what follows
	timer *time.Timer
	done  chan struct{}
}

func newDeadline() *deadline { return &deadline{done: make(chan struct{})} }

// set moves the deadline; the zero time is none.
func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil && !d.timer.Stop() {
		<-d.done // it has fired, and closes the channel
	}
	d.timer = nil
	passed := false
	select {
	case <-d.done:
		passed = true
	default:
	}
	if passed {
		d.done = make(chan struct{})
	}
	if t.IsZero() {
		return
	}
	done := d.done
	if left := time.Until(t); left > 0 {
		d.timer = time.AfterFunc(left, func() { close(done) })
		return
	}
	close(done)
}

// now is a context for one call. It is done for good once the deadline has passed, also when that is moved then.
func (d *deadline) now() until {
	d.mu.Lock()
	defer d.mu.Unlock()
	return until(d.done)
}

// until is a context that ends when its channel is closed.
type until <-chan struct{}

// passed is a context that has ended.
func passed() until {
	done := make(chan struct{})
	close(done)
	return done
}

// expired tells whether err is that of a call which a deadline has ended.
func expired(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }

// Deadline implements [context.Context].
func (until) Deadline() (time.Time, bool) { return time.Time{}, false }

// Value implements [context.Context].
func (until) Value(any) any { return nil }

// Done implements [context.Context].
func (u until) Done() <-chan struct{} { return u }

// Err implements [context.Context].
func (u until) Err() error {
	select {
	case <-u:
		return os.ErrDeadlineExceeded
	default:
		return nil
	}
}
