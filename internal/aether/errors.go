package aether

import (
	"errors"
	"fmt"
)

// What can go wrong with a connection or a stream; find them with [errors.Is].
var (
	ErrConnLost    = errors.New("aether connection lost")               // wraps the cause; every stream of the connection gets it
	ErrHungUp      = errors.New("the peer hung up")                     // a cause of ErrConnLost; it takes io.EOF's place, which means a stream's graceful end
	ErrClosed      = errors.New("closed on this side")                  // the connection or the stream was closed here
	ErrReset       = errors.New("stream reset by the peer")             // without a typed error: the peer cancelled
	ErrHello       = errors.New("no valid hello")                       // the peer didn't say HELLO, or not in time
	ErrMagic       = errors.New("not an aether frame")                  // wrong magic
	ErrHeaderCRC   = errors.New("frame header checksum mismatch")       // ends the connection
	ErrPayloadCRC  = errors.New("frame payload checksum mismatch")      // ends the stream
	ErrTooLarge    = errors.New("frame or message over its size limit") // a length over the negotiated one
	ErrChannel     = errors.New("unknown channel")                      // ends the connection
	ErrFlags       = errors.New("unknown or misplaced flags or type")   // ends the connection
	ErrStreamID    = errors.New("stream id unknown or used before")     // ends the connection
	ErrCredit      = errors.New("credit violated")                      // ends the stream
	ErrEnded       = errors.New("data after the end of its channel")    // ends the stream
	ErrFlood       = errors.New("too many messages waiting")            // ends the stream
	ErrDescriptors = errors.New("descriptors can't be passed here")     // none came, too many came, or the transport can't
	ErrMalformed   = errors.New("malformed message")                    // a message that can't be decoded
	ErrTooMany     = errors.New("too many streams on this connection")  // the peer's MaxStreams is reached
)

// VersionError says that the peers have no version in common.
type VersionError struct {
	OurMin, OurMax, TheirMin, TheirMax uint8
	Peer                               string
}

// Error names both ranges.
func (e *VersionError) Error() string {
	return fmt.Sprintf("aether protocol: we speak versions %d to %d, %q speaks %d to %d",
		e.OurMin, e.OurMax, e.Peer, e.TheirMin, e.TheirMax)
}
