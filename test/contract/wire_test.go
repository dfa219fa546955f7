package contract

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dsec-io/dsec/test/testbed"
)

// wire sends requests byte by byte: what no HTTP library would send is what this package is for.
type wire struct {
	addr string
	conn net.Conn
	r    *bufio.Reader
}

func newWire(n *testbed.Node) *wire {
	u, err := url.Parse(n.Endpoint)
	if err != nil {
		panic(err) // the node has just printed it
	}
	return &wire{addr: u.Host}
}

func (w *wire) close() {
	if w.conn != nil {
		_ = w.conn.Close()
		w.conn = nil
	}
}

// call is one request. A live one may be answered without an end: what comes in a short time is looked at.
type call struct {
	method, target string
	headers        []string // "Name: value", as they are sent
	body           []byte
	live           bool
}

func (c *call) String() string {
	body := c.body
	if len(body) > 800 {
		body = slices.Concat(body[:800], fmt.Appendf(nil, "… (%d bytes)", len(c.body)))
	}
	return fmt.Sprintf("%s %s\n%s\n%q", c.method, c.target, strings.Join(c.headers, "\n"), body)
}

func (c *call) bytes(host string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: %s\r\n", c.method, c.target, host)
	for _, h := range c.headers {
		b.WriteString(h + "\r\n")
	}
	if len(c.body) > 0 || c.method == http.MethodPost || c.method == http.MethodPut || c.method == http.MethodPatch {
		b.WriteString("Content-Length: " + strconv.Itoa(len(c.body)) + "\r\n")
	}
	b.WriteString("\r\n")
	b.Write(c.body)
	return b.Bytes()
}

const (
	answerTime = 60 * time.Second       // to answer: a hang detector
	liveTime   = 100 * time.Millisecond // how long an answer without an end is listened to
)

// do sends a request and reads its answer. A connection that the server has closed in the meantime is made anew.
func (w *wire) do(c *call) (*answer, error) {
	fresh := w.conn == nil
	a, err := w.try(c)
	if err != nil && !fresh && !errors.Is(err, os.ErrDeadlineExceeded) {
		w.close()
		a, err = w.try(c)
	}
	if err != nil || a.cut || a.status == http.StatusSwitchingProtocols {
		w.close()
	}
	return a, err
}

func (w *wire) try(c *call) (*answer, error) {
	if w.conn == nil {
		conn, err := net.Dial("tcp", w.addr)
		if err != nil {
			return nil, err
		}
		w.conn, w.r = conn, bufio.NewReader(conn)
	}
	_ = w.conn.SetDeadline(time.Now().Add(answerTime))
	sent := make(chan error, 1) // a body that is refused halfway isn't taken
	go func(conn net.Conn) {
		_, err := conn.Write(c.bytes(w.addr))
		sent <- err
	}(w.conn)
	a, err := w.read(c)
	if err != nil || a.status >= 400 {
		// The server may have said no before it had all: what is left to send then is nobody's.
		select {
		case <-sent:
		default:
			w.close()
			<-sent
		}
		return a, err
	}
	return a, <-sent
}

func (w *wire) read(c *call) (*answer, error) {
	resp, err := http.ReadResponse(w.r, &http.Request{Method: c.method})
	if err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	defer resp.Body.Close()
	a := &answer{status: resp.StatusCode, header: resp.Header}
	if a.status == http.StatusSwitchingProtocols {
		return a, nil
	}
	live := c.live && a.status < 300 && resp.ContentLength < 0
	if live {
		_ = w.conn.SetReadDeadline(time.Now().Add(liveTime))
	}
	a.body, err = io.ReadAll(io.LimitReader(resp.Body, 32<<20))
	// Content that can't be finished is broken off, as the document says.
	broken := errors.Is(err, io.ErrUnexpectedEOF) && strings.Contains(c.target, "/files?") && c.method == http.MethodGet
	if broken || live && errors.Is(err, os.ErrDeadlineExceeded) {
		a.cut = true
		return a, nil
	}
	if resp.Close {
		w.close()
	}
	if err != nil {
		return a, fmt.Errorf("read the body of a %d: %w", a.status, err)
	}
	return a, nil
}
