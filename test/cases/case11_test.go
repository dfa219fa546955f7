package cases

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

const maxGrowth = 64 << 20

func TestCase11SlowOrGoneReaderBlocksTheProcessOrGrowsMemory(t *testing.T) {
	n := testbed.Start(t, testbed.Options{}) // whose memory is this test's alone
	sb := n.Create(t, api.Spec{})
	// By default a tenth, and by a program that writes more at a time: busybox's head is slow with many small writes.
	size, flood := int64(192<<20), "yes | dd bs=64k iflag=fullblock count=3072 2>/dev/null"
	if os.Getenv("DSEC_LONG") == "1" {
		size, flood = 2<<30, "yes | head -c 2G"
	}
	testbed.Output(t, sb, "true") // what is set up once is there
	check := growth(t, n)

	// Its first reader never reads: the window of its stream fills up, and that's it. The script waits for the others.
	script := "while [ ! -e /go ]; do sleep 0.01; done; " + flood + " > /dev/stdout"
	p, err := sb.Start(t.Context(), libdsec.Cmd{Shell: script}, libdsec.StartOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_ = p.Stdout() // claimed, so that nothing is dropped for us
	neverReads(t, n, sb, p.ID())
	good := &checker{want: func(off int64) byte { return "y\n"[off%2] }}
	other, err := sb.Attach(t.Context(), p.ID(), libdsec.AttachOptions{Handlers: good.handlers()})
	if err != nil {
		t.Fatal(err)
	}
	// A third stops reading at its first piece until all is written: by then most of it is gone, and it is told so.
	late := &checker{want: good.want, hold: make(chan struct{})}
	behind, err := sb.Attach(t.Context(), p.ID(), libdsec.AttachOptions{Handlers: late.handlers()})
	if err != nil {
		t.Fatal(err)
	}
	stop := comesAndGoes(t, sb, p.ID())
	testbed.Output(t, sb, "touch /go")
	began := time.Now()

	ended := func() bool {
		check()
		list, err := sb.Processes(t.Context())
		if err != nil || len(list) != 1 {
			t.Fatalf("processes: %+v %v", list, err)
		}
		return !list[0].Running
	}
	testbed.Until(t, 3*time.Minute, "the command ends though nobody reads", ended)
	st, err := other.Wait(within(t, hang))
	t.Logf("written and read within %v", time.Since(began))
	if err != nil || !exited(st, 0) || st.StdoutTotal != size {
		t.Errorf("the reading subscriber: %+v %v, want exit 0 and %d bytes", st, err, size)
	}
	good.complete(t, size)
	close(late.hold)
	if st, err := behind.Wait(within(t, hang)); err != nil || !exited(st, 0) || late.gaps == 0 {
		t.Errorf("the subscriber that fell behind: %+v %v, %d bytes declared lost", st, err, late.gaps)
	}
	late.complete(t, size)
	if good.errors != "" {
		t.Errorf("stderr: %s", good.errors)
	}
	stop()
	check()
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	positions(t, sb)
}

// growth returns a function that fails the test when the node or its shard has grown too much since.
func growth(t *testing.T, n *testbed.Node) (check func()) {
	t.Helper()
	watch := map[string]int{"node": n.PID()}
	for group, pids := range groups(t, n) {
		if strings.HasSuffix(group, "/self") && len(pids) == 1 {
			watch["shard "+group] = pids[0]
		}
	}
	if len(watch) != 2 {
		t.Fatalf("the shard isn't found in %v", groups(t, n))
	}
	before := make(map[string]int64)
	for name, pid := range watch {
		before[name] = resident(t, pid)
	}
	return func() {
		t.Helper()
		for name, pid := range watch {
			if grew := resident(t, pid) - before[name]; grew > maxGrowth {
				t.Errorf("%s grew by %d MiB", name, grew>>20)
			}
		}
	}
}

// positions checks the content where every position can be told from all others: line i is the number 10^7+i.
func positions(t *testing.T, sb *libdsec.Sandbox) {
	t.Helper()
	const size = 18 << 20
	p, err := sb.Start(t.Context(), libdsec.Cmd{Shell: fmt.Sprintf("seq 10000000 99999999 | head -c %d", size)}, libdsec.StartOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_ = p.Stdout() // and never read
	good := &checker{want: func(off int64) byte {
		return (strconv.FormatInt(10_000_000+off/9, 10) + "\n")[off%9]
	}}
	other, err := sb.Attach(t.Context(), p.ID(), libdsec.AttachOptions{Handlers: good.handlers()})
	if err != nil {
		t.Fatal(err)
	}
	if st, err := other.Wait(within(t, hang)); err != nil || !exited(st, 0) {
		t.Errorf("%+v %v", st, err)
	}
	good.complete(t, size)
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// neverReads subscribes over plain HTTP and doesn't read the answer's body.
func neverReads(t *testing.T, n *testbed.Node, sb *libdsec.Sandbox, process string) {
	t.Helper()
	resp := request(t, n, http.MethodGet, "/v1/sandboxes/"+sb.ID()+"/processes/"+process+"/attach", nil)
	t.Cleanup(func() { resp.Body.Close() })
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("attach over HTTP: %s", resp.Status)
	}
}

// comesAndGoes has subscribers leave in the midst of the output until it is told to stop.
func comesAndGoes(t *testing.T, sb *libdsec.Sandbox, process string) (stop func()) {
	ctx, cancel := context.WithCancelCause(t.Context())
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for ctx.Err() == nil {
				some := make(chan struct{})
				var once sync.Once
				p, err := sb.Attach(ctx, process, libdsec.AttachOptions{Handlers: libdsec.Handlers{
					OnStdout: func([]byte) error { once.Do(func() { close(some) }); return nil },
				}})
				if err != nil {
					if ctx.Err() == nil {
						t.Errorf("attach: %v", err)
					}
					return
				}
				select {
				case <-some:
				case <-p.Done():
				case <-ctx.Done():
				}
				_ = p.Close() // its end isn't known, as it left
			}
		})
	}
	stop = sync.OnceFunc(func() { cancel(nil); wg.Wait() })
	t.Cleanup(stop)
	return stop
}

// checker follows an output whose every byte is known by its position. Its handlers are called one at a time.
type checker struct {
	want   func(offset int64) byte
	hold   chan struct{} // when set, nothing is taken before it is closed
	wrong  string
	errors string // what came on stderr

	mu     sync.Mutex // guards what follows
	offset int64
	gaps   int64
}

func (c *checker) handlers() libdsec.Handlers {
	return libdsec.Handlers{
		OnStdout: c.take, OnGap: c.gap,
		OnStderr: func(b []byte) error { c.errors += string(b); return nil },
	}
}

func (c *checker) take(b []byte) error {
	if c.hold != nil {
		<-c.hold
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	want := make([]byte, len(b))
	for i := range want {
		want[i] = c.want(c.offset + int64(i))
	}
	if c.wrong == "" && !bytes.Equal(b, want) {
		c.wrong = fmt.Sprintf("%d bytes at %d begin %.40q, want %.40q", len(b), c.offset, b, want)
	}
	c.offset += int64(len(b))
	return nil
}

func (c *checker) gap(g libdsec.Gap) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.wrong == "" && g.Offset != c.offset {
		c.wrong = fmt.Sprintf("a gap at %d, where %d bytes had come", g.Offset, c.offset)
	}
	c.offset += g.Length
	c.gaps += g.Length
	return nil
}

func (c *checker) complete(t *testing.T, size int64) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.wrong != "" || c.offset != size {
		t.Errorf("%d of %d bytes, %d of them declared lost; %s", c.offset, size, c.gaps, c.wrong)
	}
	t.Logf("%d MiB read, %d MiB declared lost", (c.offset-c.gaps)>>20, c.gaps>>20)
}
