package libdsec

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether/tunnel"
)

const (
	defaultUserAgent = "libdsec-go"
	// maxProblem bounds what is read of an error body.
	maxProblem = 1 << 20
	// maxAnswer bounds a decoded answer; listings page well below it.
	maxAnswer = 64 << 20
	// sendTries is how often a request is tried whose failure proves that nothing ran.
	sendTries = 4
	// firstPause is the pause before the second try when the server names none; it doubles.
	firstPause = 50 * time.Millisecond
	// longestPause bounds how long a server may make a call wait between tries.
	longestPause = 2 * time.Second
)

// Client talks to one DSec API server. Make it with [New]; Close it to end its connection.
type Client struct {
	settings  Settings
	base      *url.URL
	http      *http.Client
	transport *http.Transport // the one we made; nil when the caller brought a client
	userAgent string
	project   string // to act in; "": the token's own
	link      *link
	dialer    tunnel.Dialer // of ports
}

// Option changes how a [Client] is made.
type Option func(*options)

type options struct {
	settings  Settings
	getenv    func(string) string
	client    *http.Client
	userAgent string
}

// WithEndpoint names the API server (http://HOST:PORT) and the token to show it.
func WithEndpoint(endpoint, token string) Option {
	return func(o *options) { o.settings = Settings{Endpoint: endpoint, Token: token, Source: "option"} }
}

// WithSettings uses settings that were found before, as [Resolve] returns them.
func WithSettings(s Settings) Option {
	return func(o *options) { o.settings = s }
}

// WithEnv makes settings come from this environment instead of the process's own.
func WithEnv(getenv func(string) string) Option {
	return func(o *options) { o.getenv = getenv }
}

// WithHTTPClient sends REST requests through c, whose Transport must leave connection upgrades (101) alone.
func WithHTTPClient(c *http.Client) Option {
	return func(o *options) { o.client = c }
}

// WithUserAgent sets the User-Agent header.
func WithUserAgent(ua string) Option {
	return func(o *options) { o.userAgent = ua }
}

// New makes a client. Without [WithEndpoint] or [WithSettings] the settings come from the environment and the user's
// current context, as [Resolve] says. New talks to nobody; a wrong token shows at the first call.
func New(opts ...Option) (*Client, error) {
	o := options{getenv: os.Getenv, userAgent: defaultUserAgent}
	for _, opt := range opts {
		opt(&o)
	}
	if o.settings.Endpoint == "" {
		s, err := Resolve(o.getenv, UserContexts(o.getenv))
		if err != nil {
			return nil, err
		}
		o.settings = s
	}
	base, err := url.Parse(strings.TrimRight(o.settings.Endpoint, "/"))
	if err != nil || (base.Scheme != "http" && base.Scheme != "https") || base.Host == "" {
		return nil, api.FieldError(api.CodeInvalid, "endpoint", "write http://HOST:PORT", "%q is not the address of an API server", o.settings.Endpoint)
	}
	c := &Client{settings: o.settings, base: base, http: o.client, userAgent: o.userAgent}
	if c.http == nil {
		c.transport = newTransport()
		c.http = &http.Client{Transport: c.transport, CheckRedirect: refuseRedirect}
	}
	c.link = &link{dial: c.upgrade}
	return c, nil
}

// newTransport speaks HTTP/1.1 only, because the Aether upgrade needs it. There's no time limit on an answer: a
// command may be silent for hours; the caller's context is the limit.
func newTransport() *http.Transport {
	t := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout: 10 * time.Second,
		MaxIdleConnsPerHost: 64,
		IdleConnTimeout:     30 * time.Second,
		DisableCompression:  true,
		Protocols:           new(http.Protocols),
	}
	t.Protocols.SetHTTP1(true)
	return t
}

// refuseRedirect keeps a token from following a redirect to somebody else.
func refuseRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// Settings are those the client uses.
func (c *Client) Settings() Settings { return c.settings }

// portGrace is how long a client that is closed waits for what was written to ports and not yet delivered.
const portGrace = 5 * time.Second

// Close ends the client's connections. Processes that aren't detached and are still being read fail.
func (c *Client) Close() error {
	c.dialer.Close(portGrace)
	err := c.link.close()
	if c.transport != nil {
		c.transport.CloseIdleConnections()
	}
	return err
}

// Healthy asks whether the server answers at all; no token is needed for it.
func (c *Client) Healthy(ctx context.Context) error {
	resp, err := c.send(ctx, http.MethodGet, "/healthz", nil)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// call sends body (nil: none) as JSON and decodes the answer into out (nil: ignored).
func (c *Client) call(ctx context.Context, method, path string, body, out any) error {
	var raw []byte
	if body != nil {
		var err error
		if raw, err = json.Marshal(body); err != nil {
			return api.Errorf(api.CodeInvalid, "encode request: %v", err)
		}
	}
	resp, err := c.send(ctx, method, path, raw)
	if err != nil {
		return err
	}
	defer resp.Body.Close() // a read error of what matters has been reported
	if out == nil {
		_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, maxAnswer))
	} else {
		err = json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(out)
	}
	if err != nil {
		return c.broken(ctx, method, path, err)
	}
	return nil
}

// send makes one request and gives back the response of a success; anything else is an error. A try whose failure
// proves that the server did nothing is followed by another.
func (c *Client) send(ctx context.Context, method, path string, body []byte) (*http.Response, error) {
	t := tries{method: method}
	for {
		req, err := c.request(ctx, method, path, body)
		if err != nil {
			return nil, err
		}
		resp, err := c.do(req)
		if err == nil {
			return resp, nil
		}
		if err := t.again(ctx, err); err != nil {
			return nil, err
		}
	}
}

// request makes a request with a JSON body; nil: none.
func (c *Client) request(ctx context.Context, method, path string, body []byte) (*http.Request, error) {
	var r io.Reader
	if body != nil {
		r = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base.String()+path, r)
	if err != nil {
		return nil, api.Errorf(api.CodeInvalid, "%v", err)
	}
	c.sign(req)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
		req.GetBody = nil // a POST is never repeated by the transport on its own
	}
	return req, nil
}

// do sends a request once.
func (c *Client) do(req *http.Request) (*http.Response, error) {
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.broken(req.Context(), req.Method, req.URL.RequestURI(), err)
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		defer resp.Body.Close() // only read from
		return nil, problem(resp)
	}
	return resp, nil
}

func (c *Client) sign(req *http.Request) {
	req.Header.Set("User-Agent", c.userAgent)
	if c.settings.Token != "" {
		req.Header.Set("Authorization", "Bearer "+c.settings.Token)
	}
	if c.project != "" {
		req.Header.Set(api.HeaderProject, c.project)
	}
}

// problem makes an error of a response that isn't a success.
func problem(resp *http.Response) error {
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxProblem))
	e := new(api.Error)
	if err != nil { // what was told is lost, as is all that would have come after a broken connection
		return api.Errorf(api.CodeUnavailable, "the server's answer %q was cut off: %v", resp.Status, err)
	}
	if json.Unmarshal(b, e) != nil || e.Code == "" {
		e = api.Errorf(codeOf(resp.StatusCode), "the server answered %s without a problem document", resp.Status)
		e.Hint = "is this the address of a DSec API server?"
	}
	e.HTTP = resp.StatusCode
	return e
}

// codeOf guesses a code for an answer that came from something other than DSec, such as a proxy on the way. Such an
// answer proves nothing about what ran, so it never becomes a code that does.
func codeOf(status int) api.Code {
	switch status {
	case http.StatusUnauthorized:
		return api.CodeUnauthenticated
	case http.StatusForbidden:
		return api.CodeForbidden
	case http.StatusNotFound:
		return api.CodeNotFound
	case http.StatusGatewayTimeout:
		return api.CodeTimeout
	case http.StatusRequestEntityTooLarge:
		return api.CodeTooLarge
	}
	return api.CodeInternal
}

// broken makes an error of a request that got no full answer. A failed dial proves that nothing was sent.
func (c *Client) broken(ctx context.Context, method, path string, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return fmt.Errorf("%s %s: %w", method, path, cause)
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		e := api.Errorf(api.CodeUnavailable, "no DSec server answers at %s: %v", c.settings.Endpoint, op.Err)
		e.Hint = "is `dsec dev` running? the address comes from: " + c.settings.Source
		return &unsentError{e}
	}
	if outer, ok := errors.AsType[*url.Error](err); ok {
		err = outer.Err // it names the method and the address once more
	}
	_, distrusted := errors.AsType[*tls.CertificateVerificationError](err)
	switch {
	case errors.Is(err, http.ErrSchemeMismatch):
		e := api.Errorf(api.CodeUnavailable, "the server at %s doesn't speak TLS", c.settings.Endpoint)
		e.Hint = "write http:// and not https://; the address comes from: " + c.settings.Source
		return &unsentError{e}
	case distrusted:
		return &unsentError{api.Errorf(api.CodeUnavailable, "the certificate of %s isn't trusted: %v", c.settings.Endpoint, err)}
	}
	e := api.Errorf(api.CodeUnavailable, "connection to %s lost: %v", c.settings.Endpoint, err)
	e.Hint = "it isn't known whether the request was carried out"
	return e
}

// unsentError marks a failure before anything was sent.
type unsentError struct{ e *api.Error }

func (u *unsentError) Error() string { return u.e.Error() }
func (u *unsentError) Unwrap() error { return u.e }

func isUnsent(err error) bool {
	_, unsent := errors.AsType[*unsentError](err)
	return unsent
}

// nothingRan tells whether err proves that the request had no effect, or that an effect doesn't matter because the
// method only reads.
func nothingRan(err error, method string) bool {
	if isUnsent(err) {
		return true
	}
	e, ok := errors.AsType[*api.Error](err)
	if !ok {
		return false
	}
	switch e.Code {
	case api.CodeNotStarted:
		return true
	case api.CodeUnavailable, api.CodeTooMany:
		// A refusal of the server says when to come back; a connection that broke doesn't, and then only a read is
		// harmless to repeat.
		return e.RetryMS > 0 || (method == http.MethodGet && e.Code == api.CodeUnavailable)
	default:
		return false
	}
}

// waitFor is the pause before the next try: what the server asked for, within reason, or ours.
func waitFor(err error, pause time.Duration) time.Duration {
	if e, ok := errors.AsType[*api.Error](err); ok && e.RetryMS > 0 {
		pause = time.Duration(e.RetryMS) * time.Millisecond
	}
	return min(pause, longestPause)
}

// rest waits, unless ctx ends first.
func rest(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// IsCode tells whether err is or wraps an [api.Error] with this code.
func IsCode(err error, code api.Code) bool { return api.IsCode(err, code) }
