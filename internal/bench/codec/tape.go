package codec

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"sync"

	"github.com/dsec-io/dsec/internal/aether"
)

// The part of the wire format that the far end of a line has to know; docs/aether.md tells all of it.
const (
	headerSize = 24
	traceSize  = 16
	flagTrace  = 1 << 2
	ctlWindow  = 3
	frameCost  = 256 // in credit, beside the payload
)

// frame is a header as far as lines need it.
type frame struct {
	head    int // its length
	channel byte
	typ     byte
	stream  uint32
	payload int
}

// parse reads a header; ok is false while b is too short for one.
func parse(b []byte) (f frame, ok bool) {
	if len(b) < headerSize {
		return f, false
	}
	f = frame{
		head: headerSize, channel: b[4], typ: b[5],
		stream: binary.LittleEndian.Uint32(b[8:]), payload: int(binary.LittleEndian.Uint32(b[12:])),
	}
	if b[3]&flagTrace != 0 {
		f.head += traceSize
	}
	return f, len(b) >= f.head
}

// window appends a frame that gives credit.
func window(b []byte, stream uint32, ch aether.Channel, n uint32) []byte {
	table := crc32.MakeTable(crc32.Castagnoli)
	payload := binary.LittleEndian.AppendUint32([]byte{byte(ch), 0, 0, 0}, n)
	at := len(b)
	b = append(b, 0xAE, 0x7E, aether.Version, 0, byte(aether.Control), ctlWindow, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, stream)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(payload)))
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(payload, table))
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[at:], table))
	return append(b, payload...)
}

// Tape is what a client and a server said to each other until the first frame of data had arrived.
type Tape struct {
	size    int
	client  []byte // HELLO and the opening of a stream
	data    []byte // a frame of data on it
	server  []byte // HELLO
	stream  uint32
	options aether.Options
}

// recorder keeps what goes through it.
type recorder struct {
	net.Conn
	mu   sync.Mutex
	said []byte // guarded by mu
}

func (r *recorder) Write(p []byte) (int, error) {
	r.mu.Lock()
	r.said = append(r.said, p...)
	r.mu.Unlock()
	return r.Conn.Write(p)
}

// Record has a client send a frame of size bytes, at most [aether.MaxDataAether], to a server.
func Record(ctx context.Context, size int) (_ *Tape, err error) {
	t := &Tape{size: size, options: aether.Options{Name: "bench", MaxData: aether.MaxDataAether}}
	a, b := net.Pipe()
	near, far := &recorder{Conn: a}, &recorder{Conn: b}
	served := make(chan struct{}) // closed when all is over
	got := make(chan int, 1)      // the size of the one frame
	go func() {
		defer close(served)
		server, err := aether.Server(far, t.options)
		if err == nil { // else the client hears it
			_ = server.Serve(ctx, func(ctx context.Context, s *aether.Stream) {
				f, err := s.Recv(ctx)
				got <- len(f.Data)
				if err == nil {
					f.Release()
				}
				<-s.Done()
			})
		}
	}()
	client, err := aether.Client(near, t.options)
	if err != nil {
		<-served
		return nil, err
	}
	s, err := client.Open(ctx, aether.Open{Method: "bench"})
	if err == nil {
		err = s.Write(ctx, aether.Stdin, pattern(size))
	}
	if err == nil {
		select {
		case n := <-got:
			if n != size {
				err = fmt.Errorf("%d bytes of %d arrived in the first frame", n, size)
			}
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	near.mu.Lock()
	far.mu.Lock()
	if err == nil {
		err = t.cut(near.said, far.said)
	}
	far.mu.Unlock()
	near.mu.Unlock()
	_ = client.Close() // what there is to know is on the tape
	<-served
	return t, err
}

// cut finds the frames in what was said.
func (t *Tape) cut(client, server []byte) error {
	hello, ok := parse(server)
	if !ok {
		return errors.New("the server said no HELLO")
	}
	t.server = server[:hello.head+hello.payload]
	for at := 0; at < len(client); {
		f, ok := parse(client[at:])
		end := at + f.head + f.payload
		if !ok || end > len(client) {
			break
		}
		if f.channel == byte(aether.Stdin) {
			t.client, t.data, t.stream = client[:at], client[at:end], f.stream
			return nil
		}
		at = end
	}
	return fmt.Errorf("no frame of data: %w", io.ErrUnexpectedEOF)
}

// pattern is data that isn't all the same.
func pattern(n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(i*7 + i>>8)
	}
	return p
}
