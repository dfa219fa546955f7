package ports_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/apiserver/ports"
)

// proxyTo is a server whose ports are served by program, which speaks the protocol of "port.dial" itself.
func proxyTo(t *testing.T, program func(context.Context, *aether.Stream) error) *httptest.Server {
	t.Helper()
	near, far := net.Pipe()
	served := make(chan struct{})
	go func() {
		defer close(served)
		conn, err := aether.Server(far, aether.Options{Name: "edge"})
		if err != nil {
			t.Error(err)
			return
		}
		_ = conn.Serve(context.Background(), func(ctx context.Context, st *aether.Stream) { // its end is the test's
			if err := program(ctx, st); err != nil {
				st.Reset(api.AsError(err))
			}
		})
	}()
	conn, err := aether.Client(near, aether.Options{Name: "apiserver"})
	if err != nil {
		t.Fatal(err)
	}
	p := ports.New(slog.New(slog.DiscardHandler))
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		to, ok := ports.Match(r)
		if !ok {
			http.NotFound(w, r)
			return
		}
		if err := p.Serve(w, r, ports.Request{Target: to, Open: conn.Open, RequestID: "r"}); err != nil {
			w.WriteHeader(api.AsError(err).Code.Status())
			fmt.Fprint(w, err)
		}
	}))
	t.Cleanup(func() {
		srv.Close()
		p.Close(time.Second)
		_ = conn.Close()
		<-served
	})
	return srv
}

// TestAnAnswerAfterTheProgramStoppedReading: what the client goes on sending is dropped, and the answer comes.
func TestAnAnswerAfterTheProgramStoppedReading(t *testing.T) {
	deaf, enough := make(chan struct{}), make(chan struct{})
	srv := proxyTo(t, func(ctx context.Context, st *aether.Stream) error {
		if err := st.Send(ctx, aether.MsgReply, nil); err != nil {
			return err
		}
		f, err := st.Recv(ctx) // the request's head
		if err != nil {
			return err
		}
		f.Release()
		ack := aether.Ack{Dropped: true}
		if err := st.Send(ctx, aether.MsgAck, ack.AppendTo(nil)); err != nil {
			return err
		}
		close(deaf)
		<-enough
		if err := st.Write(ctx, aether.Stdout, []byte("HTTP/1.1 413 No\r\nConnection: close\r\nContent-Length: 3\r\n\r\nno\n")); err != nil {
			return err
		}
		return st.CloseWrite(aether.Stdout)
	})
	body, more := io.Pipe()
	go func() {
		defer close(enough)
		_, _ = more.Write([]byte("begin"))
		<-deaf
		for range 200 {
			if _, err := more.Write(make([]byte, 1<<10)); err != nil {
				t.Errorf("the upload broke off: %v", err)
				return
			}
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, srv.URL+"/v1/sandboxes/s1/ports/80/x", body)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if got, err := io.ReadAll(resp.Body); resp.StatusCode != http.StatusRequestEntityTooLarge || string(got) != "no\n" || err != nil {
		t.Errorf("%s %q, %v", resp.Status, got, err)
	}
	_ = more.Close()
}

// says is a program that takes a request to its end and gives an answer; what it was asked comes on asked.
func says(answer string, asked chan<- string) func(context.Context, *aether.Stream) error {
	return func(ctx context.Context, st *aether.Stream) error {
		if err := st.Send(ctx, aether.MsgReply, nil); err != nil {
			return err
		}
		request := ""
		for !strings.Contains(request, "\r\n\r\n") || strings.Contains(request, "chunked") && !strings.Contains(request, "\r\n0\r\n") {
			f, err := st.Recv(ctx)
			if err != nil {
				return err
			}
			request += string(f.Data)
			f.Release()
		}
		asked <- request
		if err := st.Write(ctx, aether.Stdout, []byte(answer)); err != nil {
			return err
		}
		return st.CloseWrite(aether.Stdout)
	}
}

// TestStatusesThatAreNone: a status below 100 was no answer to the server, which then answered 200 without any of the
// headers that keep a program's page from the API's origin.
func TestStatusesThatAreNone(t *testing.T) {
	for _, status := range []string{"000", "001", "099"} {
		srv := proxyTo(t, says("HTTP/1.1 "+status+" X\r\nContent-Length: 27\r\n\r\n<script>alert(1)</script>  ", make(chan string, 1)))
		resp, err := http.Get(srv.URL + "/v1/sandboxes/s1/ports/80/x")
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusBadGateway || strings.Contains(string(got), "script") || err != nil {
			t.Errorf("status %s became %s %v %q, %v", status, resp.Status, resp.Header, got, err)
		}
	}
}

// TestTrailersHaveNoSecrets: what no program gets as a header it doesn't get as a trailer, announced or not.
func TestTrailersHaveNoSecrets(t *testing.T) {
	asked := make(chan string, 1)
	srv := proxyTo(t, says("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", asked))
	var d net.Dialer
	c, err := d.DialContext(t.Context(), "tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	fmt.Fprint(c, "POST /v1/sandboxes/s1/ports/80/x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nTrailer: Authorization, X-Fine\r\n\r\n"+
		"1\r\na\r\n0\r\nAuthorization: Bearer hunter2\r\nCookie: hunter2\r\nX-Dsec-Project: hunter2\r\nX-Fine: 1\r\n\r\n")
	if got := <-asked; strings.Contains(got, "hunter2") || strings.Contains(got, "Authorization") || !strings.Contains(got, "X-Fine: 1\r\n") {
		t.Errorf("the program was asked %q", got)
	}
}

func TestMatch(t *testing.T) {
	for path, want := range map[string][2]string{
		"/v1/sandboxes/s1/ports/80":                   {"s1", "80"},
		"/v1/sandboxes/s1/ports/80/":                  {"s1", "80"},
		"/v1/sandboxes/s1/ports/80//../../x/ports/81": {"s1", "80"},
		"/v1/sandboxes/s1/ports/%38%30/":              {"s1", "%38%30"}, // no number, so it is refused
		"/v1/sandboxes/a%2Fb/ports/80/":               {"a%2Fb", "80"},  // no id, so it is refused
		"/v1/sandboxes/s1/ports":                      {},
		"/v1/sandboxes/s1/ports/":                     {},
		"/v1/sandboxes/s1/%70orts/80/":                {},
		"/v1/sandboxes//s1/ports/80/":                 {},
		"//v1/sandboxes/s1/ports/80/":                 {},
		"/v1/sandboxes/s1/exec":                       {},
	} {
		r := httptest.NewRequest(http.MethodGet, "http://localhost"+path, nil)
		got, ok := ports.Match(r)
		if got.Sandbox != want[0] || got.Port != want[1] || ok != (want[0] != "") {
			t.Errorf("Match(%s) = %q, %q, %v", path, got.Sandbox, got.Port, ok)
		}
	}
}
