package api

import (
	"encoding/json"
	"reflect"
	"strconv"
	"strings"
)

// maxDepth bounds how deep a body's arrays and objects nest. The deepest shape of ours needs five.
const maxDepth = 32

// Decoder decodes JSON bodies into T strictly. It is safe for concurrent use; make one per type and keep it, because
// making it walks the type.
//
// Strict means that nothing a client wrote is dropped or guessed: an unknown field, a field in the wrong case, a
// duplicate key, a null where a value is needed, data after the document, text that isn't UTF-8 and an unpaired
// surrogate are all refused, and a value of the wrong type is named with its place, what it is and what it should be.
type Decoder[T any] struct {
	root *shape
}

// NewDecoder makes a Decoder for T.
func NewDecoder[T any]() *Decoder[T] {
	return &Decoder[T]{root: shapeOf(reflect.TypeFor[T](), map[reflect.Type]*shape{})}
}

// Decode decodes data; the error, if any, is an [*Error].
func (d *Decoder[T]) Decode(data []byte) (T, error) {
	var v T
	c := checker{data: data}
	if err := c.document(d.root); err != nil {
		return v, err
	}
	if err := json.Unmarshal(data, &v); err != nil {
		// The check above leaves little to go wrong here: text that a type of the standard library refuses.
		return *new(T), Errorf(CodeInvalid, "%v", err)
	}
	return v, nil
}

// Decode decodes one document strictly; see [Decoder].
func Decode[T any](data []byte) (T, error) { return NewDecoder[T]().Decode(data) }

// kind is what a JSON value must be to fit a Go type.
type kind uint8

const (
	kindAny    kind = iota // whatever it is
	kindBool               // true or false
	kindInt                // an integer that fits shape.bits
	kindUint               // the same, not negative
	kindFloat              // any finite number
	kindText               // a string
	kindBytes              // a string of base64
	kindArray              // an array of shape.elem
	kindMap                // an object of any keys with values of shape.elem
	kindObject             // an object of shape.fields
)

// String is the kind as a message to a client names it.
func (k kind) String() string {
	return [...]string{
		"any value", "a boolean", "an integer", "an integer", "a number", "a string", "a base64 string", "an array", "an object", "an object",
	}[k]
}

// shape is what the decoder knows of a type: enough to check a document before the standard library fills a value.
type shape struct {
	kind     kind
	bits     int  // of integers and floats
	nullable bool // null means absent: pointers, slices, maps and interfaces
	elem     *shape
	fields   map[string]fieldShape
}

type fieldShape struct {
	*shape
	index int // among the object's fields, for finding duplicates
}

func shapeOf(t reflect.Type, seen map[reflect.Type]*shape) *shape {
	if s, ok := seen[t]; ok {
		return s
	}
	if t.Kind() == reflect.Pointer {
		s := *shapeOf(t.Elem(), seen)
		s.nullable = true
		return &s
	}
	s := &shape{}
	seen[t] = s
	if reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) {
		return s
	}
	switch t.Kind() {
	case reflect.Bool:
		s.kind = kindBool
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		s.kind, s.bits = kindInt, t.Bits()
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		s.kind, s.bits = kindUint, t.Bits()
	case reflect.Float32, reflect.Float64:
		s.kind, s.bits = kindFloat, t.Bits()
	case reflect.String:
		s.kind = kindText
	case reflect.Slice:
		s.nullable = true
		if t.Elem().Kind() == reflect.Uint8 {
			s.kind = kindBytes
		} else {
			s.kind, s.elem = kindArray, shapeOf(t.Elem(), seen)
		}
	case reflect.Map:
		s.kind, s.nullable, s.elem = kindMap, true, shapeOf(t.Elem(), seen)
	case reflect.Struct:
		s.kind, s.fields = kindObject, fieldsOf(t, seen)
	default: // interfaces; the request types have no other kind
		s.nullable = true
	}
	return s
}

// fieldsOf lists a struct's JSON names; the fields of embedded structs count as its own.
func fieldsOf(t reflect.Type, seen map[reflect.Type]*shape) map[string]fieldShape {
	fields := map[string]fieldShape{}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !f.IsExported() || name == "-" || (f.Anonymous && name == "") {
			continue
		}
		if name == "" {
			name = f.Name
		}
		fields[name] = fieldShape{shapeOf(f.Type, seen), len(fields)}
	}
	return fields
}

// checkNumber tells what is wrong with a number token for s, "" if nothing is.
func (s *shape) checkNumber(token string) string {
	var err error
	switch s.kind {
	case kindInt:
		_, err = strconv.ParseInt(token, 10, s.bits)
	case kindUint:
		_, err = strconv.ParseUint(token, 10, s.bits)
	case kindFloat:
		_, err = strconv.ParseFloat(token, s.bits)
	case kindAny:
		_, err = strconv.ParseFloat(token, 64)
	default:
		return "want " + s.kind.String() + ", got a number"
	}
	if err == nil {
		return ""
	}
	if s.kind == kindFloat || s.kind == kindAny {
		return "the number " + shorten(token) + " is out of range"
	}
	if strings.ContainsAny(token, ".eE") {
		return "want an integer, got the number " + shorten(token)
	}
	return "the integer " + shorten(token) + " is out of range"
}

// shorten keeps what a client sent from filling a message.
func shorten(s string) string {
	const most = 64
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
