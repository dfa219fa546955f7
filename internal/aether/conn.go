package aether

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dsec-io/dsec/api"
)

// Conn is one connection with its streams.
type Conn struct {
	rw      Transport
	vec     vectorWriter     // rw, where it can; else nil
	fds     descriptorPasser // rw, where it can; else nil
	opts    Options
	peer    Hello
	version uint8
	client  bool
	bufs    pools
	rd      frameReader
	small   [windowPayload]byte // the reader's
	wake    chan struct{}       // for the writer; one token is enough: it looks at everything
	done    chan struct{}
	wg      sync.WaitGroup // reader and writer

	// mu guards everything below, and every stream's sending side.
	mu       sync.Mutex
	dead     error // why the connection ended
	goodbye  []byte
	hangUp   *time.Timer    // ends the connection though the goodbye isn't out
	ready    queue[*Stream] // streams with something to write, in turn
	refusals queue[refusal]
	writer   writer // who writes out; nobody else touches batch
	batch    batch
	table
	intake
}

// table is a connection's streams.
type table struct {
	streams map[uint32]*Stream
	lastID  uint32 // highest id opened here
	peerID  uint32 // highest id opened by the peer
	ours    int    // streams opened here that are in streams
	theirs  int
}

// intake is what the peer opens.
type intake struct {
	serve   func(*Stream) // set by Serve
	backlog []*Stream     // opened by the peer before Serve
	opening map[uint32]*partialOpen
	pending int // bytes in opening and backlog
}

// writer says who writes out.
type writer uint8

const (
	writerNone   writer = iota
	writerCaller        // whoever queued a frame last, in kickLocked
	writerLoop          // the connection's writer
)

const goodbyeTime = time.Second

// refusal is a RESET for a stream that has no state here.
type refusal struct {
	id  uint32
	err *api.Error
}

// Client says HELLO over rw as the side that dialled and returns the connection. It owns rw from here on, also on error.
func Client(rw Transport, o Options) (*Conn, error) { return newConn(rw, o, true) }

// Server says HELLO over rw as the side that accepted and returns the connection. It owns rw from here on, also on error.
func Server(rw Transport, o Options) (*Conn, error) { return newConn(rw, o, false) }

func newConn(rw Transport, o Options, client bool) (*Conn, error) {
	if err := o.setDefaults(); err != nil {
		return nil, errors.Join(err, rw.Close())
	}
	c := &Conn{
		rw: rw, opts: o, client: client, wake: make(chan struct{}, 1), done: make(chan struct{}),
		table: table{streams: make(map[uint32]*Stream)}, intake: intake{opening: make(map[uint32]*partialOpen)},
		rd: frameReader{r: rw}, writer: writerLoop,
	}
	c.vec, _ = rw.(vectorWriter)
	c.fds, _ = rw.(descriptorPasser)
	greeted := make(chan struct{})
	c.wg.Go(func() { c.writeLoop(greeted) })
	var late atomic.Bool
	timer := time.AfterFunc(o.HelloTimeout, func() { late.Store(true); rw.Close() })
	err := c.readHello()
	if err != nil {
		// The peer shall hear what we speak before the end.
		<-greeted
		if late.Load() {
			err = fmt.Errorf("%w within %v", ErrHello, o.HelloTimeout)
		}
		timer.Stop()
		c.fail(err, false)
		c.wg.Wait()
		return nil, err
	}
	if !timer.Stop() {
		c.fail(ErrHello, false)
		c.wg.Wait()
		return nil, fmt.Errorf("%w within %v", ErrHello, o.HelloTimeout)
	}
	c.wg.Go(c.readLoop)
	return c, nil
}

func (c *Conn) readHello() error {
	var h header
	if err := c.rd.next(&h); err != nil {
		if errors.Is(err, io.EOF) {
			err = ErrHungUp
		}
		return fmt.Errorf("%w: %w", ErrHello, err)
	}
	if h.version != helloVersion || h.channel != Control || h.typ != ctlHello || h.flags != 0 || h.stream != 0 || h.length > maxHello {
		return fmt.Errorf("%w: first frame is of version %d, channel %d, type %d, stream %d, %d bytes", ErrHello, h.version, h.channel, h.typ, h.stream, h.length)
	}
	p := make([]byte, h.length)
	if err := c.rd.payload(p); err != nil {
		return fmt.Errorf("%w: %w", ErrHello, err)
	}
	if checksum(p) != h.crc {
		return fmt.Errorf("%w: %w", ErrHello, ErrPayloadCRC)
	}
	if err := c.peer.Unmarshal(p); err != nil {
		return fmt.Errorf("%w: %w", ErrHello, err)
	}
	if err := c.peer.check(); err != nil {
		return err
	}
	low, high := max(c.opts.MinVersion, c.peer.MinVersion), min(c.opts.MaxVersion, c.peer.MaxVersion)
	if low > high {
		return &VersionError{
			OurMin: c.opts.MinVersion, OurMax: c.opts.MaxVersion,
			TheirMin: c.peer.MinVersion, TheirMax: c.peer.MaxVersion, Peer: c.peer.Name,
		}
	}
	c.version = high
	return nil
}

func (c *Conn) helloFrame() []byte {
	hello := c.opts.hello()
	p := hello.AppendTo(nil)
	h := header{version: helloVersion, channel: Control, typ: ctlHello, length: uint32(len(p)), crc: checksum(p)}
	return append(h.appendTo(nil), p...)
}

// Peer is what the other side said in HELLO.
func (c *Conn) Peer() Hello { return c.peer }

// Open starts a stream. It never waits for an answer.
func (c *Conn) Open(ctx context.Context, o Open) (*Stream, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	frames, err := c.openFrames(&o)
	if err != nil {
		return nil, err
	}
	s := newStream(c, o)
	c.mu.Lock()
	switch {
	case c.dead != nil:
		err = c.dead
	case c.ours >= int(c.peer.MaxStreams):
		err = fmt.Errorf("%w: the peer allows %d", ErrTooMany, c.peer.MaxStreams)
	case c.lastID >= maxStreamID-2:
		err = fmt.Errorf("%w: ids are used up", ErrTooMany)
	}
	if err != nil {
		c.mu.Unlock()
		c.dropFrames(frames)
		return nil, err
	}
	switch {
	case c.lastID != 0:
		c.lastID += 2
	case c.client:
		c.lastID = 1
	default:
		c.lastID = 2
	}
	s.id = c.lastID
	c.streams[s.id] = s
	c.ours++
	for _, f := range frames {
		s.out.push(f)
	}
	s.localDone = o.Closed
	c.readyLocked(s)
	c.kickLocked(!o.Hold)
	return s, nil
}

// openFrames encodes o. Its descriptors ride with the last frame.
func (c *Conn) openFrames(o *Open) ([]outFrame, error) {
	if len(o.Body) > MaxMessage {
		return nil, fmt.Errorf("%w: body of %d bytes, limit %d", ErrTooLarge, len(o.Body), MaxMessage)
	}
	var fds []int
	if len(o.FDs) > 0 {
		if c.fds == nil || len(o.FDs) > maxFDs {
			return nil, fmt.Errorf("open %s with %d descriptors: %w", o.Method, len(o.FDs), ErrDescriptors)
		}
		var err error
		if fds, err = c.fds.DupFDs(o.FDs); err != nil {
			return nil, fmt.Errorf("open %s: %w", o.Method, err)
		}
	}
	frames := c.split(o)
	for i := range frames {
		frames[i].channel, frames[i].typ, frames[i].flags = Control, ctlOpen, flagMore
	}
	if o.Trace != [traceSize]byte{} {
		frames[0].flags |= flagTrace
	}
	last := &frames[len(frames)-1]
	last.flags &^= flagMore
	last.fds = fds
	if o.Closed {
		last.flags |= flagEnd
	}
	return frames, nil
}

// split encodes o into payloads.
func (c *Conn) split(o *Open) []outFrame {
	n, limit := o.size(), int(c.peer.MaxData)
	if n <= limit {
		buf := c.bufs.get(n)
		buf.b = o.appendTo(buf.b[:0])
		return []outFrame{{buf: buf, crc: checksum(buf.b)}}
	}
	var frames []outFrame
	for whole := o.appendTo(make([]byte, 0, n)); len(whole) > 0; {
		buf := c.bufs.get(min(len(whole), limit))
		whole = whole[copy(buf.b, whole):]
		frames = append(frames, outFrame{buf: buf, crc: checksum(buf.b)})
	}
	return frames
}

// dropFrames frees what will not be sent.
func (c *Conn) dropFrames(frames []outFrame) {
	for i := range frames {
		frames[i].buf.free()
		if len(frames[i].fds) > 0 {
			c.fds.CloseFDs(frames[i].fds)
		}
	}
}

// Close ends the connection at once and waits for its goroutines. Streams get ErrConnLost.
func (c *Conn) Close() error {
	c.fail(ErrClosed, false)
	c.wg.Wait()
	return nil
}

// Done is closed when the connection has ended.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err is why the connection ended; nil while it lives. It wraps [ErrConnLost].
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dead
}

// fail ends the connection. With tell, the peer hears why, where it still listens.
func (c *Conn) fail(cause error, tell bool) {
	c.mu.Lock()
	if c.dead != nil {
		c.mu.Unlock()
		return
	}
	c.dead = fmt.Errorf("%w: %w", ErrConnLost, cause)
	if tell {
		// The writer sends it and closes, if it isn't stuck.
		c.goodbye = c.goodbyeFrame(cause)
		c.hangUp = time.AfterFunc(goodbyeTime, func() { c.rw.Close() })
		if c.writer == writerNone {
			c.writer = writerLoop
		}
	}
	streams := c.streams
	c.streams, c.opening, c.backlog = nil, nil, nil
	for _, s := range streams {
		s.lostLocked(c.dead)
		s.overLocked()
		s.wakeLocked()
		c.dropOutLocked(s)
	}
	c.mu.Unlock()
	for _, s := range streams {
		s.finish(c.dead)
	}
	if !tell {
		c.rw.Close()
	}
	close(c.done)
	c.wakeWriter()
}

func (c *Conn) goodbyeFrame(cause error) []byte {
	p := appendError(nil, api.Errorf(api.CodeInvalid, "%v", cause))
	h := header{version: c.version, flags: flagReset, channel: Control, typ: ctlEnd, length: uint32(len(p)), crc: checksum(p)}
	return append(h.appendTo(nil), p...)
}

func (c *Conn) wakeWriter() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// removeLocked forgets a stream that is over for both sides.
func (c *Conn) removeLocked(s *Stream) {
	if c.streams[s.id] != s {
		return
	}
	delete(c.streams, s.id)
	if s.accepted {
		c.theirs--
	} else {
		c.ours--
	}
	s.overLocked()
}
