package registry

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/image/reference"
)

func TestNearness(t *testing.T) {
	for addr, want := range map[string]nearness{
		"192.0.2.1": public, "2001:db8::1": public, "10.1.2.3": private, "172.16.0.1": private, "192.168.1.1": private, "100.64.0.1": private,
		"fd00::1": private, "127.0.0.1": local, "127.1.2.3": local, "::1": local, "::ffff:127.0.0.1": local, "::ffff:10.0.0.1": private,
		"169.254.169.254": never, "fe80::1": never, "0.0.0.0": never, "::": never, "224.0.0.1": never, "::ffff:169.254.169.254": never,
		"64:ff9b::7f00:1": local, "64:ff9b::a9fe:a9fe": never, "64:ff9b::a00:1": private, "64:ff9b::c000:201": public,
		"fd00:ec2::254": never, "100.100.100.200": never, "168.63.129.16": never,
	} {
		if got := near(netip.MustParseAddr(addr)); got != want {
			t.Errorf("near(%s) = %d, want %d", addr, got, want)
		}
	}
}

// TestDial connects to what a registry may send us to, and to nothing that is nearer than the registry.
func TestDial(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	here := ln.Addr().String()
	_, port, _ := net.SplitHostPort(here)
	for name, tc := range map[string]struct {
		registry string
		loopback bool
		seen     nearness
		dial     string
		ok       bool
	}{
		"a registry on this machine":           {here, true, unknown, here, true},
		"a name that means this machine":       {"localhost:" + port, false, unknown, "localhost:" + port, false},
		"from a public registry to here":       {"registry.example.com:443", false, public, here, false},
		"from a private registry to here":      {"registry.example.com:443", false, private, here, false},
		"before the registry was reached":      {"registry.example.com:443", false, unknown, here, false},
		"from here to here":                    {"127.0.0.1:1", true, local, here, true},
		"from here to link-local":              {"127.0.0.1:1", true, local, "169.254.169.254:80", false},
		"a registry that is link-local itself": {"169.254.169.254:80", false, unknown, "169.254.169.254:80", false},
	} {
		n := &network{registry: []string{tc.registry}, loopback: tc.loopback}
		n.seen.Store(int32(tc.seen))
		c, err := n.dial(t.Context(), "tcp", tc.dial)
		if err == nil {
			c.Close()
		}
		if (err == nil) != tc.ok || err != nil && !errors.Is(err, errAddress) {
			t.Errorf("%s: %v", name, err)
		}
	}
	n := &network{registry: []string{here}, loopback: true}
	for _, at := range []nearness{private, local, public, local} {
		n.saw(at)
	}
	if got := nearness(n.seen.Load()); got != public {
		t.Errorf("the farthest address that was seen is %d", got)
	}
}

// TestPlainHTTP makes no request in the clear but to this machine, unless that was asked for.
func TestPlainHTTP(t *testing.T) {
	asked := 0
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked++ }))
	defer srv.Close()
	to := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", srv.Listener.Addr().String())
	}}
	defer to.CloseIdleConnections()
	for _, insecure := range []bool{false, true} {
		p := &polite{next: to, insecure: insecure}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://registry.example.com/v2/", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := p.RoundTrip(req)
		if err == nil {
			resp.Body.Close()
		}
		if insecure != (err == nil) || err != nil && !errors.Is(err, errPlain) {
			t.Errorf("insecure %v: %v", insecure, err)
		}
	}
	if asked != 1 {
		t.Errorf("%d requests", asked)
	}
}

// TestBusyForAll asks once more while another request waits for a busy registry: it waits as well.
func TestBusyForAll(t *testing.T) {
	var mu sync.Mutex
	var until time.Time
	early := 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if until.IsZero() {
			until = time.Now().Add(time.Second)
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
		} else if time.Now().Before(until) {
			early++
		}
	}))
	defer srv.Close()
	next := &http.Transport{}
	defer next.CloseIdleConnections()
	p := &polite{next: next, patience: time.Minute}
	ask := func() {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, srv.URL, nil)
		if err != nil {
			t.Error(err)
			return
		}
		resp, err := p.RoundTrip(req)
		if err != nil {
			t.Error(err)
			return
		}
		resp.Body.Close()
	}
	var wg sync.WaitGroup
	wg.Go(ask)
	for waits := false; !waits; runtime.Gosched() {
		p.mu.Lock()
		waits = !p.notBefore.IsZero()
		p.mu.Unlock()
	}
	ask()
	wg.Wait()
	if early > 0 {
		t.Errorf("%d requests came early", early)
	}
}

func TestRetryAfterHeader(t *testing.T) {
	for v, want := range map[string]time.Duration{"": 0, "7": 7 * time.Second, "-1": 0, "x": 0, "99999999999": 0, "Thu, 01 Jan 1970 00:00:00 GMT": 0} {
		if got := retryAfter(http.Header{"Retry-After": {v}}); got != want {
			t.Errorf("Retry-After %q is %v, want %v", v, got, want)
		}
	}
	soon := time.Now().Add(time.Hour).UTC().Format(http.TimeFormat)
	if got := retryAfter(http.Header{"Retry-After": {soon}}); got < 50*time.Minute || got > time.Hour {
		t.Errorf("Retry-After %q is %v", soon, got)
	}
}

// TestExplainTellsNoAddress is of errors of net/http, which hold the whole address.
func TestExplainTellsNoAddress(t *testing.T) {
	s := &session{ref: reference.Reference{Host: "registry.example.com", Repository: "a"}, polite: &polite{}}
	resp, err := (&http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		return nil, errors.New("no way there")
	}}}).Get("https://cdn.example.com/x?signature=abc")
	if err == nil {
		resp.Body.Close()
		t.Fatal("an answer")
	}
	if got := s.explain(err, ""); strings.Contains(got.Error(), "signature") || !api.IsCode(got, api.CodeUnavailable) {
		t.Errorf("told: %v", got)
	}
}
