package ports

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// ForwardAuthorization is the request header whose value a program gets as its Authorization: that header itself carries
// the API's token, which no program ever sees.
const ForwardAuthorization = "X-Forward-Authorization"

// ours is the beginning of headers between clients and DSec.
const ours = "X-Dsec-"

// secrets are request headers that no program gets.
func secrets() []string {
	return []string{"Authorization", "Cookie", ForwardAuthorization, "Proxy-Authorization", "X-Real-Ip", "X-Forwarded-Prefix", "X-Forwarded-Port", "X-Forwarded-Server", "Via"}
}

// sweeping are response headers that a browser would apply to the whole origin, which is the API's, or that are the API's.
func sweeping() []string {
	return []string{
		"Set-Cookie", "Set-Cookie2", "Service-Worker-Allowed", "Clear-Site-Data", "Strict-Transport-Security", "Alt-Svc",
		"Public-Key-Pins", "Public-Key-Pins-Report-Only", "Expect-Ct", "Nel", "Report-To", "Reporting-Endpoints",
		"Origin-Agent-Cluster", "Accept-Ch", "Critical-Ch", "Origin-Trial", "Observe-Browsing-Topics", "Attribution-Reporting-Register-Source",
		"Attribution-Reporting-Register-Trigger", "Set-Login", "Sourcemap", "Supports-Loading-Mode", "Use-As-Dictionary",
		"Speculation-Rules", "Activate-Storage-Access", "X-Request-Id",
	}
}

// drop removes headers by name, and those between clients and DSec.
func drop(h http.Header, names []string) {
	for _, name := range names {
		h.Del(name)
	}
	for name := range h {
		if len(name) >= len(ours) && strings.EqualFold(name[:len(ours)], ours) {
			delete(h, name)
		}
	}
}

// outward makes an answer's headers fit for the API's origin.
func (x *exchange) outward(h http.Header) {
	drop(h, sweeping())
	h.Add("Content-Security-Policy", "sandbox") // beside the program's own: both apply
	h.Set("X-Content-Type-Options", "nosniff")
	for _, name := range []string{"Location", "Content-Location"} {
		if v := h.Get(name); v != "" {
			h.Set(name, x.relocate(v))
		}
	}
}

// relocate turns a place that the program names into the one where a client finds it. Places elsewhere stay.
func (x *exchange) relocate(place string) string {
	u, err := url.Parse(place)
	if err != nil {
		return place
	}
	if u.Host == "" {
		if u.Scheme != "" || !strings.HasPrefix(place, "/") {
			return place // mailto:, or relative to the path that was asked for
		}
		return x.target.prefix + place
	}
	if u.Scheme != "" && u.Scheme != "http" {
		return place
	}
	inside := x.isInside(u)
	if !inside && !strings.EqualFold(u.Host, x.outside) {
		return place
	}
	rest := u.EscapedPath()
	if !strings.HasPrefix(rest, "/") {
		rest = "/" + rest
	}
	if inside || !strings.HasPrefix(rest+"/", x.target.prefix+"/") {
		rest = x.target.prefix + rest
	}
	if u.RawQuery != "" || u.ForceQuery {
		rest += "?" + u.RawQuery
	}
	if f := u.EscapedFragment(); f != "" {
		rest += "#" + f
	}
	return rest
}

// isInside tells whether a URL means the very port, as a program in the sandbox would name it.
func (x *exchange) isInside(u *url.URL) bool {
	port := u.Port()
	if port == "" {
		port = "80"
	}
	switch strings.ToLower(u.Hostname()) {
	case "localhost", "127.0.0.1", "::1", "0.0.0.0":
		return port == strconv.Itoa(x.port)
	}
	return false
}

// inward is the Referer as the program may see it: within itself, or none.
func (x *exchange) inward(referer string) string {
	u, err := url.Parse(referer)
	if err != nil || !strings.EqualFold(u.Host, x.outside) {
		return ""
	}
	rest, ok := strings.CutPrefix(u.EscapedPath(), x.target.prefix)
	if !ok || rest != "" && rest[0] != '/' {
		return ""
	}
	if u.RawQuery != "" {
		rest += "?" + u.RawQuery
	}
	return "http://" + x.inside + rest
}
