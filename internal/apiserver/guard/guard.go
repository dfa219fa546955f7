// Package guard looks at a request before anything else does: is it meant for this server, and does it need a token?
//
// A Guard is safe for concurrent use.
package guard

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/dsec-io/dsec/api"
)

// Guard tells requests that are meant for us from those that a browser was tricked into sending: by a name that an
// attacker let point at us (Host), or by a foreign page (Origin). A number in the Host header can't have been rebound,
// so where the server listens on all addresses, every number is ours.
type Guard struct {
	hosts     map[string]bool
	anyNumber bool
}

// New makes a Guard of a server that listens on an address and is known by further host names.
func New(listen string, hosts []string) Guard {
	g := Guard{hosts: map[string]bool{"localhost": true, "127.0.0.1": true, "::1": true}}
	host := hostname(listen)
	if addr, err := netip.ParseAddr(host); host == "" || err == nil && addr.IsUnspecified() {
		g.anyNumber = true
	} else {
		g.hosts[host] = true
	}
	for _, h := range hosts {
		g.hosts[hostname(h)] = true
	}
	return g
}

// hostname is a Host header without its port and brackets, in lower case.
func hostname(hostport string) string {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

func (g Guard) ours(hostport string) bool {
	host := hostname(hostport)
	if g.hosts[host] {
		return true
	}
	_, err := netip.ParseAddr(host)
	return g.anyNumber && err == nil
}

// Check refuses a request whose Host or Origin isn't ours.
func (g Guard) Check(r *http.Request) *api.Error {
	if !g.ours(r.Host) {
		return api.FieldError(api.CodeForbidden, "Host", "call it by its address, or allow the name in the server's settings",
			"this server isn't known as %q", clip(r.Host))
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return nil
	}
	if u, err := url.Parse(origin); err != nil || u.Host == "" || !g.ours(u.Host) {
		return api.FieldError(api.CodeForbidden, "Origin", "", "pages of %q may not call this server", clip(origin))
	}
	return nil
}

// clip keeps what a client sent from filling an answer.
func clip(s string) string {
	const most = 80
	if len(s) > most {
		s = s[:most] + "…"
	}
	return strings.ToValidUTF8(s, "?")
}

// IsPublic tells whether a request needs no token: the health checks, what the interface is, and the metrics for somebody
// on this very machine, because a scraper there has no token and the labels name no sandbox and no project. A proxy on
// this machine makes others look local, so what was forwarded needs the token.
func IsPublic(r *http.Request) bool {
	switch r.URL.Path {
	case "/healthz", "/readyz", "/openapi.json", "/docs":
		return true
	case "/metrics":
		return isLocal(r)
	}
	return false
}

func isLocal(r *http.Request) bool {
	for _, h := range []string{"Forwarded", "X-Forwarded-For", "X-Real-Ip", "Via"} {
		if r.Header.Get(h) != "" {
			return false
		}
	}
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return false
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.IsLoopback()
}
