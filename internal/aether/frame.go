package aether

// Version is the protocol version this package speaks.
const Version = 1

// Channel is one of a stream's byte flows, or the place of its messages.
type Channel uint8

// The channels. A terminal's output is [Stdout].
const (
	Control Channel = 0 // frames of the protocol itself; never seen by users
	Stdin   Channel = 1
	Stdout  Channel = 2
	Stderr  Channel = 3
	Message Channel = 4 // messages, exempt from credit
)

// Frame is something received on a stream: data of a channel, the end of a channel, or a message.
type Frame struct {
	Channel Channel // Stdin, Stdout, Stderr or Message
	Type    uint8   // the message's type, one of the Msg constants; 0 for data
	End     bool    // nothing follows on this channel; Data may still hold bytes
	Data    []byte  // valid until Release

	more   bool // the message goes on
	crc    uint32
	buf    *buffer
	stream *Stream
}

// Release gives the buffer back, and the credit to the sender. It must be called once for every frame; Data is gone after it.
func (f *Frame) Release() {
	buf := f.buf
	f.buf, f.Data = nil, nil
	if buf == nil {
		return
	}
	n := len(buf.b)
	buf.free()
	f.giveCredit(n)
}

// giveCredit lets the sender send as much again as a frame with n bytes of payload has cost.
func (f *Frame) giveCredit(n int) {
	if s := f.stream; s != nil && f.Channel != Message && n > 0 {
		s.credit(f.Channel, n+frameCost)
	}
	f.stream = nil
}
