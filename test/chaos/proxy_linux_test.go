package chaos

import (
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

// proxy keeps its address while nodes come and go behind it, and cuts a part of the answers off.
type proxy struct {
	ln     net.Listener
	token  string
	target atomic.Pointer[string]
	cut    atomic.Int64 // of 1,000 pieces of answers
	cuts   atomic.Int64
	wg     sync.WaitGroup
}

func startProxy(t testing.TB, n *testbed.Node) *proxy {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{ln: ln, token: n.Token}
	p.aim(n)
	p.wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			p.wg.Go(func() { p.serve(c) })
		}
	})
	t.Cleanup(func() { _ = ln.Close(); p.wg.Wait() })
	return p
}

func (p *proxy) aim(n *testbed.Node) {
	addr := strings.TrimPrefix(n.Endpoint, "http://")
	p.target.Store(&addr)
}

func (p *proxy) serve(c net.Conn) {
	defer c.Close()
	up, err := net.Dial("tcp", *p.target.Load())
	if err != nil {
		return
	}
	defer up.Close()
	go func() {
		_, _ = io.Copy(up, c)
		_ = up.Close()
	}()
	buf := make([]byte, 32<<10)
	for {
		n, err := up.Read(buf)
		if n > 0 && rand.Int64N(1000) < p.cut.Load() {
			p.cuts.Add(1)
			_, _ = c.Write(buf[:rand.IntN(n)])
			return
		}
		if _, werr := c.Write(buf[:n]); err != nil || werr != nil {
			return
		}
	}
}

// client talks to the node through the proxy.
func (p *proxy) client(t testing.TB) *libdsec.Client {
	t.Helper()
	c, err := libdsec.New(libdsec.WithEndpoint("http://"+p.ln.Addr().String(), p.token))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}
