package apiserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/apiserver/iamface"
	"github.com/dsec-io/dsec/internal/budget"
	"github.com/dsec-io/dsec/internal/iam"
)

// Keys of log attributes.
const (
	keyRequest  = "request_id"
	keyRoute    = "route"
	keyStatus   = "status"
	keyDuration = "duration_ms"
	keySandbox  = "sandbox"
	keyProject  = "project"
	keyCode     = "code"
	keyErr      = "err"
)

const (
	headerRequestID  = "X-Request-Id"
	maxRequestID     = 128
	statusClientGone = 499 // for logs and metrics: nobody was there to be answered
)

// call is one request on its way: the response writer that handlers write to, and what is known of the request. It
// belongs to the request's goroutine.
type call struct {
	http.ResponseWriter
	server    *Server
	principal iam.Principal
	public    bool         // it needs no principal
	need      iamface.Need // what the route demands
	id        string       // request id
	client    string       // where it comes from
	key       string       // idempotency key; "": none
	route     string       // the pattern that matched; "" until then
	started   time.Time
	head      bool   // nobody waits for a body
	status    int    // what was sent; 0: nothing yet
	code      string // of the problem sent, for metrics and the log
	after     func() // what is left to do once the answer was sent; nil: nothing

	place *budget.Hold // among the requests that are open; nil: none is needed
	hold  *budget.Hold // the memory of its large buffers; nil: none
}

// handler is a route's handler. A returned error becomes a problem document, if nothing was sent before.
type handler func(c *call, r *http.Request) error

// handle registers a handler under a pattern, with what the pattern demands and its metrics.
func (s *Server) handle(pattern string, h handler) {
	need, _ := s.face.Need(pattern) // one that isn't known is allowed to nobody
	s.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		c := w.(*call) // ServeHTTP passes nothing else
		c.route = pattern
		defer func() {
			if c.after != nil {
				_ = http.NewResponseController(c.ResponseWriter).Flush() // the client has gone
				c.after()
			}
		}()
		err := c.allow(need)
		if err == nil {
			err = c.takeKey(r)
		}
		if err == nil {
			err = h(c, r)
		}
		if err != nil {
			c.fail(r, err)
		}
	})
}

func (c *call) begin(r *http.Request) {
	c.started, c.head = time.Now(), r.Method == http.MethodHead
	c.client = r.RemoteAddr
	c.id = requestID(r.Header.Get(headerRequestID))
	c.Header()[headerRequestID] = []string{c.id}
}

// requestID takes the caller's id if it can't do harm in a log or header, else makes one.
func requestID(given string) string {
	ok := given != "" && len(given) <= maxRequestID
	for i := 0; ok && i < len(given); i++ {
		b := given[i]
		ok = '0' <= b && b <= '9' || 'a' <= b|0x20 && b|0x20 <= 'z' || strings.IndexByte("-_.:/+=", b) >= 0
	}
	if ok {
		return given
	}
	return strconv.FormatUint(rand.Uint64()|1<<63, 36) //nolint:gosec // an id for finding things again, not a secret
}

// end counts and logs the request. A handler that panicked ends its own request and nothing else.
func (c *call) end(r *http.Request) {
	for _, h := range [...]*budget.Hold{c.hold, c.place} {
		if h != nil {
			h.Close()
		}
	}
	if v := recover(); v != nil {
		if v == http.ErrAbortHandler { //nolint:errorlint // it is a value, not a chain
			panic(v)
		}
		c.server.log.LogAttrs(r.Context(), slog.LevelError, "handler panicked",
			slog.String(keyRequest, c.id), slog.Any(keyErr, v), slog.String("stack", string(debug.Stack())))
		if c.status != 0 {
			panic(http.ErrAbortHandler) // half an answer must not look like a whole one
		}
		c.problem(api.Errorf(api.CodeInternal, "the server has a bug; its log has the details"))
	}
	took := time.Since(c.started)
	if c.status == 0 {
		c.status = statusClientGone
	}
	c.server.metrics.Observe(c.route, c.status, took)
	c.record(r)
	level := slog.LevelInfo
	switch {
	case c.status >= http.StatusInternalServerError:
		level = slog.LevelWarn
	case c.route == "GET /healthz", c.route == "GET /readyz", c.route == "GET /metrics":
		level = slog.LevelDebug // asked by machines, all the time
	}
	if !c.server.log.Enabled(r.Context(), level) {
		return
	}
	attrs := [8]slog.Attr{
		slog.String(keyRequest, c.id), slog.String("method", r.Method), slog.String(keyRoute, c.route), slog.Int(keyStatus, c.status),
		slog.Float64(keyDuration, float64(took.Microseconds())/1e3),
	}
	n := 5
	for _, a := range [...]slog.Attr{
		slog.String(keySandbox, sandboxOf(c.route, r)), slog.String(keyProject, c.principal.Project), slog.String(keyCode, c.code),
	} {
		if a.Value.String() != "" {
			attrs[n] = a
			n++
		}
	}
	c.server.log.LogAttrs(r.Context(), level, "request", attrs[:n]...)
}

// sandboxOf is the sandbox that a request is about.
func sandboxOf(route string, r *http.Request) string {
	if !strings.Contains(route, "/v1/sandboxes/{id}") {
		return ""
	}
	return iam.Redact(r.PathValue("id"))
}

// Unwrap lets [http.ResponseController] reach the connection.
func (c *call) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// WriteHeader remembers the status.
func (c *call) WriteHeader(status int) {
	if c.status == 0 {
		c.status = status
	}
	c.ResponseWriter.WriteHeader(status)
}

// Write implements [http.ResponseWriter].
func (c *call) Write(p []byte) (int, error) {
	if c.status == 0 {
		c.status = http.StatusOK
	}
	return c.ResponseWriter.Write(p) //nolint:gosec // a tenant's bytes go out with nosniff and a sandbox policy, see fileCall.head
}

// fail ends the request with err. What can't be told any more because an answer is under way breaks the connection, so
// that the client doesn't take half of it for the whole.
func (c *call) fail(r *http.Request, err error) {
	if ours, ok := errors.AsType[*api.Error](context.Cause(r.Context())); ok {
		err = ours // the client is there: it was we who ended the request, because its token isn't valid any more
	} else if r.Context().Err() != nil && c.status == 0 {
		c.status = statusClientGone
		return
	}
	e := asProblem(err)
	if c.status != 0 {
		c.code = string(e.Code)
		c.server.log.LogAttrs(r.Context(), slog.LevelWarn, "answer broken off",
			slog.String(keyRequest, c.id), slog.String(keyRoute, c.route), slog.Any(keyErr, err))
		_ = http.NewResponseController(c.ResponseWriter).Flush() // what there is shows that it is broken off; else nothing might have been sent
		panic(http.ErrAbortHandler)
	}
	c.problem(e)
}

// problem sends a problem document.
func (c *call) problem(e *api.Error) {
	own := *e
	doc := own.Complete()
	doc.RequestID = c.id
	c.code = string(doc.Code)
	body, err := json.Marshal(doc)
	if err != nil {
		body = []byte(`{"code":"internal","detail":"the error can't be told"}`)
	}
	h := c.Header()
	h.Set("Content-Type", "application/problem+json")
	if doc.RetryMS > 0 {
		h.Set("Retry-After", strconv.FormatInt((doc.RetryMS+999)/1000, 10))
	}
	c.send(doc.HTTP, append(body, '\n'))
}

// json sends a value.
func (c *call) json(status int, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	c.Header().Set("Content-Type", "application/json")
	c.send(status, append(body, '\n'))
	return nil
}

// raw sends JSON that is encoded already.
func (c *call) raw(status int, body []byte) error {
	c.Header().Set("Content-Type", "application/json")
	if !bytes.HasSuffix(body, []byte{'\n'}) {
		body = append(slices.Clip(body), '\n')
	}
	c.send(status, body)
	return nil
}

// send sends a whole answer. The time it may take grows with its size, so that a client which doesn't read can't keep it
// in memory for ever.
func (c *call) send(status int, body []byte) {
	h := c.Header()
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	h["X-Content-Type-Options"] = []string{"nosniff"}
	c.within(len(body))
	c.WriteHeader(status)
	_, _ = c.Write(body) // the client has gone: nobody to tell
}

// within limits the time that sending an answer of n bytes may take.
func (c *call) within(n int) {
	if n > smallAnswer {
		limit := answerTime + time.Duration(n/slowestClient)*time.Second
		_ = http.NewResponseController(c.ResponseWriter).SetWriteDeadline(time.Now().Add(limit)) // not supported: no limit
	}
}

// Bounds on sending a whole answer.
const (
	smallAnswer   = 64 << 10 // fits a socket buffer, so sending it never waits
	answerTime    = 30 * time.Second
	slowestClient = 64 << 10 // bytes per second
)

// allow decides whether the request may do what its route demands.
func (c *call) allow(need iamface.Need) error {
	c.need = need
	if c.public {
		return nil
	}
	return need.Allow(c.principal)
}

// record hands the request to the audit log.
func (c *call) record(r *http.Request) {
	code := c.code
	if code == "" && c.status >= http.StatusBadRequest {
		code = strconv.Itoa(c.status)
	}
	c.server.face.Record(iamface.Ended{
		Need: c.need, Principal: c.principal, RequestID: c.id, Client: c.client, Code: code,
		Resource: func() string { return iamface.Resource(r, c.Header()) },
	})
}

// unaryTime bounds a question to the edge, which itself waits up to 30 s for a short state to pass.
const unaryTime = 45 * time.Second

// bounded is the request's context with a limit.
func bounded(r *http.Request, limit time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(r.Context(), limit, api.Errorf(api.CodeTimeout, "no answer from the edge within %s", limit))
}
