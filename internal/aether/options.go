package aether

import (
	"fmt"
	"io"
	"time"
)

// Transport carries a connection's bytes. Close must make a blocked Read and Write return.
//
// A transport that also has the methods of unixfd.Conn gets vectored writes without a goroutine switch and can pass
// descriptors.
type Transport = io.ReadWriteCloser

// vectorWriter is a transport that can write without waiting.
type vectorWriter interface {
	// WriteBuffers writes all, waiting as needed. fds go with the first byte.
	WriteBuffers(bufs [][]byte, fds []int) (int, error)
	// TryWriteBuffers writes what can be written at once, which may be nothing. fds have gone when n > 0.
	TryWriteBuffers(bufs [][]byte, fds []int) (n int, err error)
}

// descriptorPasser is a transport that passes descriptors; they are received in the order in which they were sent.
type descriptorPasser interface {
	vectorWriter
	DupFDs(fds []int) ([]int, error)
	TakeFDs(n int) ([]int, error)
	CloseFDs(fds []int)
}

// Options tune one end of a connection. The zero value is good for everything but an aether and its edge.
type Options struct {
	Name         string        // this peer's name, told in HELLO
	MinVersion   uint8         // lowest version spoken; default [Version]
	MaxVersion   uint8         // highest version spoken; default [Version]
	Features     uint64        // feature bits told in HELLO
	MaxData      int           // largest frame payload accepted: an aether and whoever relays to one says [MaxDataAether]; default [MaxDataElse]
	Window       int           // credit given to the peer per stream and channel at the start; default 256 KiB
	MaxStreams   int           // streams the peer may have open at once; default 4,096
	HelloTimeout time.Duration // default 5 s
	// Panic is told when a handler panics; its stream is then reset with an internal error. Without Panic the process dies.
	Panic func(v any, stack []byte)
}

// FeatureKeys is the feature bit of who honours [Open]'s Key.
const FeatureKeys uint64 = 1

// Limits of the protocol.
const (
	MaxDataAether = 64 << 10  // largest frame payload towards an aether
	MaxDataElse   = 256 << 10 // largest frame payload between anything else
	MaxMessage    = 16 << 20  // largest message, in as many frames as it takes
)

const (
	minData          = 1 << 10 // least MaxData and Window that a peer may tell
	maxWindow        = 64 << 20
	maxName          = 255
	maxFDs           = 16                 // descriptors with one stream
	sendAhead        = 256 << 10          // bytes of messages of one stream that wait to be written before Send waits
	maxQueuedMessage = MaxMessage + 1<<20 // bytes of messages of one stream that wait to be received
	maxQueuedFrames  = 1 << 10            // and their number
	maxPendingOpen   = 64 << 20           // bytes of OPENs of one connection that no handler has yet
	maxRefusals      = 1 << 10            // RESETs for refused streams that wait to be written
)

func (o *Options) setDefaults() error {
	if o.MinVersion == 0 {
		o.MinVersion = Version
	}
	if o.MaxVersion == 0 {
		o.MaxVersion = Version
	}
	if o.MaxData == 0 {
		o.MaxData = MaxDataElse
	}
	if o.Window == 0 {
		o.Window = 256 << 10
	}
	if o.MaxStreams == 0 {
		o.MaxStreams = 4096
	}
	if o.HelloTimeout == 0 {
		o.HelloTimeout = 5 * time.Second
	}
	h := o.hello()
	if o.MaxData < 0 || o.Window < 0 || o.MaxStreams < 0 || o.MaxVersion < o.MinVersion || h.check() != nil {
		return fmt.Errorf("aether options out of range: %+v", h)
	}
	return nil
}

func (o *Options) hello() Hello {
	return Hello{
		MinVersion: o.MinVersion, MaxVersion: o.MaxVersion, Features: o.Features, Name: o.Name,
		MaxData: uint32(o.MaxData), Window: uint32(o.Window), MaxStreams: uint32(o.MaxStreams),
	}
}

// check tells whether a peer may say this.
func (m *Hello) check() error {
	switch {
	case m.MinVersion == 0 || m.MaxVersion < m.MinVersion:
		return fmt.Errorf("%w: versions %d to %d", ErrHello, m.MinVersion, m.MaxVersion)
	case m.MaxData < minData || m.MaxData > MaxDataElse:
		return fmt.Errorf("%w: frame limit %d", ErrHello, m.MaxData)
	case m.Window < minData || m.Window > maxWindow:
		return fmt.Errorf("%w: window %d", ErrHello, m.Window)
	case len(m.Name) > maxName:
		return fmt.Errorf("%w: name of %d bytes", ErrHello, len(m.Name))
	}
	return nil
}
