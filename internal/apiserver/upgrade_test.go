package apiserver

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/apiserver/iamface"
)

// switched is a client's connection after the upgrade.
type switched struct {
	net.Conn
	r *bufio.Reader
}

func (s switched) Read(p []byte) (int, error) { return s.r.Read(p) }

// upgrade turns a connection into one of the aether protocol as a client does.
func (r *rig) upgrade() *aether.Conn {
	r.t.Helper()
	var d net.Dialer
	c, err := d.DialContext(r.t.Context(), "tcp", strings.TrimPrefix(r.url, "http://"))
	if err != nil {
		r.t.Fatal(err)
	}
	fmt.Fprintf(c, "GET /v1/aether HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nConnection: keep-alive, Upgrade\r\nUpgrade: aether\r\n\r\n", r.token)
	br := bufio.NewReader(c)
	resp, err := http.ReadResponse(br, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	if resp.StatusCode != http.StatusSwitchingProtocols || resp.Header.Get("Upgrade") != "aether" || resp.Header.Get("X-Request-Id") == "" {
		r.t.Fatalf("upgrade = %s %v", resp.Status, resp.Header)
	}
	conn, err := aether.Client(switched{c, br}, aether.Options{Name: "test"})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func TestUpgradeRelays(t *testing.T) {
	r := newRig(t)
	conn := r.upgrade()
	m := aether.ExecStart{Argv: [][]byte{[]byte("cat")}, Stdin: true}
	// Whatever a client says of the project, its token's counts.
	st, err := conn.Open(t.Context(), aether.Open{Method: "exec", Sandbox: ourBox, Project: "other", RequestID: "r-1", Body: m.AppendTo(nil)})
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Repeat("0123456789", 100_000)
	go func() {
		if st.Write(t.Context(), aether.Stdin, []byte(want)) == nil {
			_ = st.CloseWrite(aether.Stdin)
		}
	}()
	var got strings.Builder
	exited := false
	for {
		f, err := st.Recv(t.Context())
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if f.Channel == aether.Stdout {
			got.Write(f.Data)
		}
		exited = exited || f.Channel == aether.Message && f.Type == aether.MsgExited
		f.Release()
	}
	_ = st.Close()
	if got.String() != want || !exited {
		t.Errorf("%d of %d bytes came back, exit told: %v", got.Len(), len(want), exited)
	}
	if o := r.edge.last(t, "exec"); o.Project != api.DefaultProject || o.RequestID != "r-1" {
		t.Errorf("the edge was told project %q request %q", o.Project, o.RequestID)
	}
}

func TestUpgradeRefusesMethods(t *testing.T) {
	r := newRig(t)
	conn := r.upgrade()
	for _, method := range []string{"add", "remove", "boxes", "keeper", "stats", "gc", "node.get", "EXEC"} {
		_, err := aether.Unary(t.Context(), conn, aether.Open{Method: method, Sandbox: ourBox})
		if !api.IsCode(err, api.CodeNotImplemented) {
			t.Errorf("method %q: %v", method, err)
		}
	}
	if _, err := aether.Unary(t.Context(), conn, aether.Open{Method: "sandbox.get", Sandbox: ourBox}); err != nil {
		t.Errorf("sandbox.get: %v", err)
	}
	if _, err := aether.Unary(t.Context(), conn, aether.Open{Method: "sandbox.get", Sandbox: foreignBox}); !api.IsCode(err, api.CodeNotFound) {
		t.Errorf("sandbox.get of a foreign one: %v", err)
	}
	face := iamface.New(iamface.Config{})
	r.edge.mu.Lock()
	defer r.edge.mu.Unlock()
	for _, o := range r.edge.seen {
		if _, known := face.Method(o.Method); !known {
			t.Errorf("method %q got to the edge", o.Method)
		}
	}
}

func TestUpgradeCancel(t *testing.T) {
	r := newRig(t)
	conn := r.upgrade()
	m := aether.ExecStart{Argv: [][]byte{[]byte("hang")}}
	st, err := conn.Open(t.Context(), aether.Open{Method: "exec", Sandbox: ourBox, Body: m.AppendTo(nil)})
	if err != nil {
		t.Fatal(err)
	}
	f, err := st.Recv(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	f.Release()
	_ = conn.Close() // the client vanishes
	within(t, time.Minute, "command cancelled", func() bool { return r.edge.cancels() == 1 })
}

func TestUpgradeNeedsHeaders(t *testing.T) {
	r := newRig(t)
	if resp := r.do(request{method: "GET", path: "/v1/aether"}); resp.status != 400 || resp.problem.Field != "Upgrade" {
		t.Errorf("without headers = %d %s", resp.status, resp.body)
	}
}

func TestUpgradeWithEdgeDown(t *testing.T) {
	r := serveRig(t, &fakeEdge{socket: t.TempDir() + "/edge.sock"})
	_, err := aether.Unary(context.Background(), r.upgrade(), aether.Open{Method: "sandbox.get", Sandbox: ourBox})
	if e := api.AsError(err); e == nil || e.Code != api.CodeUnavailable || e.RetryMS <= 0 {
		t.Errorf("with the edge down: %v", err)
	}
}
