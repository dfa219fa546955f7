package ports

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/test/testbed"
)

// noise is n bytes and their digest, as they are read.
type noise struct {
	rnd  *rand.ChaCha8
	left int64
	sum  hash.Hash
}

func newNoise(n int64) *noise {
	return &noise{rand.NewChaCha8([32]byte{1}), n, sha256.New()}
}

// Read implements [io.Reader].
func (r *noise) Read(p []byte) (int, error) {
	if r.left == 0 {
		return 0, io.EOF
	}
	n, err := r.rnd.Read(p[:min(int64(len(p)), r.left)])
	r.left -= int64(n)
	r.sum.Write(p[:n])
	return n, err
}

func (r *noise) digest() string { return hex.EncodeToString(r.sum.Sum(nil)) }

// TestCase86PublishedPortLosesDataUnderBackPressure: 100 MB there and back, by a reader that pauses at random; the memory
// of what is between doesn't grow with what waits.
func TestCase86PublishedPortLosesDataUnderBackPressure(t *testing.T) {
	p := start(t, testbed.Shared(t), "")
	c := p.dial(t, 7001)
	shard, node := p.shard(t), p.node.PID()
	before := [2]int{residentMB(t, shard), residentMB(t, node)}
	const size = 100 << 20
	src := newNoise(size)
	sent := make(chan error, 1)
	go func() {
		_, err := io.Copy(struct{ io.Writer }{c}, src)
		sent <- errors.Join(err, c.(interface{ CloseWrite() error }).CloseWrite())
	}()
	got, most := sha256.New(), [2]int{}
	buf := make([]byte, 300<<10)
	total := int64(0)
	for pause := int64(1 << 20); ; {
		n, err := c.Read(buf)
		got.Write(buf[:n])
		if total += int64(n); total >= pause {
			pause += rand.Int64N(8 << 20)
			<-time.After(time.Duration(rand.Int64N(40)) * time.Millisecond) // the reader's pause is the point
			most[0], most[1] = max(most[0], residentMB(t, shard)), max(most[1], residentMB(t, node))
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("after %d bytes: %v", total, err)
		}
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
	if d := hex.EncodeToString(got.Sum(nil)); total != size || d != src.digest() {
		t.Errorf("%d bytes came back, want %d; digest %s, want %s", total, size, d, src.digest())
	}
	for i, who := range []string{"shard", "node"} {
		if grown := most[i] - before[i]; grown > 48 {
			t.Errorf("the %s grew by %d MB", who, grown)
		}
	}
}

// TestBackPressure: what a program doesn't read stops the writer, soon.
func TestBackPressure(t *testing.T) {
	p := start(t, testbed.Shared(t), "")
	c := p.dial(t, 7004)
	block := make([]byte, 1<<20)
	total := 0
	for total < 1<<30 {
		_ = c.SetWriteDeadline(time.Now().Add(2 * time.Second))
		n, err := c.Write(block)
		total += n
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if total > 32<<20 {
		t.Errorf("%d bytes were taken for a program that reads nothing", total)
	}
	// Others go on.
	other := p.dial(t, 7001)
	if _, err := other.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(other, make([]byte, 1)); err != nil {
		t.Error(err)
	}
}

// TestCase83PortProxyLosesData is its TCP half: each direction ends by itself, after its last byte.
func TestCase83PortProxyLosesData(t *testing.T) {
	p := start(t, testbed.Shared(t), "")
	t.Run("client-ends-first", func(t *testing.T) {
		for range 20 {
			c, src := p.dial(t, 7003), newNoise(1<<20)
			if _, err := io.Copy(c, src); err != nil {
				t.Fatal(err)
			}
			closeWrite(t, c)
			if got, want := text(t, c), fmt.Sprintf("%d %s", 1<<20, src.digest()); got != want {
				t.Errorf("the program got %q, want %q", got, want)
			}
		}
	})
	t.Run("program-ends-first", func(t *testing.T) {
		c, src := p.dial(t, 7009), newNoise(1<<20)
		if got := text(t, c); got != "that's all" {
			t.Errorf("%q", got)
		}
		if _, err := io.Copy(struct{ io.Writer }{c}, src); err != nil {
			t.Fatalf("write after the program's end: %v", err)
		}
		closeWrite(t, c)
		p.waitSunk(t, src.digest())
	})
	t.Run("program-closes-at-once", func(t *testing.T) {
		for _, n := range []int{0, 1, 65_536, 10_000_000} {
			c := p.dial(t, 7002)
			fmt.Fprintf(c, "%d\n", n)
			if got := len(text(t, c)); got != n {
				t.Errorf("%d bytes came of %d", got, n)
			}
		}
	})
	t.Run("client-closes-at-once", func(t *testing.T) {
		c, src := p.dial(t, 7008), newNoise(3<<20)
		if _, err := io.Copy(c, src); err != nil {
			t.Fatal(err)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		p.waitSunk(t, src.digest())
	})
}

// waitSunk waits until the server has taken a whole input.
func (p *place) waitSunk(t *testing.T, digest string) {
	t.Helper()
	testbed.Until(t, hang, "the program to have all", func() bool {
		return text(t, p.ask(t, "GET", p.path(8080, "/sunk?"+digest), nil).Body) != "-1"
	})
}

// TestEndsAreTold: a reset is no end of file, and comes after the data before it.
func TestEndsAreTold(t *testing.T) {
	p := start(t, testbed.Shared(t), "")
	t.Run("program-resets", func(t *testing.T) {
		c := p.dial(t, 7007)
		half := make([]byte, len("half of it"))
		if _, err := io.ReadFull(c, half); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write([]byte("!")); err != nil {
			t.Fatal(err)
		}
		if n, err := c.Read(half); n != 0 || codeOf(err) != api.CodePortFailed {
			t.Errorf("Read() = %d, %v; want %s", n, err, api.CodePortFailed)
		}
	})
	t.Run("nobody-reads", func(t *testing.T) {
		c := p.dial(t, 7006) // says its name and closes
		if got := text(t, c); got != "" {
			t.Errorf("%q", got)
		}
		testbed.Until(t, hang, "a write to fail", func() bool {
			_, err := c.Write([]byte("x"))
			if err == nil {
				_, _ = c.Read(make([]byte, 1)) // it would hear of it here
			}
			return err != nil
		})
	})
	t.Run("deadline", func(t *testing.T) {
		c := p.dial(t, 7001)
		_ = c.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("Read() = %v", err)
		}
		_ = c.SetReadDeadline(time.Time{})
		if _, err := c.Write([]byte("on")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, make([]byte, 2)); err != nil {
			t.Errorf("after a deadline: %v", err)
		}
	})
	t.Run("close-wakes", func(t *testing.T) {
		c := p.dial(t, 7001)
		woken := make(chan error, 1)
		go func() {
			_, err := c.Read(make([]byte, 1))
			woken <- err
		}()
		_ = c.Close()
		if err := <-woken; !errors.Is(err, net.ErrClosed) {
			t.Errorf("Read() = %v", err)
		}
	})
}

// TestReach: the ports are the sandbox's and nobody else's.
func TestReach(t *testing.T) {
	n := testbed.Shared(t)
	one, two := start(t, n, "one"), start(t, n, "two")
	var both sync.WaitGroup
	for _, p := range []struct {
		*place
		name string
	}{{one, "one"}, {two, "two"}} {
		both.Go(func() {
			for range 50 {
				if got := text(t, p.dial(t, 7006)); got != p.name {
					t.Errorf("sandbox %s answers as %q", p.name, got)
				}
			}
		})
	}
	both.Wait()
	if c := one.dial(t, 7005); c != nil { // listens on ::1 only
		if _, err := c.Write([]byte("six")); err != nil {
			t.Error(err)
		}
		closeWrite(t, c)
		if got := text(t, c); got != "six" {
			t.Errorf("%q", got)
		}
	}
	for _, addr := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Logf("the host has no %s: %v", addr, err)
			continue
		}
		defer l.Close()
		port := l.Addr().(*net.TCPAddr).Port
		if _, err := one.Dial(t.Context(), port); codeOf(err) != api.CodePortUnreachable {
			t.Errorf("the host's port %d: %v", port, err)
		}
	}
	for port, want := range map[int]api.Code{
		0: api.CodeInvalid, -1: api.CodeInvalid, 65536: api.CodeInvalid, 1: api.CodePortUnreachable, 65535: api.CodePortUnreachable,
	} {
		if _, err := one.Dial(t.Context(), port); codeOf(err) != want {
			t.Errorf("Dial(%d) = %v, want %s", port, err, want)
		}
	}
	ghost := n.Client.Sandbox("s" + strings.Repeat("a", 21))
	if _, err := ghost.Dial(t.Context(), 7001); codeOf(err) != api.CodeNotFound {
		t.Errorf("a sandbox that isn't there: %v", err)
	}
}

// TestSandboxEnds: its connections end with it.
func TestSandboxEnds(t *testing.T) {
	p := start(t, testbed.Shared(t), "")
	conns := []net.Conn{p.dial(t, 7001)}
	for range 20 {
		c := p.dial(t, 7004)
		if _, err := c.Write([]byte("never read")); err != nil { // so the kernel resets the connection
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	resp := p.ask(t, "GET", p.path(8080, "/sse"), neverEnding{})
	if _, err := p.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	died := 0
	for _, c := range conns {
		switch _, err := io.Copy(io.Discard, c); codeOf(err) {
		case api.CodeSandboxDied:
			died++
		case api.CodePortFailed: // its program was dead long before the sandbox
		default:
			if err != nil {
				t.Errorf("Read() = %v", err)
			}
		}
	}
	if died == 0 {
		t.Error("no connection says that the sandbox has ended")
	}
	if _, err := io.Copy(io.Discard, resp.Body); err == nil {
		t.Error("an answer that broke off looks whole")
	}
	_, err := p.Dial(t.Context(), 7001)
	if codeOf(err) != api.CodeWrongState {
		t.Errorf("Dial() = %v", err)
	}
}

// neverEnding is a body that stays open.
type neverEnding struct{}

// Read implements [io.Reader].
func (neverEnding) Read([]byte) (int, error) {
	<-make(chan struct{})
	return 0, nil
}

// TestShardDies: a connection ends typed, and the next one finds the next shard.
func TestShardDies(t *testing.T) {
	p := start(t, testbed.Start(t, testbed.Options{}), "alive")
	c := p.dial(t, 7001)
	if err := unix.Kill(p.shard(t), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); codeOf(err) != api.CodeUnavailable {
		t.Errorf("Read() = %v, want %s", err, api.CodeUnavailable)
	}
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	testbed.Until(t, hang, "the port to be reachable again", func() bool {
		c, err := p.Dial(ctx, 7006)
		return err == nil && text(t, c) == "alive"
	})
}

// TestNobodyIsNotOneself: where the kernel picks the very port that is dialled for our end, TCP would connect the socket
// with itself, and a port where nobody listens would echo.
func TestNobodyIsNotOneself(t *testing.T) {
	p := start(t, testbed.Shared(t), "")
	pid := 0
	for _, root := range []string{"/sys/fs/cgroup/unified", "/sys/fs/cgroup"} {
		found, _ := filepath.Glob(filepath.Join(root, "dsec-"+p.node.Instance(), "shard-*", p.ID(), "*", "cgroup.procs"))
		for _, name := range found {
			raw, _ := os.ReadFile(name)
			_, _ = fmt.Sscan(string(raw), &pid)
		}
	}
	set := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread stays in the sandbox's network, and ends with this function
		set <- func() error {
			fd, err := unix.Open(fmt.Sprintf("/proc/%d/ns/net", pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer func() { _ = unix.Close(fd) }()
			if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
				return err
			}
			return os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte("40000 40000"), 0)
		}()
	}()
	if err := <-set; err != nil {
		t.Fatalf("process %d: %v", pid, err)
	}
	for range 3 {
		if _, err := p.Dial(t.Context(), 40000); codeOf(err) != api.CodePortUnreachable {
			t.Errorf("Dial() = %v", err)
		}
	}
}
