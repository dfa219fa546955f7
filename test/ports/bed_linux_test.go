// Package ports tests the ways to programs that listen inside sandboxes: libdsec's Dial, the HTTP proxy and the forwarding
// of ports, on a real node, with a program of ours (see test/ports/server) at the far end.
package ports

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

func TestMain(m *testing.M) { testbed.Main(m) }

// hang is when something that takes milliseconds is given up.
const hang = time.Minute

// program builds the server once.
var program = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "dsec-t")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	path := filepath.Join(dir, "server")
	cmd := exec.Command("go", "build", "-o", path, "./server")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	return os.ReadFile(path)
})

// place is a sandbox in which the server runs.
type place struct {
	*libdsec.Sandbox
	node *testbed.Node
}

func start(t *testing.T, n *testbed.Node, name string) *place {
	t.Helper()
	binary, err := program()
	if err != nil {
		t.Fatal(err)
	}
	sb := n.Create(t, api.Spec{Resources: api.Resources{MemoryMB: new(int64(512))}})
	mode := uint32(0o755)
	if _, err := sb.Files().WriteFile(t.Context(), "/server", binary, libdsec.WriteOptions{Mode: &mode}); err != nil {
		t.Fatal(err)
	}
	p, err := sb.Start(t.Context(), libdsec.Cmd{Argv: []string{"/server", name}}, libdsec.StartOptions{Detach: true})
	if err != nil {
		t.Fatal(err)
	}
	ready := make([]byte, len("ready\n"))
	if _, err := io.ReadFull(p.Stdout(), ready); err != nil || string(ready) != "ready\n" {
		t.Fatalf("the server says %q, %v", ready, err)
	}
	return &place{sb, n}
}

// dial connects to a port and is given up after a while.
func (p *place) dial(t *testing.T, port int) net.Conn {
	t.Helper()
	c, err := p.Dial(t.Context(), port)
	if err == nil {
		err = c.SetDeadline(time.Now().Add(5 * hang))
	}
	if err != nil {
		t.Fatalf("dial %d: %v", port, err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func closeWrite(t *testing.T, c net.Conn) {
	t.Helper()
	if err := c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		t.Fatal(err)
	}
}

// path is a path of the proxy.
func (p *place) path(port int, rest string) string {
	return "/v1/sandboxes/" + p.ID() + "/ports/" + strconv.Itoa(port) + rest
}

// ask makes a request through the proxy.
func (p *place) ask(t *testing.T, method, path string, body io.Reader, header ...string) *http.Response {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*hang)
	t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, method, p.node.Endpoint+path, body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+p.node.Token)
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	resp, err := straight().RoundTrip(r)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

// straight neither asks for compression nor follows redirects nor keeps connections.
func straight() *http.Transport {
	return &http.Transport{DisableCompression: true, DisableKeepAlives: true, ExpectContinueTimeout: hang}
}

func text(t *testing.T, r io.Reader) string {
	t.Helper()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// seen is a request as the server saw it.
type seen struct {
	Method, URI, Host string
	Header            http.Header
	Body              string
	Trailer           http.Header
}

func look(t *testing.T, resp *http.Response) (s seen) {
	t.Helper()
	raw := text(t, resp.Body)
	if err := json.Unmarshal([]byte(raw), &s); err != nil {
		t.Fatalf("%s: %v\n%s", resp.Status, err, raw)
	}
	return s
}

func code(t *testing.T, resp *http.Response) api.Code {
	t.Helper()
	e := new(api.Error)
	if raw := text(t, resp.Body); json.Unmarshal([]byte(raw), e) != nil || e.HTTP != resp.StatusCode {
		t.Errorf("%s without a problem document of that status: %s", resp.Status, raw)
	}
	return e.Code
}

// codeOf is the code of an error.
func codeOf(err error) api.Code {
	if e, ok := errors.AsType[*api.Error](err); ok {
		return e.Code
	}
	return ""
}

// shard is the process of the sandbox's aether.
func (p *place) shard(t *testing.T) int {
	t.Helper()
	for _, root := range []string{"/sys/fs/cgroup/unified", "/sys/fs/cgroup"} {
		found, _ := filepath.Glob(filepath.Join(root, "dsec-"+p.node.Instance(), "shard-*", p.ID()))
		if len(found) != 1 {
			continue
		}
		raw, err := os.ReadFile(filepath.Join(filepath.Dir(found[0]), "self", "cgroup.procs"))
		if err != nil {
			t.Fatal(err)
		}
		for w := range strings.FieldsSeq(string(raw)) {
			if pid, err := strconv.Atoi(w); err == nil {
				return pid
			}
		}
	}
	t.Fatal("no shard is found")
	return 0
}

// descriptors counts the sockets and namespaces that a process has open. Others come and go with sandboxes that are made
// ahead.
func descriptors(t *testing.T, pid int) (n int) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd/", pid)
	all, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		to, _ := os.Readlink(dir + e.Name()) // closed meanwhile: it isn't counted
		if strings.HasPrefix(to, "socket:") || strings.HasPrefix(to, "user:") || strings.HasPrefix(to, "net:") {
			n++
		}
	}
	return n
}

// residentMB is the memory of a process.
func residentMB(t *testing.T, pid int) int {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, err := strconv.Atoi(strings.Fields(rest)[0])
			if err != nil {
				t.Fatal(err)
			}
			return kb >> 10
		}
	}
	t.Fatalf("process %d has no memory", pid)
	return 0
}
