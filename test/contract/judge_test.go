package contract

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// judge holds an answer to the document.
func (w *world) judge(op *operation, c *call, a *answer) error {
	switch {
	case a.status == http.StatusInternalServerError:
		return fmt.Errorf("a fault of ours")
	case a.status < 300 && w.foreign(c) && (strings.Contains(c.target, w.box) || w.ended != "" && strings.Contains(c.target, w.ended)):
		return fmt.Errorf("a sandbox of one project is served to another's token")
	case c.method == http.MethodHead && a.status >= 400:
		return nil // an answer without a body says what its status says
	case w.elsewhere(op, c):
		if a.status >= 400 {
			return known(a, strings.TrimSpace(a.header.Get("Content-Type")))
		}
		return nil
	}
	if err := w.d.check(op, c.method, a); err != nil {
		return err
	}
	if a.status < 300 && len(c.body) > 0 {
		return w.fits(op, c)
	}
	return nil
}

// foreign tells whether a request comes from another project.
func (w *world) foreign(c *call) bool {
	return slices.Contains(c.headers, "Authorization: Bearer "+w.stranger)
}

// elsewhere tells whether a request went to another route than the operation's: by its method, or by an id that isn't one.
func (w *world) elsewhere(op *operation, c *call) bool {
	if c.method != op.Method && (c.method != http.MethodHead || op.Method != http.MethodGet) {
		return true
	}
	path, _, _ := strings.Cut(c.target, "?")
	have, want := strings.Split(path, "/"), strings.Split(op.Path, "/")
	if len(have) != len(want) {
		return true
	}
	for i := range have {
		if have[i] == "" && i > 0 || have[i] == ".." || strings.EqualFold(have[i], "%2e%2e") {
			return true
		}
		if other := w.d.literal(op, want, i, have[i]); other {
			return true
		}
	}
	return false
}

// literal tells whether a value for a parameter is a word of another path.
func (d *document) literal(op *operation, want []string, i int, value string) bool {
	if !strings.HasPrefix(want[i], "{") {
		return false
	}
	for _, o := range d.ops {
		parts := strings.Split(o.Path, "/")
		if o.Method == op.Method && len(parts) == len(want) && parts[i] == value {
			return true
		}
	}
	return false
}

// fits checks that a body which was taken is one that the document allows. Absent is also what is null or empty.
func (w *world) fits(op *operation, c *call) error {
	content := child(op.node, "requestBody", "content")
	if child(content, "application/json") == nil {
		return nil
	}
	var v any
	if err := json.Unmarshal(c.body, &v); err != nil {
		return fmt.Errorf("a body was taken that is no JSON: %w", err)
	}
	s, err := w.d.schema(op.pointer + "/requestBody/content/application~1json/schema")
	if err != nil {
		return err
	}
	if err := s.Validate(present(v)); err != nil {
		return fmt.Errorf("a body was taken that the document doesn't allow: %w", err)
	}
	return nil
}

func present(v any) any {
	m, ok := v.(map[string]any)
	if !ok {
		return v
	}
	for key, value := range m {
		if value == nil || value == "" {
			delete(m, key)
			continue
		}
		m[key] = present(value)
	}
	return m
}
