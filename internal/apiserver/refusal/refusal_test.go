package refusal

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
)

func serve(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{MaxHeaderBytes: 4 << 10, ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, "mine")
	})}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(Listener{ln}) }()
	t.Cleanup(func() {
		_ = srv.Close()
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return ln.Addr().String()
}

func ask(t *testing.T, addr, request string) (*http.Response, string) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := io.WriteString(c, request); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatalf("%.60q: %v", request, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%.60q: %v", request, err)
	}
	return resp, string(body)
}

func TestWhatIsNoRequestIsAProblem(t *testing.T) {
	addr := serve(t)
	for name, tc := range map[string]struct {
		request string
		code    api.Code
	}{
		"percent":      {"GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n", api.CodeInvalid},
		"with-a-body":  {"POST /%zz HTTP/1.1\r\nHost: x\r\nContent-Length: 300000\r\n\r\n" + strings.Repeat("b", 300_000), api.CodeInvalid},
		"no-host":      {"GET / HTTP/1.1\r\n\r\n", api.CodeInvalid},
		"garbage":      {"hello\r\n\r\n", api.CodeInvalid},
		"long-header":  {"GET / HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("h", 20_000) + "\r\n\r\n", api.CodeTooLarge},
		"coding":       {"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: odd\r\n\r\n", api.CodeNotImplemented},
		"a-later-http": {"GET / HTTP/3.7\r\nHost: x\r\n\r\n", api.CodeInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			resp, body := ask(t, addr, tc.request)
			var p api.Error
			err := json.Unmarshal([]byte(body), &p)
			if err != nil || p.Code != tc.code || p.HTTP != resp.StatusCode || p.Code.Status() != resp.StatusCode || p.RequestID == "" || p.RequestID != resp.Header.Get("X-Request-Id") ||
				resp.Header.Get("Content-Type") != "application/problem+json" || p.Detail == "" {
				t.Errorf("answer = %d %v %s, want %s", resp.StatusCode, resp.Header, body, tc.code)
			}
		})
	}
	if resp, body := ask(t, addr, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); resp.StatusCode != 400 || body != "mine" {
		t.Errorf("a handler's answer = %d %q", resp.StatusCode, body)
	}
}
