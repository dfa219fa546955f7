package apiserver

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/dsec-io/dsec/api"
)

// guard tells requests that are meant for us from those that a browser was tricked into sending: by a name that an
// attacker let point at us (Host), or by a foreign page (Origin). A number in the Host header can't have been rebound,
// so where the server listens on all addresses, every number is ours.
type guard struct {
	hosts     map[string]bool
	anyNumber bool
}

func newGuard(listen string, hosts []string) guard {
	g := guard{hosts: map[string]bool{"localhost": true, "127.0.0.1": true, "::1": true}}
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

func (g guard) ours(hostport string) bool {
	host := hostname(hostport)
	if g.hosts[host] {
		return true
	}
	_, err := netip.ParseAddr(host)
	return g.anyNumber && err == nil
}

func (g guard) check(r *http.Request) *api.Error {
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
