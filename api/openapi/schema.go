package openapi

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/dsec-io/dsec/api"
)

// Schema is a JSON Schema (2020-12), as far as our types need one.
type Schema struct {
	Ref         string     `json:"$ref,omitempty"`
	Type        any        `json:"type,omitempty"` // a name, or several
	Description string     `json:"description,omitempty"`
	Format      string     `json:"format,omitempty"`
	Encoding    string     `json:"contentEncoding,omitempty"`
	Enum        []any      `json:"enum,omitempty"`
	Default     any        `json:"default,omitempty"`
	Pattern     string     `json:"pattern,omitempty"`
	Minimum     *float64   `json:"minimum,omitempty"`
	Above       *float64   `json:"exclusiveMinimum,omitempty"`
	Maximum     *float64   `json:"maximum,omitempty"`
	MinLength   int        `json:"minLength,omitempty"`
	MaxLength   int        `json:"maxLength,omitempty"`
	MinItems    int        `json:"minItems,omitempty"`
	Items       *Schema    `json:"items,omitempty"`
	Properties  Properties `json:"properties,omitempty"`
	Required    []string   `json:"required,omitempty"`
	Others      any        `json:"additionalProperties,omitempty"` // false, or the schema of all others
	AllOf       []*Schema  `json:"allOf,omitempty"`
	AnyOf       []*Schema  `json:"anyOf,omitempty"`
}

// oneOf is a body that is one of several types.
type oneOf []any

// Property is one named member of an object.
type Property struct {
	Name   string
	Schema *Schema
}

// Properties are an object's members in the order of the Go type.
type Properties []Property

// MarshalJSON implements [json.Marshaler].
func (p Properties) MarshalJSON() ([]byte, error) {
	o := make(object, len(p))
	for i, m := range p {
		o[i] = member{m.Name, m.Schema}
	}
	return o.MarshalJSON()
}

// Named is a schema that others refer to.
type Named struct {
	Name   string
	Schema *Schema
}

// object is a JSON object that keeps its order.
type object []member

type member struct {
	key   string
	value any
}

// MarshalJSON implements [json.Marshaler].
func (o object) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	b.WriteByte('{')
	for i, m := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		if err := enc.Encode(m.key); err != nil {
			return nil, err
		}
		b.WriteByte(':')
		if err := enc.Encode(m.value); err != nil {
			return nil, err
		}
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// schemas collects the named schemas of the types that are asked for, and of all they hold.
type schemas struct {
	named []Named
	seen  map[reflect.Type]bool
	words map[string]string // see comments
	rules map[string]rule
	used  map[string]bool // the rules that were applied
}

func newSchemas() *schemas {
	return &schemas{seen: map[reflect.Type]bool{}, words: comments(), rules: rules(), used: map[string]bool{}}
}

// of is the schema of a value's type: a reference where it is a struct.
func (s *schemas) of(v any) *Schema {
	several, ok := v.(oneOf)
	if !ok {
		return s.ofType(reflect.TypeOf(v))
	}
	out := &Schema{}
	for _, v := range several {
		out.AnyOf = append(out.AnyOf, s.of(v))
	}
	return out
}

func (s *schemas) ofType(t reflect.Type) *Schema {
	if t == nil {
		return &Schema{}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return s.ofType(t.Elem())
	case reflect.Struct:
		if t == reflect.TypeFor[time.Time]() {
			return &Schema{Type: "string", Format: "date-time"}
		}
		s.name(t)
		return &Schema{Ref: "#/components/schemas/" + schemaName(t)}
	case reflect.String:
		return s.text(t)
	case reflect.Bool:
		return &Schema{Type: "boolean"}
	case reflect.Float32, reflect.Float64:
		return &Schema{Type: "number"}
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return &Schema{Type: "string", Encoding: "base64"}
		}
		return &Schema{Type: "array", Items: s.ofType(t.Elem())}
	case reflect.Map:
		return &Schema{Type: "object", Others: s.ofType(t.Elem())}
	case reflect.Interface:
		return &Schema{}
	default:
		return integer(t)
	}
}

// text is a string; a string type of ours is one of few words.
func (s *schemas) text(t reflect.Type) *Schema {
	out := &Schema{Type: "string"}
	if words, ok := s.rules[t.Name()]; ok && t.PkgPath() != "" {
		s.used[t.Name()] = true
		out.Enum = words.enum
	}
	if t == reflect.TypeFor[api.Code]() {
		for _, c := range codeNotes() {
			out.Enum = append(out.Enum, c.code)
		}
	}
	return out
}

func integer(t reflect.Type) *Schema {
	out := &Schema{Type: "integer"}
	switch t.Kind() {
	case reflect.Uint16:
		out.Minimum, out.Maximum = new(0.0), new(65535.0)
	case reflect.Uint8, reflect.Uint32, reflect.Uint64, reflect.Uint:
		out.Minimum = new(0.0)
	default:
		out.Format = "int64"
	}
	return out
}

// schemaName is what a type is called in the document.
func schemaName(t reflect.Type) string {
	if t == reflect.TypeFor[api.Error]() {
		return "Problem"
	}
	return t.Name()
}

// name adds a struct to the named schemas.
func (s *schemas) name(t reflect.Type) {
	if s.seen[t] {
		return
	}
	s.seen[t] = true
	at := len(s.named)
	s.named = append(s.named, Named{Name: schemaName(t)})
	out := &Schema{Type: "object", Description: s.words[t.Name()]}
	if r, ok := s.rules[t.Name()]; ok && r.strict {
		s.used[t.Name()] = true
		out.Others = false
	}
	s.fields(out, t)
	s.named[at].Schema = out
}

// fields adds a struct's fields; those of embedded structs are its own, as they are in JSON.
func (s *schemas) fields(out *Schema, t reflect.Type) {
	for f := range t.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "":
			s.fields(out, f.Type)
			continue
		case !f.IsExported() || name == "-":
			continue
		}
		key := t.Name() + "." + f.Name
		p := s.ofType(f.Type)
		p.Description = s.words[key]
		s.apply(p, key)
		optional := slices.Contains(strings.Split(options, ","), "omitempty") || slices.Contains(strings.Split(options, ","), "omitzero")
		if !optional {
			out.Required = append(out.Required, name)
			if f.Type.Kind() == reflect.Pointer && p.Ref == "" && out.Others != false { // an answer's: a request must say it
				p.Type = []any{p.Type, "null"}
			}
		}
		out.Properties = append(out.Properties, Property{name, p})
	}
}

// apply adds what the table of rules says about a field.
func (s *schemas) apply(p *Schema, key string) {
	r, ok := s.rules[key]
	if !ok {
		return
	}
	s.used[key] = true
	if r.of != nil {
		words := p.Description
		*p = *s.of(r.of)
		p.Description = words
	}
	if r.enum != nil {
		p.Enum = r.enum
	}
	if r.absent != nil {
		p.Default = r.absent
	}
	p.Minimum, p.Above, p.Maximum = first(r.minimum, p.Minimum), first(r.above, p.Above), first(r.maximum, p.Maximum)
	p.Pattern, p.MinLength, p.MaxLength, p.MinItems = r.pattern, r.minLength, r.maxLength, r.minItems
}

func first(a, b *float64) *float64 {
	if a != nil {
		return a
	}
	return b
}
