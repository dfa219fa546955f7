package apiserver

import (
	"net/http"
	"strings"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
)

const (
	headerKey      = "Idempotency-Key"
	headerReplayed = "Idempotency-Replayed"
)

// streamed lists the POST requests whose body is passed on as it comes, so that nobody can say whether another one is
// the same: they take no key.
func streamed(pattern string) bool {
	return pattern == "POST /v1/images" || strings.HasSuffix(pattern, "/processes/{pid}/stdin")
}

// kept tells whether the edge makes a repeated request of this pattern run once.
func kept(pattern string) bool {
	return strings.HasPrefix(pattern, "POST /v1/sandboxes") || pattern == "POST /v1/images/gc"
}

// takeKey reads a POST request's idempotency key. Where it can't be honoured it is refused: a caller that sends one would
// repeat a request in the belief that it runs once. Other methods don't need one: to repeat them is safe.
func (c *call) takeKey(r *http.Request) error {
	given := r.Header.Values(headerKey)
	if len(given) == 0 || r.Method != http.MethodPost {
		return nil
	}
	if len(given) > 1 {
		return api.FieldError(api.CodeInvalid, headerKey, "send one", "%d keys were sent", len(given))
	}
	if streamed(c.route) || !kept(c.route) {
		return api.FieldError(api.CodeUnsupportedConstraint, headerKey, "leave it out", "a repeated request of this kind can't be made to run once")
	}
	if err := api.CheckKey(given[0]); err != nil {
		return err
	}
	c.key = given[0]
	return nil
}

// isReplay takes the edge's word that the answer was given before to a request with the same key.
func (c *call) isReplay(f *aether.Frame) bool {
	if f.Channel != aether.Message || f.Type != aether.MsgReplayed {
		return false
	}
	c.Header()[headerReplayed] = []string{"true"}
	return true
}
