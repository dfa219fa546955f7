package ports

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/chronus/account"
	"github.com/dsec-io/dsec/internal/chronus/launch"
	"github.com/dsec-io/dsec/internal/spawn"
)

// dialTime is how long a port may take to accept. A full backlog is the only reason for it to take any time.
const dialTime = 10 * time.Second

// addresses are where a port is looked for, in order.
func addresses(port uint16) [2]netip.AddrPort {
	return [...]netip.AddrPort{
		netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port),
		netip.AddrPortFrom(netip.IPv6Loopback(), port),
	}
}

// dial connects c to its port.
func (c *conn) dial() (netip.AddrPort, error) {
	who, err := c.place.Account("")
	if err != nil {
		return netip.AddrPort{}, err
	}
	deadline := time.Now().Add(dialTime)
	for _, addr := range addresses(c.port) {
		fd, err := c.server.socket(c.place, who, addr)
		if err == nil {
			err = c.connect(fd, deadline)
		}
		if err == nil {
			return addr, nil
		}
		if !elsewhere(err) {
			return addr, c.dialError(err)
		}
	}
	return netip.AddrPort{}, c.dialError(unix.ECONNREFUSED)
}

// elsewhere tells whether the port may be open at the next address.
func elsewhere(err error) bool {
	for _, no := range []unix.Errno{
		unix.ECONNREFUSED, unix.EADDRNOTAVAIL, unix.EAFNOSUPPORT, unix.ENETUNREACH, unix.EHOSTUNREACH, unix.ENETDOWN, unix.EACCES,
	} {
		if errors.Is(err, no) {
			return true
		}
	}
	return false
}

func (c *conn) dialError(err error) error {
	if e, ok := errors.AsType[*api.Error](err); ok {
		return e
	}
	switch {
	case c.cutBy() != nil:
		return c.cutBy()
	case errors.Is(err, os.ErrDeadlineExceeded):
		if perr := c.place.Visit(func(launch.Box) error { return nil }); perr != nil {
			return perr // a program that stands still doesn't accept
		}
		return api.FieldError(api.CodeTimeout, "port", "the program that listens has to accept its connections", "port %d didn't accept within %v", c.port, dialTime)
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOMEM), errors.Is(err, unix.ENOBUFS):
		e := api.Errorf(api.CodeNoCapacity, "dial port %d: %v", c.port, err)
		e.RetryMS = 500
		return e
	}
	return api.FieldError(api.CodePortUnreachable, "port", fmt.Sprintf("does something listen on 127.0.0.1:%d?", c.port), "nothing in the sandbox listens on port %d", c.port)
}

// socket makes a socket in the sandbox's network that is about to be connected.
func (s *Server) socket(p Place, who *account.Account, to netip.AddrPort) (int, error) {
	h := s.scripts.Get().(*spawn.Script) // the pool holds nothing else
	defer s.scripts.Put(h)
	fd, made, began := -1, unix.Errno(0), unix.Errno(0)
	err := p.Visit(func(b launch.Box) error {
		launch.EnterNetwork(h, b, who)
		family, addr := sockaddr(to)
		const kind = unix.SOCK_STREAM | unix.SOCK_NONBLOCK | unix.SOCK_CLOEXEC
		open := h.Call(unix.SYS_SOCKET, uintptr(family), kind, 0).Ignore()
		connect := h.Call(unix.SYS_CONNECT, 0, h.Bytes(addr), uintptr(len(addr))).Ignore()
		open.SaveTo(connect, 0)
		h.Exit()
		err := s.launcher.Visit(b, h)
		fd, made, began = launch.Opened(open), open.Errno(), connect.Errno()
		return err
	})
	switch {
	case err != nil:
	case made != 0:
		err = made
	case began != 0 && !errors.Is(began, unix.EINPROGRESS):
		err = began
	case fd < 0:
		err = unix.EMFILE
	default:
		return fd, nil
	}
	if fd >= 0 {
		_ = unix.Close(fd)
	}
	return -1, err
}

// sockaddr is an address as connect(2) takes it.
func sockaddr(to netip.AddrPort) (family int, raw []byte) {
	if a := to.Addr(); a.Is4() {
		raw = binary.NativeEndian.AppendUint16(nil, unix.AF_INET)
		raw = binary.BigEndian.AppendUint16(raw, to.Port())
		raw = append(raw, a.AsSlice()...)
		return unix.AF_INET, append(raw, make([]byte, 8)...)
	}
	raw = binary.NativeEndian.AppendUint16(nil, unix.AF_INET6)
	raw = binary.BigEndian.AppendUint16(raw, to.Port())
	raw = append(raw, 0, 0, 0, 0) // flow
	raw = append(raw, to.Addr().AsSlice()...)
	return unix.AF_INET6, append(raw, 0, 0, 0, 0) // scope
}

// connect waits for the connection to stand, and makes it c's.
func (c *conn) connect(fd int, deadline time.Time) error {
	f := os.NewFile(uintptr(fd), "port")
	err := c.hold(f, deadline)
	if err == nil {
		err = connected(f)
	}
	if err == nil {
		err = c.hold(f, time.Time{})
	}
	if err != nil {
		c.letGo()
		_ = f.Close()
	}
	return err
}

// connected waits until a socket's connect has ended, and returns its error.
func connected(f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var result error
	err = raw.Write(func(fd uintptr) bool {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		if n, err := unix.Poll(poll, 0); n == 0 || err != nil {
			return false
		}
		var no int
		if no, result = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR); result != nil {
			return true
		}
		if no != 0 {
			result = unix.Errno(no)
			return true
		}
		if ours(int(fd)) {
			result = unix.ECONNREFUSED
			return true
		}
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NODELAY, 1) // slower without
		return true
	})
	return errors.Join(err, result)
}

// ours tells whether a socket is connected to itself: TCP allows that, and where nobody listens it happens when the kernel
// picks the very port for our end that is dialled.
func ours(fd int) bool {
	local, err := unix.Getsockname(fd)
	if err != nil {
		return false
	}
	peer, err := unix.Getpeername(fd)
	if err != nil {
		return false
	}
	switch l := local.(type) {
	case *unix.SockaddrInet4:
		p, ok := peer.(*unix.SockaddrInet4)
		return ok && p.Port == l.Port && p.Addr == l.Addr
	case *unix.SockaddrInet6:
		p, ok := peer.(*unix.SockaddrInet6)
		return ok && p.Port == l.Port && p.Addr == l.Addr
	}
	return false
}
