// Package lifecycle holds the field's bug reports about the life of a sandbox as tests: how it is made, paused, and
// ends. Each is named after its number and drives a real `dsec dev` through the SDK or plain HTTP.
package lifecycle

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

func TestMain(m *testing.M) { testbed.Main(m) }

// hang is when a test that waits counts as hanging.
const hang = 3 * time.Minute

// proxy stands between clients and a node, keeps its address when the node is started anew, and cuts answers off.
type proxy struct {
	ln     net.Listener
	target atomic.Pointer[string]
	cut    atomic.Int64 // out of 100 answers
	cuts   atomic.Int64
	wg     sync.WaitGroup
}

func startProxy(t *testing.T, n *testbed.Node) *proxy {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{ln: ln}
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

// aim names the node that connections go to.
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
		if n > 0 && rand.Int64N(100) < p.cut.Load() {
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
func (p *proxy) client(t *testing.T, n *testbed.Node) *libdsec.Client {
	t.Helper()
	c, err := libdsec.New(libdsec.WithEndpoint("http://"+p.ln.Addr().String(), n.Token))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// living lists the sandboxes with a label that haven't ended.
func living(t *testing.T, n *testbed.Node, label string) map[string]bool {
	t.Helper()
	ids := map[string]bool{}
	for sb, err := range n.Client.List(t.Context(), libdsec.ListOptions{Labels: map[string]string{"test": label}}) {
		if err != nil {
			t.Fatal(err)
		}
		if !sb.Info().State.Ended() {
			ids[sb.ID()] = true
		}
	}
	return ids
}

// labelled is a small sandbox's spec.
func labelled(label string) api.Spec {
	return api.Spec{Image: "busybox", Labels: map[string]string{"test": label}, Resources: api.Resources{MemoryMB: new(int64(64)), PIDs: new(int64(64))}}
}

// stopAll stops sandboxes, some at a time.
func stopAll(t *testing.T, n *testbed.Node, ids map[string]bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	defer cancel()
	var wg sync.WaitGroup
	gate := make(chan struct{}, 8) // as many at one time
	for id := range ids {
		gate <- struct{}{}
		wg.Go(func() {
			defer func() { <-gate }()
			if _, err := n.Client.Sandbox(id).Stop(ctx); err != nil {
				t.Errorf("stop %s: %v", id, err)
			}
		})
	}
	wg.Wait()
}
