package ports

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/google/go-cmp/cmp"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/test/testbed"
)

// TestCase83PortProxyIsTransparent is the HTTP half of case 83.
func TestCase83PortProxyIsTransparent(t *testing.T) {
	p := start(t, testbed.Shared(t), "")
	t.Run("target", func(t *testing.T) {
		for _, rest := range []string{"/?a=1&a=2&b=%2F", "/x?a=1;b=%zz&c", "/a//b/../c/", "//", "/%2e%2e/%2F?", "/?" + strings.Repeat("q", 10_000)} {
			if got := look(t, p.ask(t, "GET", p.path(8080, rest), nil)); got.URI != rest || got.Method != "GET" {
				t.Errorf("%s came as %s %s", rest, got.Method, got.URI)
			}
		}
		if got := look(t, p.ask(t, "PURGE", p.path(8080, ""), nil)); got.URI != "/" || got.Method != "PURGE" {
			t.Errorf("the port itself came as %s %s", got.Method, got.URI)
		}
	})
	t.Run("head", func(t *testing.T) {
		resp := p.ask(t, "HEAD", p.path(8080, "/big?n=1000000&sized=1"), nil)
		if resp.ContentLength != 1000000 || text(t, resp.Body) != "" {
			t.Errorf("%d", resp.ContentLength)
		}
	})
	t.Run("trailers", func(t *testing.T) {
		resp := p.ask(t, "GET", p.path(8080, "/trailers"), nil)
		if got := text(t, resp.Body); got != "body" {
			t.Errorf("%q", got)
		}
		if diff := cmp.Diff(http.Header{"X-Sum": {"4"}, "X-Late": {"yes"}}, resp.Trailer); diff != "" {
			t.Error(diff)
		}
		body := "5\r\nhello\r\n0\r\nX-Sum: 5\r\n\r\n"
		got := p.raw(t, "POST", p.path(8080, "/"), "Transfer-Encoding: chunked\r\nTrailer: X-Sum\r\n", body)
		if !strings.Contains(got, `"Body":"hello","Trailer":{"X-Sum":["5"]}`) {
			t.Errorf("%s", got)
		}
	})
	t.Run("bodies", func(t *testing.T) {
		for _, path := range []string{"/big?n=50000000", "/big?n=50000000&sized=1"} {
			got, want := sha256.New(), sha256.New()
			n, err := io.Copy(got, p.ask(t, "GET", p.path(8080, path), nil).Body)
			if err != nil || n != 50_000_000 {
				t.Errorf("%s: %d bytes, %v", path, n, err)
			}
			_, _ = io.Copy(want, io.LimitReader(new(pattern), 50_000_000))
			if !bytes.Equal(got.Sum(nil), want.Sum(nil)) {
				t.Errorf("%s: other bytes", path)
			}
		}
		src, got := newNoise(50<<20), sha256.New()
		if _, err := io.Copy(got, p.ask(t, "POST", p.path(8080, "/copy"), src).Body); err != nil {
			t.Error(err)
		}
		if d := hex.EncodeToString(got.Sum(nil)); d != src.digest() {
			t.Errorf("what was sent and came back differs")
		}
	})
}

// TestCase83PortProxyStreams: bodies flow while they are made, and every end is told as it was.
func TestCase83PortProxyStreams(t *testing.T) {
	p := start(t, testbed.Shared(t), "")
	t.Run("events-at-once", func(t *testing.T) {
		body, more := io.Pipe()
		lines := bufio.NewReader(p.ask(t, "POST", p.path(8080, "/sse"), body).Body)
		for i := range 3 {
			line, err := lines.ReadString('\n')
			if err != nil || line != fmt.Sprintf("data: %d\n", i) {
				t.Fatalf("%q, %v", line, err)
			}
			_, _ = lines.ReadString('\n')
			_, _ = more.Write([]byte("x"))
		}
		_ = more.Close()
	})
	t.Run("continue", func(t *testing.T) {
		got := look(t, p.ask(t, "POST", p.path(8080, "/"), strings.NewReader("body"), "Expect", "100-continue"))
		if got.Body != "body" {
			t.Errorf("%+v", got)
		}
		// An answer without a 100 comes while the body is still unsent.
		unread, _ := io.Pipe()
		resp := p.ask(t, "POST", p.path(8080, "/full"), unread, "Expect", "100-continue")
		if resp.StatusCode != http.StatusRequestEntityTooLarge {
			t.Error(resp.Status)
		}
	})
	t.Run("early-answer", func(t *testing.T) {
		for range 10 {
			resp := p.ask(t, "POST", p.path(8080, "/full"), newNoise(20<<20))
			if got := text(t, resp.Body); resp.StatusCode != http.StatusRequestEntityTooLarge || got != "too much\n" {
				t.Errorf("%s %q", resp.Status, got)
			}
		}
	})
	t.Run("broken-off", func(t *testing.T) {
		if b, err := io.ReadAll(p.ask(t, "GET", p.path(8080, "/half"), nil).Body); err == nil {
			t.Errorf("%q looks whole", b)
		}
		resp := p.ask(t, "GET", p.path(8080, "/hang-up"), nil)
		if c := code(t, resp); c != api.CodePortFailed || resp.StatusCode != http.StatusBadGateway {
			t.Errorf("%s %s", resp.Status, c)
		}
		if c := code(t, p.ask(t, "GET", p.path(7006, "/"), nil)); c != api.CodePortFailed {
			t.Errorf("no HTTP: %s", c)
		}
	})
}

// pattern is what the server's /big sends.
type pattern struct{ at int64 }

// Read implements [io.Reader].
func (r *pattern) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(r.at * 7919 >> 3)
		r.at++
	}
	return len(p), nil
}

// raw sends a request as it is written, and returns all that comes.
func (p *place) raw(t *testing.T, method, path, header, body string) string {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(p.node.Endpoint, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(hang))
	if !strings.Contains(header, "Connection:") {
		header += "Connection: close\r\n"
	}
	fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n%s\r\n%s", method, path, p.node.Token, header, body)
	return text(t, c)
}

func TestWebSocket(t *testing.T) {
	p := start(t, testbed.Shared(t), "")
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	c, resp, err := websocket.Dial(ctx, p.node.Endpoint+p.path(8080, "/ws"), &websocket.DialOptions{
		HTTPHeader: http.Header{"Authorization": {"Bearer " + p.node.Token}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if csp := resp.Header.Get("Content-Security-Policy"); csp != "sandbox" {
		t.Errorf("policy %q", csp)
	}
	defer c.CloseNow()
	c.SetReadLimit(-1)
	for _, n := range []int{0, 1, 125, 126, 65_535, 65_536, 1 << 20} {
		sent := make([]byte, n)
		_, _ = newNoise(int64(n)).Read(sent)
		if err := c.Write(ctx, websocket.MessageBinary, sent); err != nil {
			t.Fatal(err)
		}
		kind, got, err := c.Read(ctx)
		if err != nil || kind != websocket.MessageBinary || !bytes.Equal(got, sent) {
			t.Errorf("%d bytes: %v, or others came back", n, err)
		}
	}
	if err := c.Close(websocket.StatusNormalClosure, "done"); err != nil {
		t.Errorf("the closing handshake: %v", err)
	}
}

// TestUpgrade: any protocol, what is sent ahead is kept, and each direction ends by itself.
func TestUpgrade(t *testing.T) {
	p := start(t, testbed.Shared(t), "")
	c, err := net.Dial("tcp", strings.TrimPrefix(p.node.Endpoint, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(hang))
	fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nConnection: Upgrade\r\nUpgrade: echo/1\r\n\r\nsent ahead,",
		p.path(8080, "/upgrade"), p.node.Token)
	r := bufio.NewReader(c)
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	h := resp.Header
	if resp.StatusCode != http.StatusSwitchingProtocols || h.Get("Upgrade") != "echo/1" || h.Get("Set-Cookie") != "" {
		t.Errorf("%s %v", resp.Status, h)
	}
	src := newNoise(5 << 20)
	go func() {
		_, _ = io.Copy(struct{ io.Writer }{c}, src)
		_ = c.(*net.TCPConn).CloseWrite()
	}()
	got, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	echoed, whole := bytes.CutPrefix(got, []byte("sent ahead,"))
	echoed, end := bytes.CutSuffix(echoed, []byte("the end"))
	if sum := sha256.Sum256(echoed); !whole || !end || hex.EncodeToString(sum[:]) != src.digest() {
		t.Errorf("%d bytes came back, not those that were sent", len(got))
	}
}

// TestTenantContentIsKeptApart: nothing of the API's reaches the program, and nothing of the program's acts on the API.
func TestTenantContentIsKeptApart(t *testing.T) {
	p := start(t, testbed.Shared(t), "")
	got := look(t, p.ask(t, "GET", p.path(8080, "/x"), nil,
		"Cookie", "session=ours", "X-Dsec-Project", "default", "X-DSEC-token", "t", "Proxy-Authorization", "Basic eA==",
		"X-Forward-Authorization", "Basic eA==", "X-Forwarded-For", "6.6.6.6", "X-Forwarded-Host", "evil", "Forwarded", "for=6.6.6.6",
		"Connection", "close, X-Hop", "X-Hop", "1", "X-Own", "kept", "Origin", p.node.Endpoint, "Referer", p.node.Endpoint+p.path(8080, "/from?a=1")))
	host := strings.TrimPrefix(p.node.Endpoint, "http://")
	want := http.Header{
		"Authorization": {"Basic eA=="}, "Connection": {"close"}, "X-Own": {"kept"}, "User-Agent": {"Go-http-client/1.1"},
		"X-Forwarded-For": {"127.0.0.1"}, "X-Forwarded-Host": {host}, "X-Forwarded-Proto": {"http"},
		"X-Forwarded-Prefix": {p.path(8080, "")}, "Origin": {"http://localhost:8080"}, "Referer": {"http://localhost:8080/from?a=1"},
		"X-Request-Id": got.Header["X-Request-Id"],
	}
	if diff := cmp.Diff(want, got.Header); diff != "" || got.Host != "localhost:8080" {
		t.Errorf("host %s, headers (-want +got):\n%s", got.Host, diff)
	}
	if got := look(t, p.ask(t, "GET", p.path(8080, "/"), nil)); got.Header["Authorization"] != nil || strings.Contains(fmt.Sprint(got), p.node.Token) {
		t.Errorf("the token is in %v", got)
	}
	resp := p.ask(t, "GET", p.path(8080, "/origin"), nil)
	if id := resp.Header.Get("X-Request-Id"); id == "fake" || id == "" {
		t.Errorf("request id %q", id)
	}
	for _, name := range []string{"Date", "X-Request-Id"} {
		resp.Header.Del(name)
	}
	if diff := cmp.Diff(http.Header{
		"Content-Security-Policy": {"default-src 'self'", "sandbox"}, "X-Content-Type-Options": {"nosniff"}, "X-Own": {"kept"},
		"Content-Type": {"text/html; charset=utf-8"}, "Content-Length": {"25"},
	}, resp.Header); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
	for place, want := range map[string]string{
		"/login?a=1#f":                       p.path(8080, "/login?a=1#f"),
		"next":                               "next",
		"http://localhost:8080/a%2Fb":        p.path(8080, "/a%2Fb"),
		"http://127.0.0.1:8080":              p.path(8080, "/"),
		p.node.Endpoint + "/a":               p.path(8080, "/a"),
		p.node.Endpoint + p.path(8080, "/a"): p.path(8080, "/a"),
		"http://localhost:9/a":               "http://localhost:9/a",
		"https://example.com/":               "https://example.com/",
	} {
		resp := p.ask(t, "GET", p.path(8080, "/to?at="+strings.NewReplacer("%", "%25", "#", "%23", "&", "%26").Replace(place)), nil)
		if got := resp.Header.Get("Location"); got != want || resp.StatusCode != http.StatusFound {
			t.Errorf("a redirect to %s leads to %s, want %s", place, got, want)
		}
	}
}

// TestRefusals: what isn't passed on, and how that is told.
func TestRefusals(t *testing.T) {
	p := start(t, testbed.Shared(t), "")
	for name, tc := range map[string]struct {
		path   string
		header []string
		status int
		code   api.Code
	}{
		"service-worker": {p.path(8080, "/sw.js"), []string{"Service-Worker", "script"}, 403, api.CodeForbidden},
		"closed-port":    {p.path(81, "/"), nil, 502, api.CodePortUnreachable},
		"port-0":         {p.path(0, "/"), nil, 400, api.CodeInvalid},
		"port-65536":     {p.path(65536, "/"), nil, 400, api.CodeInvalid},
		"port-word":      {"/v1/sandboxes/" + p.ID() + "/ports/http/", nil, 400, api.CodeInvalid},
		"port-host":      {"/v1/sandboxes/" + p.ID() + "/ports/127.0.0.1:8080/", nil, 400, api.CodeInvalid},
		"port-padded":    {"/v1/sandboxes/" + p.ID() + "/ports/08080/", nil, 400, api.CodeInvalid},
		"no-port":        {"/v1/sandboxes/" + p.ID() + "/ports/", nil, 404, api.CodeNotFound},
		"no-sandbox":     {"/v1/sandboxes/s" + strings.Repeat("a", 21) + "/ports/8080/", nil, 404, api.CodeNotFound},
		"no-id":          {"/v1/sandboxes/localhost/ports/8080/", nil, 404, api.CodeNotFound},
		"foreign-origin": {p.path(8080, "/"), []string{"Origin", "https://example.com"}, 403, api.CodeForbidden},
	} {
		t.Run(name, func(t *testing.T) {
			resp := p.ask(t, "GET", tc.path, nil, tc.header...)
			if c := code(t, resp); resp.StatusCode != tc.status || c != tc.code {
				t.Errorf("%s %s, want %d %s", resp.Status, c, tc.status, tc.code)
			}
		})
	}
	r, err := http.NewRequestWithContext(t.Context(), "GET", p.node.Endpoint+p.path(8080, "/"), nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := straight().RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if c := code(t, resp); c != api.CodeUnauthenticated {
		t.Errorf("without a token: %s", c)
	}
}

// TestHTTPClient: the SDK's client reaches the port and keeps its connections.
func TestHTTPClient(t *testing.T) {
	p := start(t, testbed.Shared(t), "")
	c := p.HTTPClient(8080)
	defer c.CloseIdleConnections()
	for range 3 {
		resp, err := c.Get("http://localhost/x?a=1")
		if err != nil {
			t.Fatal(err)
		}
		if got := look(t, resp); got.URI != "/x?a=1" || got.Header.Get("Authorization") != "" || got.Host != "localhost" {
			t.Errorf("%+v", got)
		}
		_ = resp.Body.Close()
	}
}
