package ports

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/dsec-io/dsec/api"
)

// Target is what a request is for.
type Target struct {
	Sandbox string // as the path has it
	Port    string // as the path has it
	prefix  string // of the path, as it was sent: /v1/sandboxes/ID/ports/PORT
	rest    string // of the path, as it was sent
}

const (
	before  = "/v1/sandboxes/"
	between = "ports"
)

// Match tells whether a request is for a port, from its path as it was sent: what follows the port is the program's and
// may be anything, "//" and ".." too.
func Match(r *http.Request) (Target, bool) {
	whole := r.URL.EscapedPath()
	path, ok := strings.CutPrefix(whole, before)
	if !ok {
		return Target{}, false
	}
	id, path, _ := strings.Cut(path, "/")
	word, path, more := strings.Cut(path, "/")
	if word != between || !more || path == "" {
		return Target{}, false
	}
	port, _, _ := strings.Cut(path, "/")
	prefix := before + id + "/" + between + "/" + port
	return Target{Sandbox: id, Port: port, prefix: prefix, rest: whole[len(prefix):]}, true
}

// number is the port, written as numbers are.
func (t Target) number() (int, error) {
	n, err := strconv.ParseUint(t.Port, 10, 16)
	if err != nil || n == 0 || strconv.FormatUint(n, 10) != t.Port {
		return 0, api.FieldError(api.CodeInvalid, "port", "ports go from 1 to 65535", "%q isn't a port", clip(t.Port))
	}
	return int(n), nil
}

// path is the path that the program is asked for.
func (t Target) path() string {
	if t.rest == "" {
		return "/"
	}
	return t.rest
}

func clip(s string) string {
	const most = 80
	if len(s) > most {
		s = s[:most] + "…"
	}
	return strings.ToValidUTF8(s, "?")
}
