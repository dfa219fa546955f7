package aether

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// The header's layout is told in docs/aether.md.
const (
	magic      = 0x7EAE // bytes AE 7E
	headerSize = 24
	traceSize  = 16
	frameCost  = 256 // what a data frame costs in credit beside its payload, so that tiny frames can't fill memory

	helloVersion  = 0       // HELLO's layout never changes
	maxHello      = 1 << 10 // payload of a HELLO
	maxReset      = 16 << 10
	maxStreamID   = 1<<31 - 1
	windowPayload = 8
)

const (
	flagEnd   = 1 << 0 // nothing follows on the channel; on the control channel: on the stream
	flagReset = 1 << 1 // the stream (0: the connection) is over; the payload says why
	flagTrace = 1 << 2 // a trace id stands between header and payload
	flagMore  = 1 << 3 // the message goes on in the next frame
	flagsAll  = flagEnd | flagReset | flagTrace | flagMore
)

// Types on the control channel.
const (
	ctlEnd    = 0 // with flagEnd or flagReset
	ctlHello  = 1
	ctlOpen   = 2
	ctlWindow = 3
)

type header struct {
	version uint8
	flags   uint8
	channel Channel
	typ     uint8
	stream  uint32
	length  uint32
	crc     uint32 // of the payload
	trace   [traceSize]byte
}

func checksum(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }

// appendTo appends the header, with the trace id where flagged, to b.
func (h *header) appendTo(b []byte) []byte {
	at := len(b)
	b = binary.LittleEndian.AppendUint16(b, magic)
	b = append(b, h.version, h.flags, byte(h.channel), h.typ, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, h.stream)
	b = binary.LittleEndian.AppendUint32(b, h.length)
	b = binary.LittleEndian.AppendUint32(b, h.crc)
	table := crc32.MakeTable(crc32.Castagnoli)
	sum := crc32.Checksum(b[at:], table)
	if h.flags&flagTrace != 0 {
		sum = crc32.Update(sum, table, h.trace[:])
	}
	b = binary.LittleEndian.AppendUint32(b, sum)
	if h.flags&flagTrace != 0 {
		b = append(b, h.trace[:]...)
	}
	return b
}

// headerLen tells from the first headerSize bytes how long the header is, and that it is one.
func headerLen(b []byte) (int, error) {
	if m := binary.LittleEndian.Uint16(b); m != magic {
		return 0, fmt.Errorf("%w: magic %#04x", ErrMagic, m)
	}
	if b[3]&flagTrace != 0 {
		return headerSize + traceSize, nil
	}
	return headerSize, nil
}

// decode reads a header of exactly the length that headerLen told.
func (h *header) decode(b []byte) error {
	table := crc32.MakeTable(crc32.Castagnoli)
	sum := crc32.Checksum(b[:headerSize-4], table)
	if len(b) > headerSize {
		sum = crc32.Update(sum, table, b[headerSize:])
		copy(h.trace[:], b[headerSize:])
	} else {
		h.trace = [traceSize]byte{}
	}
	if binary.LittleEndian.Uint32(b[headerSize-4:]) != sum {
		return ErrHeaderCRC
	}
	h.version, h.flags, h.channel, h.typ = b[2], b[3], Channel(b[4]), b[5]
	h.stream = binary.LittleEndian.Uint32(b[8:])
	h.length = binary.LittleEndian.Uint32(b[12:])
	h.crc = binary.LittleEndian.Uint32(b[16:])
	if b[6]|b[7] != 0 {
		return fmt.Errorf("%w: reserved bytes set", ErrFlags)
	}
	return nil
}

// check tells whether the frame may come after HELLO on a connection of this version, where payloads have at most limit bytes.
func (h *header) check(version uint8, limit uint32) error {
	switch {
	case h.version != version:
		return fmt.Errorf("%w: version %d on a connection of version %d", ErrFlags, h.version, version)
	case h.flags&^flagsAll != 0:
		return fmt.Errorf("%w: flags %#02x", ErrFlags, h.flags)
	case h.channel > Message:
		return fmt.Errorf("%w: %d", ErrChannel, h.channel)
	case h.length > limit:
		return fmt.Errorf("%w: %d bytes, limit %d", ErrTooLarge, h.length, limit)
	case h.stream > maxStreamID:
		return fmt.Errorf("%w: %d", ErrStreamID, h.stream)
	}
	if !h.fits() {
		return fmt.Errorf("%w: flags %#02x, type %d, %d bytes, channel %d, stream %d", ErrFlags, h.flags, h.typ, h.length, h.channel, h.stream)
	}
	return nil
}

// fits tells whether channel, type, flags, stream and length go together.
func (h *header) fits() bool {
	switch h.channel {
	case Control:
		return h.controlFits()
	case Message:
		return h.stream != 0 && h.typ != 0 && h.flags&^flagMore == 0 && (h.length > 0 || h.flags == 0)
	default:
		return h.stream != 0 && h.typ == 0 && h.flags&^flagEnd == 0 && (h.length > 0 || h.flags != 0)
	}
}

func (h *header) controlFits() bool {
	switch h.typ {
	case ctlEnd:
		return h.flags == flagEnd && h.length == 0 && h.stream != 0 || h.flags == flagReset && h.length <= maxReset
	case ctlOpen:
		return h.stream != 0 && h.flags&flagReset == 0 && h.flags&(flagEnd|flagMore) != flagEnd|flagMore && h.length > 0
	case ctlWindow:
		return h.stream != 0 && h.flags == 0 && h.length == windowPayload
	}
	return false
}
