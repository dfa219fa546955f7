package registry

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/dsec-io/dsec/internal/image/reference"
)

const (
	firstPause = 200 * time.Millisecond
	lastPause  = 20 * time.Second
	maxBusy    = 10 // times that a registry may say that it's busy before it is believed
	maxBroken  = 3  // times that a request may fail otherwise
	maxDrain   = 64 << 10
)

// errPlain says that a request would have gone over the network in the clear.
var errPlain = errors.New("plain HTTP isn't spoken with a host that isn't this machine")

// polite makes requests again that may succeed later, no earlier than the registry has asked for, and all of a pull
// together: while one waits, none is made.
type polite struct {
	next     http.RoundTripper
	insecure bool
	stall    time.Duration // after which an answer that brings nothing is given up

	mu        sync.Mutex // guards the rest
	notBefore time.Time
	patience  time.Duration // left to wait for a busy registry
	asked     time.Duration // what it has asked for last
}

// askedFor is how long the registry has last asked to be left alone.
func (p *polite) askedFor() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asked
}

// RoundTrip implements [http.RoundTripper].
func (p *polite) RoundTrip(first *http.Request) (*http.Response, error) {
	if first.URL.Scheme != "https" && !p.insecure && !reference.Loopback(first.URL.Host) {
		return nil, errPlain
	}
	ctx := first.Context()
	for try := 0; ; try++ {
		if err := p.hold(ctx); err != nil {
			return nil, err
		}
		own, cancel := context.WithCancelCause(ctx)
		req := first.Clone(own)
		req.Header.Set("User-Agent", "dsec")
		if try > 0 && first.GetBody != nil {
			var err error
			if req.Body, err = first.GetBody(); err != nil {
				cancel(nil)
				return nil, err
			}
		}
		resp, err := p.next.RoundTrip(req)
		if err != nil {
			cancel(nil)
		} else {
			resp.Body = watch(own, cancel, resp, p.stall)
		}
		pause, again := p.judge(first, resp, err, try)
		if !again {
			return resp, err
		}
		if resp != nil {
			_, _ = io.CopyN(io.Discard, resp.Body, maxDrain) // so that the connection can be used again
			resp.Body.Close()
		}
		p.wait(pause)
	}
}

// hold waits until requests may be made.
func (p *polite) hold(ctx context.Context) error {
	for {
		p.mu.Lock()
		d := time.Until(p.notBefore)
		p.mu.Unlock()
		if d <= 0 {
			return nil
		}
		timer := time.NewTimer(d)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
	}
}

// wait lets no request be made for a while.
func (p *polite) wait(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	until := time.Now().Add(d)
	if until.After(p.notBefore) {
		p.patience -= d // those who wait at the same time wait once
		p.notBefore = until
	}
}

// judge tells whether a request is to be made again, and after what pause.
func (p *polite) judge(req *http.Request, resp *http.Response, err error, try int) (time.Duration, bool) {
	repeatable := req.Body == nil || req.Body == http.NoBody || req.GetBody != nil
	reads := req.Method == http.MethodGet || req.Method == http.MethodHead
	pause := min(firstPause<<min(try, 10), lastPause)
	pause = pause/2 + rand.N(pause) //nolint:gosec // spreads requests, hides nothing
	switch {
	case req.Context().Err() != nil || !repeatable:
		return 0, false
	case err != nil:
		return pause, reads && try+1 < maxBroken && !lasting(err)
	case resp.StatusCode == http.StatusTooManyRequests, resp.StatusCode == http.StatusServiceUnavailable:
		p.mu.Lock()
		defer p.mu.Unlock()
		p.asked = retryAfter(resp.Header)
		pause = max(pause, p.asked)
		return pause, try+1 < maxBusy && pause <= p.patience
	case resp.StatusCode >= 500 && resp.StatusCode != http.StatusNotImplemented:
		return pause, reads && try+1 < maxBroken
	}
	return 0, false
}

// lasting tells whether an error would be the same the next time.
func lasting(err error) bool {
	var dns *net.DNSError
	var header tls.RecordHeaderError
	var authority x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	return errors.Is(err, errAddress) || errors.Is(err, errPlain) || errors.Is(err, http.ErrSchemeMismatch) ||
		errors.As(err, &dns) && dns.IsNotFound || errors.As(err, &header) ||
		errors.As(err, &authority) || errors.As(err, &name) || errors.As(err, &invalid)
}

// retryAfter is how long a registry asks to be left alone; 0 where it doesn't say.
func retryAfter(h http.Header) time.Duration {
	v := h.Get("Retry-After")
	if s, err := strconv.ParseUint(v, 10, 31); err == nil {
		return time.Duration(s) * time.Second
	}
	if t, err := http.ParseTime(v); err == nil {
		return max(time.Until(t), 0)
	}
	return 0
}
