package unixfd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

const maxFDs = 128 // below the kernel's SCM_MAX_FD of 253

// Conn is one connected stream socket. It is an aether.Transport.
type Conn struct {
	file *os.File // gives the poller, and keeps the number from being reused while in use
	raw  syscall.RawConn
	opts Options
	rd   call
	wr   call

	// mu guards the descriptors received and not taken.
	mu     sync.Mutex
	fds    []int
	closed bool
}

// call is one sendmsg or recvmsg with its memory, reused so that the hot path allocates nothing.
type call struct {
	hdr   unix.Msghdr
	iov   [maxVecs]unix.Iovec
	oob   []byte
	try   bool // don't wait
	n     int
	errno syscall.Errno
	step  func(fd uintptr) bool
}

const maxVecs = 256

// New takes over fd, a connected Unix stream socket.
func New(fd int, o Options) (*Conn, error) {
	if o.MaxFDs < 0 || o.MaxFDs > maxFDs {
		unix.Close(fd)
		return nil, fmt.Errorf("unix socket with %d descriptors: %w", o.MaxFDs, ErrTooManyFDs)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("unix socket: %w", err)
	}
	unix.CloseOnExec(fd)
	c := &Conn{file: os.NewFile(uintptr(fd), "unix socket"), opts: o}
	raw, err := c.file.SyscallConn()
	if err != nil {
		c.file.Close()
		return nil, fmt.Errorf("unix socket: %w", err)
	}
	c.raw = raw
	if o.MaxFDs > 0 {
		c.rd.oob = make([]byte, unix.CmsgSpace(maxFDs*4))
	}
	c.rd.step = c.rd.stepper(unix.SYS_RECVMSG, unix.MSG_CMSG_CLOEXEC)
	c.wr.step = c.wr.stepper(unix.SYS_SENDMSG, unix.MSG_NOSIGNAL)
	return c, nil
}

// Pair returns two connected ends.
func Pair(a, b Options) (*Conn, *Conn, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	ca, err := New(fds[0], a)
	if err != nil {
		unix.Close(fds[1])
		return nil, nil, err
	}
	cb, err := New(fds[1], b)
	if err != nil {
		return nil, nil, errors.Join(err, ca.Close())
	}
	return ca, cb, nil
}

// stepper makes the function that the poller calls; it returns false to wait.
func (k *call) stepper(nr, flags uintptr) func(uintptr) bool {
	return func(fd uintptr) bool {
		for {
			n, _, errno := unix.Syscall(nr, fd, uintptr(unsafe.Pointer(&k.hdr)), flags)
			if errno == unix.EINTR {
				continue
			}
			k.n, k.errno = int(n), errno
			return errno != unix.EAGAIN || k.try
		}
	}
}

// load points the call at bufs and tells how many bytes that is.
func (k *call) load(bufs [][]byte, oob []byte) int {
	k.hdr = unix.Msghdr{}
	n, total := 0, 0
	for _, b := range bufs {
		if len(b) == 0 {
			continue
		}
		if n == maxVecs {
			break
		}
		k.iov[n].Base = &b[0]
		k.iov[n].SetLen(len(b))
		n++
		total += len(b)
	}
	k.hdr.Iov = &k.iov[0]
	k.hdr.SetIovlen(n)
	if len(oob) > 0 {
		k.hdr.Control = &oob[0]
		k.hdr.SetControllen(len(oob))
	}
	return total
}

// unload lets go of the buffers.
func (k *call) unload() {
	clear(k.iov[:k.hdr.Iovlen])
	k.hdr = unix.Msghdr{}
}

// Read reads bytes; descriptors that come with them wait for TakeFDs.
func (c *Conn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	k := &c.rd
	k.iov[0].Base = &p[0]
	k.iov[0].SetLen(len(p))
	k.hdr = unix.Msghdr{Iov: &k.iov[0]}
	k.hdr.SetIovlen(1)
	if len(k.oob) > 0 {
		k.hdr.Control = &k.oob[0]
		k.hdr.SetControllen(len(k.oob))
	}
	err := c.raw.Read(k.step)
	got, truncated := int(k.hdr.Controllen), k.hdr.Flags&unix.MSG_CTRUNC != 0
	k.unload()
	switch {
	case err != nil:
		return 0, c.ended(err)
	case k.errno != 0:
		return 0, fmt.Errorf("unix socket: recvmsg: %w", k.errno)
	}
	if len(k.oob) > 0 && (got > 0 || truncated) {
		if err := c.received(k.oob[:got], truncated); err != nil {
			return 0, err
		}
	}
	if k.n == 0 {
		return 0, io.EOF
	}
	return k.n, nil
}

// ended is the poller's error, known by its public name.
func (c *Conn) ended(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		err = os.ErrClosed
	}
	return fmt.Errorf("unix socket: %w", err)
}

// received keeps the descriptors of one message.
func (c *Conn) received(oob []byte, truncated bool) error {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return fmt.Errorf("unix socket: control message: %w", err)
	}
	var fds []int
	for i := range msgs {
		if got, err := unix.ParseUnixRights(&msgs[i]); err == nil {
			fds = append(fds, got...)
		}
	}
	low := -1
	kept := fds[:0]
	for _, fd := range fds {
		if fd < c.opts.MinFD {
			low = fd
		} else {
			kept = append(kept, fd)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case low >= 0:
		err = fmt.Errorf("%w: %d, lowest allowed is %d", ErrLowFD, low, c.opts.MinFD)
	case c.closed:
		err = os.ErrClosed
	case truncated || len(c.fds)+len(kept) > c.opts.MaxFDs:
		err = fmt.Errorf("%w: %d", ErrTooManyFDs, c.opts.MaxFDs)
	}
	if err != nil {
		c.CloseFDs(kept)
		return err
	}
	c.fds = append(c.fds, kept...)
	return nil
}

// Write writes all of p.
func (c *Conn) Write(p []byte) (int, error) { return c.WriteBuffers([][]byte{p}, nil) }

// WriteBuffers writes all of bufs; fds go with the first byte.
func (c *Conn) WriteBuffers(bufs [][]byte, fds []int) (int, error) {
	total := 0
	for _, b := range bufs {
		total += len(b)
	}
	done := 0
	for done < total {
		n, err := c.send(bufs, done, fds, false)
		if err != nil {
			return done, err
		}
		done += n
		fds = nil
	}
	return done, nil
}

// TryWriteBuffers writes what can be written without waiting, which may be nothing. fds have gone when n > 0.
func (c *Conn) TryWriteBuffers(bufs [][]byte, fds []int) (int, error) {
	return c.send(bufs, 0, fds, true)
}

// send makes one sendmsg of what follows the first skip bytes.
func (c *Conn) send(bufs [][]byte, skip int, fds []int, try bool) (int, error) {
	for len(bufs) > 0 && skip >= len(bufs[0]) {
		skip -= len(bufs[0])
		bufs = bufs[1:]
	}
	if len(bufs) == 0 {
		return 0, nil
	}
	k := &c.wr
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	k.try = try
	k.load(bufs, oob)
	if skip > 0 {
		k.iov[0].Base = &bufs[0][skip]
		k.iov[0].SetLen(len(bufs[0]) - skip)
	}
	err := c.raw.Write(k.step)
	k.unload()
	switch {
	case err != nil:
		return 0, c.ended(err)
	case k.errno == unix.EAGAIN:
		return 0, nil
	case k.errno != 0:
		return 0, fmt.Errorf("unix socket: sendmsg: %w", k.errno)
	}
	return k.n, nil
}

// DupFDs duplicates descriptors for sending later.
func (c *Conn) DupFDs(fds []int) ([]int, error) {
	dups := make([]int, 0, len(fds))
	for _, fd := range fds {
		dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, c.opts.MinFD)
		if err != nil {
			c.CloseFDs(dups)
			return nil, fmt.Errorf("duplicate descriptor %d: %w", fd, err)
		}
		dups = append(dups, dup)
	}
	return dups, nil
}

// TakeFDs hands over the next n received descriptors.
func (c *Conn) TakeFDs(n int) ([]int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n < 0 || n > len(c.fds) {
		return nil, fmt.Errorf("%w: %d announced, %d here", ErrNoFDs, n, len(c.fds))
	}
	fds := append([]int(nil), c.fds[:n]...)
	c.fds = append(c.fds[:0], c.fds[n:]...)
	return fds, nil
}

// CloseFDs closes descriptors.
func (c *Conn) CloseFDs(fds []int) {
	for _, fd := range fds {
		unix.Close(fd) // sockets, pidfds, folders: no error to learn from
	}
}

// Close closes the socket and every descriptor not taken. The peer sees the end at once.
func (c *Conn) Close() error {
	c.mu.Lock()
	fds, again := c.fds, c.closed
	c.fds, c.closed = nil, true
	c.mu.Unlock()
	c.CloseFDs(fds)
	if again {
		return nil
	}
	return c.file.Close()
}

// PeerUID is the user of the process that made the other end.
func (c *Conn) PeerUID() (int, error) {
	uid, inner := -1, error(nil)
	err := c.raw.Control(func(fd uintptr) {
		cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		if inner = err; err == nil {
			uid = int(cred.Uid)
		}
	})
	if err = errors.Join(err, inner); err != nil {
		return -1, fmt.Errorf("unix socket: peer: %w", err)
	}
	return uid, nil
}

// Dial connects to the socket at path.
func Dial(ctx context.Context, path string, o Options) (*Conn, error) {
	if err := checkPath(path); err != nil {
		return nil, err
	}
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	// A Unix connect is done at once or waits for room in the listener's backlog; the send time-out bounds that.
	tv := unix.Timeval{Sec: dialSeconds}
	if err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &tv); err == nil {
		err = ignoreEINTR(func() error { return unix.Connect(fd, &unix.SockaddrUnix{Name: path}) })
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("connect to %s: %w", path, err)
	}
	return New(fd, o)
}

const dialSeconds = 5

func ignoreEINTR(f func() error) error {
	for {
		if err := f(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func checkPath(path string) error {
	if max := len(unix.RawSockaddrUnix{}.Path) - 1; path == "" || len(path) > max {
		return fmt.Errorf("%w: %q has %d bytes, limit %d", ErrPathLength, path, len(path), max)
	}
	return nil
}
