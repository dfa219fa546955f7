// Package refusal gives the shape of the API's errors to what the HTTP library refuses on its own: what it takes for no
// request at all never comes to a handler, and is answered by a line of text.
//
// A [Listener] hands out connections that know these answers as they are written and send a problem document in their
// place. Everything else goes through untouched. The answer is seen by a client that is still sending: what it sends is
// taken for a short while, because a connection that is closed before is reset, and the answer with it.
package refusal

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"time"

	"github.com/dsec-io/dsec/api"
)

// Listener is a listener whose connections refuse as the API does.
type Listener struct{ net.Listener }

// Accept implements [net.Listener].
func (l Listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &conn{c}, nil
}

// conn is one of its connections.
type conn struct{ net.Conn }

// What the library's own answers consist of; nothing that a handler answers looks so, because it has a request id.
const (
	statusLine = "HTTP/1.1 "
	headers    = "\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n"
	longest    = 512
)

// Bounds on what a refused client is listened to.
const (
	lingerTime  = 500 * time.Millisecond
	lingerBytes = 4 << 20
)

// Write implements [net.Conn].
func (c *conn) Write(p []byte) (int, error) {
	status, detail, ok := own(p)
	if !ok {
		return c.Conn.Write(p)
	}
	if _, err := c.Conn.Write(answer(status, detail)); err != nil {
		return 0, err
	}
	if c.CloseWrite() == nil {
		_ = c.SetReadDeadline(time.Now().Add(lingerTime)) // as what follows, for the client's sake only
		_, _ = io.CopyN(io.Discard, c.Conn, lingerBytes)
	}
	return len(p), nil
}

// CloseWrite ends what this side sends, as that of [net.TCPConn].
func (c *conn) CloseWrite() error {
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok {
		return errors.ErrUnsupported
	}
	return half.CloseWrite()
}

// own recognises an answer of the library's.
func own(p []byte) (status int, detail string, ok bool) {
	if len(p) > longest || !bytes.HasPrefix(p, []byte(statusLine+"4")) && !bytes.HasPrefix(p, []byte(statusLine+"5")) {
		return 0, "", false
	}
	line := bytes.Index(p, []byte("\r\n"))
	if line < len(statusLine)+3 || !bytes.HasPrefix(p[line:], []byte(headers)) {
		return 0, "", false
	}
	status, err := strconv.Atoi(string(p[len(statusLine) : len(statusLine)+3]))
	return status, string(p[line+len(headers):]), err == nil
}

// answer is the problem document in its place. A status that no code of ours has becomes the nearest one that has.
func answer(status int, detail string) []byte {
	code := api.CodeInvalid
	switch status {
	case 431:
		code = api.CodeTooLarge
	case 501:
		code = api.CodeNotImplemented
	}
	e := api.Errorf(code, "that is no request: %s", detail)
	e.RequestID = strconv.FormatUint(rand.Uint64()|1<<63, 36) //nolint:gosec // an id for finding things again, not a secret
	body, err := json.Marshal(e)
	if err != nil {
		body = []byte(`{}`) // a struct of plain fields always encodes
	}
	body = append(body, '\n')
	out := []byte(statusLine + strconv.Itoa(e.HTTP) + " " + e.Title + "\r\nContent-Type: application/problem+json\r\nX-Content-Type-Options: nosniff\r\nX-Request-Id: " +
		e.RequestID + "\r\nConnection: close\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n")
	return append(out, body...)
}
