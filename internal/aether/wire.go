package aether

import (
	"encoding/binary"
	"fmt"
	"math/bits"

	"github.com/dsec-io/dsec/api"
)

// Wire types of the Protobuf encoding.
const (
	wireVarint  = 0
	wireFixed64 = 1
	wireBytes   = 2
	wireFixed32 = 5

	maxListEntries = 1 << 18 // of one message; an argv of Linux has fewer
)

// appendVarint appends a field; like all of these it leaves out the zero value.
func appendVarint(b []byte, field int, v uint64) []byte {
	if v == 0 {
		return b
	}
	b = binary.AppendUvarint(b, uint64(field)<<3|wireVarint)
	return binary.AppendUvarint(b, v)
}

func appendBool(b []byte, field int, v bool) []byte {
	if !v {
		return b
	}
	return appendVarint(b, field, 1)
}

func appendEntry[T string | []byte](b []byte, field int, v T) []byte {
	b = binary.AppendUvarint(b, uint64(field)<<3|wireBytes)
	b = binary.AppendUvarint(b, uint64(len(v)))
	return append(b, v...)
}

func appendBytes(b []byte, field int, v []byte) []byte {
	if len(v) == 0 {
		return b
	}
	return appendEntry(b, field, v)
}

func appendString(b []byte, field int, v string) []byte {
	if v == "" {
		return b
	}
	return appendEntry(b, field, v)
}

// appendList keeps empty entries.
func appendList(b []byte, field int, v [][]byte) []byte {
	for _, e := range v {
		b = appendEntry(b, field, e)
	}
	return b
}

// sizeVarint is the length of v as a varint.
func sizeVarint(v uint64) int { return (bits.Len64(v|1) + 6) / 7 }

// decoder walks over a message's fields.
type decoder struct {
	rest    []byte
	field   uint64
	wire    uint64
	num     uint64 // of a varint
	val     []byte // of a length-delimited field
	entries int
	bad     bool
}

// next goes to the next field. Values of fixed width are in no message of ours and skipped.
func (d *decoder) next() bool {
	for !d.bad && len(d.rest) > 0 {
		key := d.varint()
		d.field, d.wire = key>>3, key&7
		d.bad = d.bad || d.field == 0 || d.field >= 1<<29
		switch d.wire {
		case wireVarint:
			d.num = d.varint()
		case wireBytes:
			d.val = d.take(d.varint())
		case wireFixed64:
			d.take(8)
			continue
		case wireFixed32:
			d.take(4)
			continue
		default:
			d.bad = true
		}
		return !d.bad
	}
	return false
}

func (d *decoder) varint() uint64 {
	v, n := binary.Uvarint(d.rest)
	if n <= 0 {
		d.bad = true
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

func (d *decoder) take(n uint64) []byte {
	if d.bad || n > uint64(len(d.rest)) {
		d.bad = true
		return nil
	}
	v := d.rest[:n:n]
	d.rest = d.rest[n:]
	return v
}

func (d *decoder) bytes() []byte {
	d.bad = d.bad || d.wire != wireBytes
	return d.val
}

func (d *decoder) text() string { return string(d.bytes()) }

func (d *decoder) list(l [][]byte) [][]byte {
	if d.entries++; d.entries > maxListEntries {
		d.bad = true
	}
	return append(l, d.bytes())
}

func (d *decoder) bool() bool { return d.uint(64) != 0 }

// uint is a value of so many bits.
func (d *decoder) uint(width int) uint64 {
	d.bad = d.bad || d.wire != wireVarint || bits.Len64(d.num) > width
	return d.num
}

func (d *decoder) int(width int) int64 {
	v := int64(d.uint(64))
	d.bad = d.bad || v<<(64-width)>>(64-width) != v
	return v
}

func (d *decoder) done(name string) error {
	if d.bad {
		return fmt.Errorf("%w: %s", ErrMalformed, name)
	}
	return nil
}

// The payload of OPEN.
const (
	openMethod    = 1
	openSandbox   = 2
	openProject   = 3
	openRequestID = 4
	openBody      = 5
	openFDs       = 6
	openKey       = 7
)

// size is an upper bound of what appendTo appends.
func (o *Open) size() int {
	n := 2 // descriptors
	for _, l := range [...]int{len(o.Method), len(o.Sandbox), len(o.Project), len(o.RequestID), len(o.Key), len(o.Body)} {
		n += 1 + sizeVarint(uint64(l)) + l
	}
	return n
}

func (o *Open) appendTo(b []byte) []byte {
	b = appendString(b, openMethod, o.Method)
	b = appendString(b, openSandbox, o.Sandbox)
	b = appendString(b, openProject, o.Project)
	b = appendString(b, openRequestID, o.RequestID)
	b = appendString(b, openKey, o.Key)
	b = appendVarint(b, openFDs, uint64(len(o.FDs)))
	return appendBytes(b, openBody, o.Body)
}

// unmarshal returns the number of descriptors that came along. Body refers to b.
func (o *Open) unmarshal(b []byte) (fds int, err error) {
	d := decoder{rest: b}
	for d.next() {
		switch d.field {
		case openMethod:
			o.Method = d.text()
		case openSandbox:
			o.Sandbox = d.text()
		case openProject:
			o.Project = d.text()
		case openRequestID:
			o.RequestID = d.text()
		case openBody:
			o.Body = d.bytes()
		case openFDs:
			fds = int(d.uint(8))
		case openKey:
			o.Key = d.text()
		}
	}
	d.bad = d.bad || o.Method == ""
	return fds, d.done("Open")
}

const maxErrorText = 4 << 10 // of each text in a RESET

// appendError encodes e as the payload of RESET.
func appendError(b []byte, e *api.Error) []byte {
	b = appendString(b, 1, cut(string(e.Code), 64))
	b = appendString(b, 2, cut(e.Detail, maxErrorText))
	b = appendString(b, 3, cut(e.Field, maxErrorText/4))
	b = appendString(b, 4, cut(e.Hint, maxErrorText))
	b = appendVarint(b, 5, uint64(max(0, e.RetryMS)))
	if e.ExitCode != nil {
		b = appendVarint(b, 6, uint64(int64(*e.ExitCode))+1) // 0 is a code
	}
	return appendString(b, 7, cut(e.RequestID, 256))
}

func cut(s string, n int) string {
	if len(s) > n {
		return s[:n]
	}
	return s
}

// parseReset decodes the payload of RESET: an *api.Error, or [ErrReset] where there is none.
func parseReset(b []byte) error {
	var e api.Error
	d := decoder{rest: b}
	for d.next() {
		switch d.field {
		case 1:
			e.Code = api.Code(d.text())
		case 2:
			e.Detail = d.text()
		case 3:
			e.Field = d.text()
		case 4:
			e.Hint = d.text()
		case 5:
			e.RetryMS = d.int(64)
		case 6:
			e.ExitCode = new(int(d.int(64) - 1))
		case 7:
			e.RequestID = d.text()
		}
	}
	if d.done("Error") != nil || e.Code == "" {
		return ErrReset
	}
	return e.Complete()
}
