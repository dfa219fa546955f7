package tunnel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
)

// Method is the aether method behind a [Conn]; its body is the port as a decimal number.
const Method = "port.dial"

// lingerTime is how long a connection that was closed may take to deliver what was written to it.
const lingerTime = time.Minute

// Dialer makes connections and sees to those that were closed, until what was written to them is delivered. The zero value
// is ready.
type Dialer struct {
	// mu guards what follows.
	mu     sync.Mutex
	closed bool
	stop   context.CancelCauseFunc
	ctx    context.Context //nolint:containedctx // of what outlives its connection's owner
	wg     sync.WaitGroup
}

// errGrace gives up a delivery.
var errGrace = errors.New("the dialer is closed")

// Open opens a stream: a client to its server, a server to its edge.
type Open func(ctx context.Context, o aether.Open) (*aether.Stream, error)

// Dial connects to a port of a sandbox. In o are the sandbox, the request's id and, where the opener is trusted with it, the
// project. The context bounds the dial only. What it returns is an error of open, of the stream, or an [api.Error].
func (d *Dialer) Dial(ctx context.Context, open Open, o aether.Open, port int) (*Conn, error) {
	if port < 1 || port > 65535 {
		return nil, api.FieldError(api.CodeInvalid, "port", "ports go from 1 to 65535", "%d isn't a port", port)
	}
	o.Method, o.Body = Method, []byte(strconv.Itoa(port))
	st, err := open(ctx, o)
	if err != nil {
		return nil, err
	}
	for {
		f, err := st.Recv(ctx)
		if err != nil {
			st.Reset(nil)
			if errors.Is(err, io.EOF) {
				err = fmt.Errorf("dial port %d: %w", port, io.ErrUnexpectedEOF)
			}
			return nil, err
		}
		if f.Channel == aether.Message && f.Type == aether.MsgReply {
			c := &Conn{dialer: d, st: st, remote: Addr(o.Sandbox + ":" + strconv.Itoa(port)), rd: newDeadline(), wr: newDeadline()}
			f.Release()
			return c, nil
		}
		f.Release()
	}
}

// Close waits for the delivery of what was written to connections that were closed, for as long as grace, then gives it up.
func (d *Dialer) Close(grace time.Duration) {
	d.mu.Lock()
	d.closed = true
	stop := d.stop
	d.mu.Unlock()
	if stop == nil {
		return
	}
	timer := time.AfterFunc(grace, func() { stop(errGrace) })
	d.wg.Wait()
	timer.Stop()
	stop(errGrace)
}

// linger sees a closed connection's stream through to its end: until the other side has ended it too, everything may still
// be on its way. What comes meanwhile is dropped.
func (d *Dialer) linger(st *aether.Stream) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		st.Reset(nil)
		return
	}
	if d.stop == nil {
		d.ctx, d.stop = context.WithCancelCause(context.Background())
	}
	ctx := d.ctx
	d.wg.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, lingerTime)
		defer cancel()
		defer st.Reset(nil) // of no effect after an end in order
		for {
			f, err := st.Recv(ctx)
			if err != nil {
				return
			}
			f.Release()
		}
	})
}

// fault reads why a connection ended out of order.
func fault(body []byte) error {
	e := new(api.Error)
	if err := json.Unmarshal(body, e); err != nil || e.Code == "" {
		return api.Errorf(api.CodePortFailed, "the connection broke off")
	}
	return e
}
