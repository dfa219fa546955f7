package apiserver

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/dsec-io/dsec/api"
)

// params are a request's query parameters, checked as strictly as a body: each is known and, but for label, given once.
type params struct {
	values url.Values
}

func query(r *http.Request, known ...string) (params, error) {
	if r.URL.RawQuery == "" {
		return params{}, nil
	}
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return params{}, api.FieldError(api.CodeInvalid, "query", "", "the query string can't be read: %v", err)
	}
	for name, v := range values {
		switch {
		case !slices.Contains(known, name):
			hint := "this route takes none"
			if len(known) > 0 {
				hint = "this route takes " + strings.Join(known, ", ")
			}
			return params{}, api.FieldError(api.CodeUnknownField, clip(name), hint, "there is no such query parameter here")
		case len(v) > 1 && name != "label":
			return params{}, api.FieldError(api.CodeInvalid, name, "", "it is given %d times", len(v))
		}
	}
	return params{values}, nil
}

func (p params) text(name string) string { return p.values.Get(name) }

// flag is true for 1 and true, false for 0, false and when absent. A name alone (?follow) means true.
func (p params) flag(name string) (bool, error) {
	if !p.values.Has(name) {
		return false, nil
	}
	switch v := p.values.Get(name); v {
	case "", "1", "true":
		return true, nil
	case "0", "false":
		return false, nil
	default:
		return false, api.FieldError(api.CodeInvalid, name, "give 1 or 0", "%q is neither", clip(v))
	}
}

// number is absent's value when absent, else between low and high.
func (p params) number(name string, absent, low, high int64) (int64, error) {
	if !p.values.Has(name) {
		return absent, nil
	}
	n, err := strconv.ParseInt(p.values.Get(name), 10, 64)
	if err != nil || n < low || n > high {
		return 0, api.FieldError(api.CodeInvalid, name, "", "%q isn't a number between %d and %d", clip(p.values.Get(name)), low, high)
	}
	return n, nil
}

// sandboxID is the id in the path. What can't be an id is no sandbox, and isn't passed on.
func sandboxID(r *http.Request) (string, error) {
	id := r.PathValue("id")
	ok := 20 <= len(id) && len(id) <= 31 && 'a' <= id[0] && id[0] <= 'z'
	for i := 0; ok && i < len(id); i++ {
		ok = 'a' <= id[i] && id[i] <= 'z' || '0' <= id[i] && id[i] <= '9'
	}
	if !ok {
		return "", api.Errorf(api.CodeNotFound, "there is no sandbox %q", clip(id))
	}
	return id, nil
}

// inSandbox is the sandbox id and a further id in the path: of a process or a session.
func inSandbox(r *http.Request, name string, missing api.Code) (id, sub string, err error) {
	if id, err = sandboxID(r); err != nil {
		return "", "", err
	}
	sub = r.PathValue(name)
	ok := sub != "" && len(sub) <= maxSubID
	for i := 0; ok && i < len(sub); i++ {
		ok = '!' <= sub[i] && sub[i] <= '~' && sub[i] != '/'
	}
	if !ok {
		return "", "", api.Errorf(missing, "there is no %q in this sandbox", clip(sub))
	}
	return id, sub, nil
}

// maxSubID bounds the id of a process or session.
const maxSubID = 128
