package registry

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/image/reference"
)

const (
	dialTime  = 10 * time.Second
	headTime  = 30 * time.Second // until an answer begins
	maxHeader = 256 << 10
	maxCA     = 256 << 10
)

// nearness says how far inside the operator's network an address is.
type nearness int32

const (
	unknown nearness = iota // not connected yet
	public
	private
	local
	never // nothing of ours is there
)

func near(a netip.Addr) nearness {
	a = a.Unmap()
	if translated.Contains(a) {
		b := a.As16()
		a = netip.AddrFrom4([4]byte(b[12:]))
	}
	switch {
	case slices.Contains(metadata, a):
		return never
	case a.IsLoopback():
		return local
	case a.IsLinkLocalUnicast(), a.IsMulticast(), a.IsUnspecified(), !a.IsValid():
		return never // link-local is where clouds tell machines their secrets
	case a.IsPrivate(), carrierGrade.Contains(a):
		return private
	}
	return public
}

var carrierGrade = netip.PrefixFrom(netip.AddrFrom4([4]byte{100, 64, 0, 0}), 10) //nolint:gochecknoglobals // a constant

// translated are the addresses by which a network of IPv6 alone reaches IPv4, which is at their end.
var translated = netip.MustParsePrefix("64:ff9b::/96") //nolint:gochecknoglobals // a constant

// metadata are addresses at which clouds tell machines their secrets that aren't link-local ones.
var metadata = []netip.Addr{netip.MustParseAddr("fd00:ec2::254"), netip.MustParseAddr("100.100.100.200"), netip.MustParseAddr("168.63.129.16")} //nolint:gochecknoglobals // constants

// errAddress says that a host has an address that isn't to be talked to.
var errAddress = errors.New("its address isn't one that a registry may send us to")

// network connects to one registry and to where it sends us. The address is looked at when the connection is made, so
// that it doesn't matter what a name meant before.
type network struct {
	registry []string // host:port, as it may be dialled
	loopback bool     // it is said to be this machine
	seen     atomic.Int32
}

func (n *network) dial(ctx context.Context, kind, addr string) (net.Conn, error) {
	own := slices.Contains(n.registry, addr)
	d := net.Dialer{Timeout: dialTime, Control: func(_, to string, _ syscall.RawConn) error {
		ap, err := netip.ParseAddrPort(to)
		if err != nil {
			return err
		}
		at := near(ap.Addr())
		switch {
		case at == never, own && at == local && !n.loopback, !own && at > nearness(n.seen.Load()):
			return fmt.Errorf("%s: %w", ap.Addr(), errAddress)
		}
		return nil
	}}
	c, err := d.DialContext(ctx, kind, addr)
	if err == nil && own {
		if tcp, ok := c.RemoteAddr().(*net.TCPAddr); ok {
			n.saw(near(tcp.AddrPort().Addr()))
		}
	}
	return c, err
}

// saw remembers the farthest address that the registry has had.
func (n *network) saw(at nearness) {
	for {
		old := n.seen.Load()
		if old != int32(unknown) && old <= int32(at) || n.seen.CompareAndSwap(old, int32(at)) {
			return
		}
	}
}

// newTransport makes the connections of one pull or push. No proxy is asked: what it would connect to couldn't be seen.
func newTransport(ref reference.Reference, access api.RegistryAccess) (*http.Transport, error) {
	pool, err := roots(access.CA)
	if err != nil {
		return nil, err
	}
	n := &network{registry: addresses(ref.Host), loopback: reference.Loopback(ref.Host)}
	return &http.Transport{
		DialContext:            n.dial,
		TLSClientConfig:        &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    dialTime,
		ResponseHeaderTimeout:  headTime,
		IdleConnTimeout:        headTime,
		MaxResponseHeaderBytes: maxHeader,
		DisableCompression:     true, // digests are of what is sent
		ForceAttemptHTTP2:      true,
	}, nil
}

// addresses are those that a registry is dialled by.
func addresses(host string) []string {
	if _, _, err := net.SplitHostPort(host); err == nil {
		return []string{host}
	}
	return []string{net.JoinHostPort(host, "443"), net.JoinHostPort(host, "80")}
}

// roots are the authorities to trust: nil for the system's alone.
func roots(pem string) (*x509.CertPool, error) {
	if pem == "" {
		return nil, nil //nolint:nilnil // as crypto/tls has it
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool() // a machine without any
	}
	if len(pem) > maxCA || !pool.AppendCertsFromPEM([]byte(pem)) {
		return nil, api.FieldError(api.CodeInvalid, "ca", "give a file that begins with -----BEGIN CERTIFICATE-----", "there is no PEM certificate in it, or more than %d bytes", maxCA)
	}
	return pool, nil
}
