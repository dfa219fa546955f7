package portcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/cmd/dsec/show"
	"github.com/dsec-io/dsec/libdsec"
)

// acceptPause keeps a listener that can't accept from turning in circles.
const acceptPause = 50 * time.Millisecond

// accept connects whoever comes, until ctx ends.
func (a app) accept(ctx context.Context, sb *libdsec.Sandbox, f *forward) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		conn, err := f.ln.Accept()
		if ctx.Err() != nil {
			if err == nil {
				conn.Close()
			}
			return
		}
		if err != nil { // too few descriptors, most likely; they come back as connections end
			select {
			case <-time.After(acceptPause):
			case <-ctx.Done():
			}
			continue
		}
		local := conn.(*net.TCPConn) // the listener is TCP's
		wg.Go(func() {
			if err := connect(ctx, sb, f.remote, local); err != nil && ctx.Err() == nil {
				fmt.Fprintf(a.Stderr, "dsec: %s -> %d: %s\n", f.address, f.remote, show.Line(api.AsError(err).Detail))
			}
		})
	}
}

// connect passes bytes on between a connection of this machine and the sandbox's port, each direction until it ends. What
// breaks off on one side breaks off on the other.
func connect(ctx context.Context, sb *libdsec.Sandbox, port int, local *net.TCPConn) error {
	remote, err := sb.Dial(ctx, port)
	if err != nil {
		breakOff(local)
		return err
	}
	cut := func() {
		breakOff(local)
		if r, ok := remote.(interface{ Abort() }); ok {
			r.Abort()
		}
	}
	defer context.AfterFunc(ctx, cut)()
	up := make(chan error, 1) // one result
	go func() {
		err := toSandbox(remote, local)
		if err != nil {
			cut()
		}
		up <- err
	}()
	err = fromSandbox(local, remote)
	if err != nil {
		cut()
	}
	// Either may end the other's, and the first to fail knows why.
	if other := <-up; err == nil || errors.Is(err, net.ErrClosed) {
		err = other
	}
	if err != nil {
		if errors.Is(err, net.ErrClosed) || isLocal(err) {
			return nil // a client of this machine that left early is nobody's fault
		}
		return err
	}
	return errors.Join(remote.Close(), local.Close())
}

// isLocal tells whether an error is of a connection of this machine.
func isLocal(err error) bool {
	_, ok := errors.AsType[*net.OpError](err)
	return ok
}

func breakOff(local *net.TCPConn) {
	_ = local.SetLinger(0) // an orderly close, then
	_ = local.Close()      // closed already: so much the better
}

// chunk fits a frame.
const chunk = 64 << 10

func toSandbox(remote net.Conn, local *net.TCPConn) error {
	_, err := io.CopyBuffer(struct{ io.Writer }{remote}, struct{ io.Reader }{local}, make([]byte, chunk))
	if errors.Is(err, syscall.EPIPE) && !isLocal(err) {
		// The program takes nothing more, and may have something to say still. Closing with unread data would throw that away.
		_, err = io.Copy(io.Discard, local)
	}
	if err != nil {
		return err
	}
	return remote.(interface{ CloseWrite() error }).CloseWrite() // as Dial says
}

func fromSandbox(local *net.TCPConn, remote net.Conn) error {
	_, err := io.Copy(struct{ io.Writer }{local}, remote)
	if err != nil {
		return err
	}
	return local.CloseWrite()
}
