// Package page shows the description of package openapi as one HTML page.
//
// The page is whole: it loads nothing from anywhere, and its policy ([Page.Policy]) allows nothing but its own style and
// script, by their digests. Everything can be read without the script, which adds search and copying. All text is
// escaped by html/template; none of it comes from a request.
package page

import (
	"bytes"
	"crypto/sha256"
	_ "embed" // the page's parts
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html/template"
	"slices"
	"strings"

	"github.com/dsec-io/dsec/api/openapi"
)

var (
	//go:embed page.html
	layout string
	//go:embed page.css
	style string
	//go:embed page.js
	script string
)

// Page is the page and the Content-Security-Policy that it must be sent with.
type Page struct {
	HTML   []byte
	Policy string
}

// New makes the page of a description.
func New(d *openapi.Document) (Page, error) {
	t, err := template.New("page").Funcs(template.FuncMap{
		"words":    words,
		"shape":    shape,
		"limits":   limits,
		"required": func(s *openapi.Schema, name string) bool { return slices.Contains(s.Required, name) },
		"examples": d.ExamplesOf,
		"schema":   d.SchemaOf,
		"curl":     func(op openapi.Operation, e openapi.Example) string { return openapi.Curl(&op, &e) },
		"lower":    strings.ToLower,
		"pretty":   pretty,
		"codes":    codes,
	}).Parse(layout)
	if err != nil {
		return Page{}, fmt.Errorf("docs page: %w", err)
	}
	var out bytes.Buffer
	if err := t.Execute(&out, struct {
		*openapi.Document
		Style  template.CSS
		Script template.JS
	}{d, template.CSS(style), template.JS(script)}); err != nil { //nolint:gosec // they are files of this package
		return Page{}, fmt.Errorf("docs page: %w", err)
	}
	return Page{HTML: out.Bytes(), Policy: policy(style, script)}, nil
}

// policy allows the page's own style and script and nothing else.
func policy(style, script string) string {
	digest := func(s string) string {
		sum := sha256.Sum256([]byte(s))
		return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
	}
	return "default-src 'none'; style-src " + digest(style) + "; script-src " + digest(script) +
		"; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}

// words is text with `code` in it.
func words(text string) template.HTML {
	var b strings.Builder
	for i, part := range strings.Split(text, "`") {
		escaped := strings.ReplaceAll(template.HTMLEscapeString(part), "\n\n", "<br><br>")
		if i%2 == 1 {
			escaped = "<code>" + escaped + "</code>"
		}
		b.WriteString(escaped)
	}
	return template.HTML(b.String()) //nolint:gosec // every part was escaped
}

// shape is a schema's type in a few words, with a link where it has a name.
func shape(s *openapi.Schema) template.HTML {
	switch {
	case s == nil:
		return "any"
	case s.Ref != "":
		name := template.HTMLEscapeString(s.Ref[strings.LastIndexByte(s.Ref, '/')+1:])
		return template.HTML(`<a href="#type-` + name + `">` + name + `</a>`) //nolint:gosec // the name was escaped
	case len(s.AnyOf) > 0:
		parts := make([]string, len(s.AnyOf))
		for i, a := range s.AnyOf {
			parts[i] = string(shape(a))
		}
		return template.HTML(strings.Join(parts, " or ")) //nolint:gosec // made of escaped parts
	}
	name := "any"
	switch t := s.Type.(type) {
	case string:
		name = t
	case []any:
		name = strings.TrimSuffix(fmt.Sprintln(t...), "\n")
		name = strings.ReplaceAll(name, " ", " or ")
	}
	values, _ := s.Others.(*openapi.Schema)
	switch {
	case s.Items != nil:
		return "array of " + shape(s.Items)
	case values != nil:
		return "object of " + shape(values)
	case s.Encoding != "":
		name += ", " + s.Encoding
	case s.Format == "date-time":
		name = "time (RFC 3339)"
	}
	return template.HTML(template.HTMLEscapeString(name)) //nolint:gosec // escaped
}

// limits says what a value must be beside its type.
func limits(s *openapi.Schema) string {
	var parts []string
	if len(s.Enum) > 0 {
		parts = append(parts, "one of "+strings.TrimSpace(strings.ReplaceAll(fmt.Sprintln(s.Enum...), " ", ", ")))
	}
	switch {
	case s.Minimum != nil && s.Maximum != nil:
		parts = append(parts, fmt.Sprintf("from %s to %s", number(*s.Minimum), number(*s.Maximum)))
	case s.Minimum != nil:
		parts = append(parts, "at least "+number(*s.Minimum))
	}
	if s.MaxLength > 0 {
		parts = append(parts, fmt.Sprintf("at most %d bytes", s.MaxLength))
	}
	if s.Pattern != "" {
		parts = append(parts, "like "+s.Pattern)
	}
	if s.Default != nil {
		parts = append(parts, fmt.Sprintf("default %v", s.Default))
	}
	return strings.Join(parts, "; ")
}

func number(f float64) string {
	if f == float64(int64(f)) {
		return fmt.Sprintf("%d", int64(f))
	}
	return fmt.Sprint(f)
}

// pretty indents what is one JSON document and leaves everything else as it is.
func pretty(text string) string {
	var b bytes.Buffer
	if !strings.HasPrefix(text, "{") && !strings.HasPrefix(text, "[") || json.Indent(&b, []byte(strings.TrimSpace(text)), "", "  ") != nil {
		return text
	}
	return b.String()
}

// codes are an operation's codes, those of the lowest status first.
func codes(d *openapi.Document, op openapi.Operation) []openapi.Problem {
	var out []openapi.Problem
	for _, p := range d.Problems {
		if slices.Contains(op.Codes, p.Code) {
			out = append(out, p)
		}
	}
	slices.SortStableFunc(out, func(a, b openapi.Problem) int { return a.Status - b.Status })
	return out
}
