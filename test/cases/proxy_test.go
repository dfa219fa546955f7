package cases

import (
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

// proxy stands between a client and a node, as load balancers do: it can cut what goes through it, and be slow.
type proxy struct {
	client   *libdsec.Client
	answered atomic.Int64 // connections on which the node has said something
	delay    atomic.Int64 // how long what the node says is held back, in nanoseconds

	listener net.Listener
	to       string
	wg       sync.WaitGroup

	mu    sync.Mutex // guards what follows
	conns map[net.Conn]bool
	cut   bool // for good
}

// through makes a proxy to the node, and a client that knows only the proxy.
func through(t testing.TB, n *testbed.Node) *proxy {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: ln, to: strings.TrimPrefix(n.Endpoint, "http://"), conns: make(map[net.Conn]bool)}
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		if p.client != nil {
			_ = p.client.Close()
		}
		_ = ln.Close()
		p.mu.Lock()
		p.cut = true
		p.mu.Unlock()
		p.cutAll()
		p.wg.Wait()
	})
	if p.client, err = libdsec.New(libdsec.WithEndpoint("http://"+ln.Addr().String(), n.Token)); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.wg.Go(func() { p.carry(client) })
	}
}

func (p *proxy) carry(client net.Conn) {
	defer client.Close()
	node, err := net.Dial("tcp", p.to)
	if err != nil {
		return
	}
	defer node.Close()
	if !p.note(client, node) {
		return
	}
	defer p.forget(client, node)
	p.wg.Go(func() {
		_, _ = io.Copy(node, client)
		_ = node.(*net.TCPConn).CloseWrite()
	})
	buf := make([]byte, 64<<10)
	for first := true; ; first = false {
		n, err := node.Read(buf)
		if d := p.delay.Load(); d > 0 && n > 0 {
			<-time.After(time.Duration(d))
		}
		if n > 0 {
			if first {
				p.answered.Add(1)
			}
			if _, err := client.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (p *proxy) note(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		p.conns[c] = true
	}
	return !p.cut
}

func (p *proxy) forget(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		delete(p.conns, c)
	}
}

// cutAll breaks every connection with a reset, as a machine on the way that has forgotten them does.
func (p *proxy) cutAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.(*net.TCPConn).SetLinger(0)
		_ = c.Close()
	}
}
