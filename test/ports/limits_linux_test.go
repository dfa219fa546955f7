package ports

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

// TestManyConnections has 500 open at once, and 2,000 dials leave no descriptor behind.
func TestManyConnections(t *testing.T) {
	p := start(t, testbed.Start(t, testbed.Options{Pool: -1}), "")
	_ = p.dial(t, 7001).Close()
	shard := p.shard(t)
	before := [2]int{descriptors(t, shard), descriptors(t, p.node.PID())}
	open := make([]net.Conn, 500)
	var wg sync.WaitGroup
	for i := range open {
		wg.Go(func() { open[i], _ = p.Dial(t.Context(), 7001) })
	}
	wg.Wait()
	for i, c := range open {
		if c == nil {
			t.Fatalf("connection %d wasn't made", i)
		}
		wg.Go(func() {
			mine := bytes.Repeat([]byte{byte(i), byte(i >> 8)}, 50_000)
			_ = c.SetDeadline(time.Now().Add(5 * hang))
			go func() { _, _ = c.Write(mine) }()
			got := make([]byte, len(mine))
			if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, mine) {
				t.Errorf("connection %d: %v, or another's data", i, err)
			}
			_ = c.Close()
		})
	}
	wg.Wait()
	next := make(chan int)
	for range 8 {
		wg.Go(func() {
			for i := range next {
				port := []int{7001, 7006, 81}[i%3] // closed here, closed there, never open
				if c, err := p.Dial(t.Context(), port); err == nil {
					_ = c.Close()
				} else if port != 81 {
					t.Errorf("dial %d: %v", port, err)
				}
			}
		})
	}
	for i := range 2000 {
		next <- i
	}
	close(next)
	wg.Wait()
	for i, pid := range []int{shard, p.node.PID()} {
		testbed.Until(t, hang, fmt.Sprintf("descriptors of process %d to be as few as before", pid), func() bool {
			return descriptors(t, pid) <= before[i]+3
		})
	}
}

// TestLimits: a sandbox's connections have a number, and a program that doesn't accept has a time.
func TestLimits(t *testing.T) {
	p := start(t, testbed.Shared(t), "")
	t.Run("number", func(t *testing.T) {
		const most = 1024
		var mu sync.Mutex
		var open []net.Conn
		var refused []error
		var wg sync.WaitGroup
		for range 3 {
			client, err := libdsec.New(libdsec.WithEndpoint(p.node.Endpoint, p.node.Token))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = client.Close() }()
			for range 20 {
				wg.Go(func() {
					for range 20 {
						c, err := client.Sandbox(p.ID()).Dial(t.Context(), 7004)
						mu.Lock()
						if err == nil {
							open = append(open, c)
						} else {
							refused = append(refused, err)
						}
						mu.Unlock()
					}
				})
			}
		}
		wg.Wait()
		if len(open) != most || len(refused) != 1200-most {
			t.Errorf("%d connections were made of 1,200, %d refused", len(open), len(refused))
		}
		for _, err := range refused {
			if codeOf(err) != api.CodeTooMany {
				t.Errorf("refused by %v", err)
			}
		}
		for _, c := range open {
			_ = c.Close()
		}
		testbed.Until(t, hang, "there to be room again", func() bool {
			c, err := p.Dial(t.Context(), 7001)
			return err == nil && c.Close() == nil
		})
	})
	t.Run("time", func(t *testing.T) {
		var wg sync.WaitGroup
		late := make(chan error, 3)
		for range 3 { // one has room, and another one in some kernels
			wg.Go(func() {
				_, err := p.Dial(t.Context(), 7010)
				late <- err
			})
		}
		wg.Wait()
		close(late)
		n := 0
		for err := range late {
			if codeOf(err) == api.CodeTimeout {
				n++
			} else if err != nil {
				t.Error(err)
			}
		}
		if n == 0 {
			t.Error("none timed out")
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if _, err := p.Dial(ctx, 7010); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Dial() = %v", err)
		}
	})
}
