package aether

import (
	"io"
	"time"
)

// Transport carries a connection's bytes. Close must make a blocked Read and Write return.
//
// A transport that also has the methods of unixfd.Conn gets vectored writes without a goroutine switch and can pass
// descriptors.
type Transport = io.ReadWriteCloser

// Options tune one end of a connection. The zero value is good for everything but an aether.
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

// Limits of the protocol.
const (
	MaxDataAether = 64 << 10  // largest frame payload towards an aether
	MaxDataElse   = 256 << 10 // largest frame payload between anything else
	MaxMessage    = 16 << 20  // largest message, in as many frames as it takes
)
