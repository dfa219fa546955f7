package keeper

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"
)

// protocolVersion is what HELLO carries; a keeper serves exactly one.
const protocolVersion = 1

// Limits of one message. A SEQPACKET message arrives whole or not at all, so these bound every buffer.
const (
	maxMessage = 64 << 10
	maxFDs     = 16
	headerSize = 1 + 4 + 3*8 + 2
)

type kind byte

const (
	kindHello  kind = iota + 1 // nums: version, keeper pid (in the answer)
	kindStart                  // name, nums: uid; flags: which descriptors ride along; blob: argv, each NUL-terminated
	kindAdopt                  // as start, with the shard's pidfd and its store socket before the others
	kindStop                   // name
	kindList                   // answered by one kindShard each, then kindEnd
	kindWatch                  // from now on this connection gets kindEvent only
	kindOK                     // nums: pid, start time
	kindFail                   // blob: why
	kindShard                  // name, nums: pid, start time, uid
	kindEvent                  // name, nums: event, pid, start time
	kindPut                    // name: key; flags: 1 + index of the descriptor to wait for; blob; descriptors
	kindDel                    // name: key
	kindStatus                 // name: key; nums: raw wait status
	kindItem                   // as put, keeper to shard
	kindEnd                    // the last of a list
)

// message is every message of both protocols; a kind uses the fields it needs.
type message struct {
	kind  kind
	flags uint32
	nums  [3]int64
	name  string
	blob  []byte
	fds   []int
}

func (m *message) appendTo(b []byte) ([]byte, error) {
	if n := headerSize + len(m.name) + len(m.blob); n > maxMessage || len(m.name) > 1<<12 {
		return nil, fmt.Errorf("message of %d bytes is over %d", n, maxMessage)
	}
	if len(m.fds) > maxFDs {
		return nil, fmt.Errorf("message with %d descriptors is over %d", len(m.fds), maxFDs)
	}
	b = append(b, byte(m.kind))
	b = binary.LittleEndian.AppendUint32(b, m.flags)
	for _, n := range m.nums {
		b = binary.LittleEndian.AppendUint64(b, uint64(n))
	}
	b = binary.LittleEndian.AppendUint16(b, uint16(len(m.name)))
	b = append(b, m.name...)
	return append(b, m.blob...), nil
}

// parse reads m from b and copies what it keeps.
func (m *message) parse(b []byte) error {
	if len(b) < headerSize {
		return fmt.Errorf("message of %d bytes is shorter than its header", len(b))
	}
	m.kind = kind(b[0])
	m.flags = binary.LittleEndian.Uint32(b[1:])
	for i := range m.nums {
		m.nums[i] = int64(binary.LittleEndian.Uint64(b[5+8*i:]))
	}
	n := int(binary.LittleEndian.Uint16(b[29:]))
	if headerSize+n > len(b) {
		return fmt.Errorf("name of %d bytes in a message of %d", n, len(b))
	}
	m.name = string(b[headerSize : headerSize+n])
	m.blob = append([]byte(nil), b[headerSize+n:]...)
	return nil
}

// socket is one end of a SEQPACKET connection with its buffers. Not safe for concurrent use in one direction.
type socket struct {
	fd   int
	out  []byte
	in   []byte
	oob  []byte
	most int // descriptors below this number are refused; 0: any
}

func newSocket(fd int) *socket { return &socket{fd: fd} }

// send sends one message; with MSG_DONTWAIT in flags EAGAIN comes back as it is.
func (s *socket) send(m *message, flags int) error {
	b, err := m.appendTo(s.out[:0])
	if err != nil {
		return err
	}
	s.out = b
	var oob []byte
	if len(m.fds) > 0 {
		oob = unix.UnixRights(m.fds...)
	}
	for {
		err = unix.Sendmsg(s.fd, b, oob, nil, flags|unix.MSG_NOSIGNAL)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// recv receives one message; io.EOF when the peer has closed. Descriptors of a message that can't be used are closed.
func (s *socket) recv(flags int) (message, error) {
	if s.in == nil {
		s.in = make([]byte, maxMessage)
		s.oob = make([]byte, unix.CmsgSpace(4*maxFDs))
	}
	var n, oobn, got int
	var err error
	for {
		n, oobn, got, _, err = unix.Recvmsg(s.fd, s.in, s.oob, flags|unix.MSG_CMSG_CLOEXEC)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return message{}, err
	}
	fds, err := rights(s.oob[:oobn])
	if err != nil {
		return message{}, err
	}
	if n == 0 && len(fds) == 0 {
		return message{}, io.EOF
	}
	m := message{fds: fds}
	if got&(unix.MSG_CTRUNC|unix.MSG_TRUNC) != 0 {
		closeAll(fds)
		return message{}, errTruncated
	}
	for _, fd := range fds {
		if fd < s.most {
			closeAll(fds)
			return message{}, fmt.Errorf("received descriptor %d is below %d", fd, s.most)
		}
	}
	if err := m.parse(s.in[:n]); err != nil {
		closeAll(fds)
		return message{}, err
	}
	return m, nil
}

// errTruncated means that descriptors or bytes of a message didn't fit: this process is out of descriptors.
var errTruncated = errors.New("message arrived without all of its descriptors")

func rights(oob []byte) ([]int, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("parse control message: %w", err)
	}
	var fds []int
	for i := range msgs {
		got, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			continue // not SCM_RIGHTS: nothing to own
		}
		fds = append(fds, got...)
	}
	return fds, nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}
