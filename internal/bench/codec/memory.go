package codec

import (
	"io"
	"sync"

	"github.com/dsec-io/dsec/internal/aether"
)

// source is a transport that says what is on a tape: the client's greeting once, and then as many frames of data as were
// asked for and as the connection gave credit for.
type source struct {
	tape *Tape

	// mu guards what follows.
	mu     sync.Mutex
	more   *sync.Cond
	head   []byte // of the greeting, what is still to say
	rest   []byte // of the frame being read
	asked  int    // frames
	credit int64
	closed bool
	in     []byte // of what the connection says, the part that isn't a whole frame
}

func newSource(t *Tape, credit int64) *source {
	s := &source{tape: t, head: t.client, credit: credit}
	s.more = sync.NewCond(&s.mu)
	return s
}

// ask lets n more frames come.
func (s *source) ask(n int) {
	s.mu.Lock()
	s.asked += n
	s.mu.Unlock()
	s.more.Broadcast()
}

// Read implements [aether.Transport]. As from a socket, much is read at once.
func (s *source) Read(p []byte) (n int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.head) == 0 && len(s.rest) == 0 && (s.asked == 0 || s.credit <= 0) && !s.closed {
		s.more.Wait()
	}
	if s.closed {
		return 0, io.EOF
	}
	for n < len(p) {
		switch {
		case len(s.head) > 0:
			m := copy(p[n:], s.head)
			n, s.head = n+m, s.head[m:]
		case len(s.rest) > 0:
			m := copy(p[n:], s.rest)
			n, s.rest = n+m, s.rest[m:]
		case s.asked > 0 && s.credit > 0:
			s.asked--
			s.credit -= int64(s.tape.size) + frameCost
			s.rest = s.tape.data
		default:
			return n, nil
		}
	}
	return n, nil
}

// Write implements [aether.Transport].
func (s *source) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.in = append(s.in, p...)
	for {
		f, ok := parse(s.in)
		if !ok || len(s.in) < f.head+f.payload {
			break
		}
		if f.channel == byte(aether.Control) && f.typ == ctlWindow {
			at := f.head + 4
			s.credit += int64(s.in[at]) | int64(s.in[at+1])<<8 | int64(s.in[at+2])<<16 | int64(s.in[at+3])<<24
			s.more.Broadcast()
		}
		s.in = append(s.in[:0], s.in[f.head+f.payload:]...)
	}
	return len(p), nil
}

// WriteBuffers makes the connection write as it does to a Unix socket.
func (s *source) WriteBuffers(bufs [][]byte, _ []int) (n int, err error) {
	for _, b := range bufs {
		m, _ := s.Write(b) // takes everything
		n += m
	}
	return n, nil
}

// TryWriteBuffers is the same.
func (s *source) TryWriteBuffers(bufs [][]byte, fds []int) (int, error) {
	return s.WriteBuffers(bufs, fds)
}

// Close implements [aether.Transport].
func (s *source) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.more.Broadcast()
	return nil
}

// sink is a transport that greets as the server on a tape did, counts frames of data, gives credit for each, and keeps
// none.
type sink struct {
	tape *Tape

	// mu guards what follows.
	mu     sync.Mutex
	more   *sync.Cond
	out    []byte // what is still to say
	skip   int    // bytes of a payload that are still to come
	head   []byte // of a header that isn't whole
	frames int
	owed   uint32
	closed bool
}

func newSink(t *Tape) *sink {
	s := &sink{tape: t, out: append([]byte(nil), t.server...)}
	s.more = sync.NewCond(&s.mu)
	return s
}

// wait waits until n frames have come in all.
func (s *sink) wait(n int) {
	s.mu.Lock()
	for s.frames < n && !s.closed {
		s.more.Wait()
	}
	s.mu.Unlock()
}

// Read implements [aether.Transport].
func (s *sink) Read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.out) == 0 && !s.closed {
		s.more.Wait()
	}
	if s.closed {
		return 0, io.EOF
	}
	n := copy(p, s.out)
	s.out = append(s.out[:0], s.out[n:]...)
	return n, nil
}

// Write implements [aether.Transport].
func (s *sink) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.takeLocked(p)
	return len(p), nil
}

// takeLocked walks over frames without touching their payload.
func (s *sink) takeLocked(p []byte) {
	for len(p) > 0 {
		if s.skip > 0 {
			n := min(s.skip, len(p))
			s.skip, p = s.skip-n, p[n:]
			continue
		}
		have := len(s.head)
		s.head = append(s.head, p[:min(headerSize+traceSize-have, len(p))]...)
		f, ok := parse(s.head)
		if !ok {
			return
		}
		p, s.head = p[f.head-have:], s.head[:0]
		s.skip = f.payload
		if f.channel == byte(aether.Stdin) {
			s.countLocked(f)
		}
	}
}

// countLocked gives credit as a receiver does: not for every frame.
func (s *sink) countLocked(f frame) {
	const often = 128 << 10
	s.frames++
	if s.owed += uint32(f.payload) + frameCost; s.owed >= often {
		s.out = window(s.out, f.stream, aether.Stdin, s.owed)
		s.owed = 0
	}
	s.more.Broadcast()
}

// WriteBuffers makes the connection write as it does to a Unix socket.
func (s *sink) WriteBuffers(bufs [][]byte, _ []int) (n int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range bufs {
		s.takeLocked(b)
		n += len(b)
	}
	return n, nil
}

// TryWriteBuffers is the same.
func (s *sink) TryWriteBuffers(bufs [][]byte, fds []int) (int, error) {
	return s.WriteBuffers(bufs, fds)
}

// Close implements [aether.Transport].
func (s *sink) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.more.Broadcast()
	return nil
}
