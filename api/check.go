package api

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/dsec-io/dsec/internal/nearest"
)

// checker walks a JSON document once, from left to right, and compares it with a shape.
type checker struct {
	data  []byte
	pos   int
	path  []step // where pos is in the document
	depth int
}

// step is one element of a path: a key, or an index when key is nil.
type step struct {
	key   []byte
	index int
}

func (c *checker) document(s *shape) error {
	if c.space(); c.pos == len(c.data) {
		return c.errorf("the body is empty, want " + s.kind.String())
	}
	if err := c.value(s); err != nil {
		return err
	}
	if c.space(); c.pos < len(c.data) {
		return c.syntax("data after the end of the document")
	}
	return nil
}

func (c *checker) value(s *shape) error {
	c.space()
	switch b := c.peek(); {
	case b == '{':
		return c.nested(s, c.object)
	case b == '[':
		return c.nested(s, c.array)
	case b == '"':
		return c.text(s)
	case b == '-' || isDigit(b):
		return c.number(s)
	case c.literal("null"):
		if s.nullable || s.kind == kindAny {
			return nil
		}
		return c.mismatch(s, "null")
	case c.literal("true") || c.literal("false"):
		if s.kind == kindBool || s.kind == kindAny {
			return nil
		}
		return c.mismatch(s, "a boolean")
	}
	return c.syntax("not a JSON value")
}

func (c *checker) nested(s *shape, walk func(*shape) error) error {
	if c.depth++; c.depth > maxDepth {
		return c.errorf("nested deeper than " + strconv.Itoa(maxDepth))
	}
	c.pos++
	err := walk(s)
	c.depth--
	return err
}

func (c *checker) object(s *shape) error {
	if s.kind != kindObject && s.kind != kindMap && s.kind != kindAny {
		return c.mismatch(s, "an object")
	}
	var seen keys
	for first := true; ; first = false {
		if c.space(); c.peek() == '}' && first {
			c.pos++
			return nil
		}
		if err := c.member(s, &seen); err != nil {
			return err
		}
		switch c.space(); c.peek() {
		case ',':
			c.pos++
		case '}':
			c.pos++
			return nil
		default:
			return c.syntax("want ',' or '}' here")
		}
	}
}

func (c *checker) member(s *shape, seen *keys) error {
	if c.peek() != '"' {
		return c.syntax("want a quoted key here")
	}
	key, err := c.quoted()
	if err != nil {
		return err
	}
	c.path = append(c.path, step{key: key})
	elem, index := s.elem, -1
	if s.kind == kindObject {
		f, ok := s.fields[string(key)]
		if !ok {
			return c.unknown(s)
		}
		elem, index = f.shape, f.index
	}
	if !seen.add(key, index) {
		return c.errorf("the key is given twice")
	}
	if c.space(); c.peek() != ':' {
		return c.syntax("want ':' here")
	}
	c.pos++
	if elem == nil {
		elem = &shape{}
	}
	err = c.value(elem)
	if err == nil {
		c.path = c.path[:len(c.path)-1]
	}
	return err
}

func (c *checker) array(s *shape) error {
	if s.kind != kindArray && s.kind != kindAny {
		return c.mismatch(s, "an array")
	}
	elem := s.elem
	if elem == nil {
		elem = &shape{}
	}
	if c.space(); c.peek() == ']' {
		c.pos++
		return nil
	}
	for i := 0; ; i++ {
		c.path = append(c.path, step{index: i})
		if err := c.value(elem); err != nil {
			return err
		}
		c.path = c.path[:len(c.path)-1]
		switch c.space(); c.peek() {
		case ',':
			c.pos++
		case ']':
			c.pos++
			return nil
		default:
			return c.syntax("want ',' or ']' here")
		}
	}
}

func (c *checker) text(s *shape) error {
	content, err := c.quoted()
	switch {
	case err != nil:
		return err
	case s.kind == kindText || s.kind == kindAny:
		return nil
	case s.kind == kindBytes:
		if !isBase64(content) {
			return c.errorf("want a base64 string (standard alphabet, padded)")
		}
		return nil
	}
	return c.mismatch(s, "a string")
}

// isBase64 is the test of [encoding/base64.StdEncoding], strict about line breaks, which that skips.
func isBase64(b []byte) bool {
	if len(b)%4 != 0 {
		return false
	}
	for pad := 0; pad < 2 && len(b) > 0 && b[len(b)-1] == '='; pad++ {
		b = b[:len(b)-1]
	}
	for _, x := range b {
		if !isDigit(x) && (x|0x20 < 'a' || x|0x20 > 'z') && x != '+' && x != '/' {
			return false
		}
	}
	return true
}

// quoted reads a string and returns its content, escapes resolved.
func (c *checker) quoted() ([]byte, error) {
	start, escaped := c.pos, false
	for c.pos++; c.pos < len(c.data); {
		switch b := c.data[c.pos]; {
		case b == '"':
			c.pos++
			return c.content(start, escaped)
		case b == '\\':
			escaped = true
			if err := c.escape(); err != nil {
				return nil, err
			}
		case b < 0x20:
			return nil, c.syntax("a control character in a string must be escaped")
		default:
			c.pos++
		}
	}
	return nil, c.syntax("the string doesn't end")
}

func (c *checker) content(start int, escaped bool) ([]byte, error) {
	raw := c.data[start:c.pos]
	if !utf8.Valid(raw) {
		return nil, c.errorf("the text isn't valid UTF-8; send bytes as base64 where the field allows it")
	}
	if !escaped {
		return raw[1 : len(raw)-1], nil
	}
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		return nil, c.syntax(err.Error())
	}
	return []byte(s), nil
}

// escape steps over one escape sequence; a high surrogate takes its low one with it, because the standard library would
// turn a lone one into U+FFFD without a word.
func (c *checker) escape() error {
	rest := c.data[c.pos+1:]
	if len(rest) > 0 && strings.IndexByte(`"\/bfnrt`, rest[0]) >= 0 {
		c.pos += 2
		return nil
	}
	r, ok := hex4(rest)
	if !ok {
		return c.syntax("bad escape in a string")
	}
	c.pos += 6
	if r < 0xd800 || r > 0xdfff {
		return nil
	}
	var low uint16
	if tail := c.data[c.pos:]; r <= 0xdbff && len(tail) > 0 && tail[0] == '\\' {
		low, _ = hex4(tail[1:])
	}
	if low < 0xdc00 || low > 0xdfff {
		return c.errorf("an unpaired surrogate isn't text")
	}
	c.pos += 6
	return nil
}

// hex4 reads the u of an escape and its four digits.
func hex4(b []byte) (uint16, bool) {
	if len(b) < 5 || b[0] != 'u' || !isHex(b[1:5]) {
		return 0, false
	}
	n, err := strconv.ParseUint(string(b[1:5]), 16, 16)
	return uint16(n), err == nil
}

func isHex(b []byte) bool {
	return !slices.ContainsFunc(b, func(x byte) bool { return !isDigit(x) && (x|0x20 < 'a' || x|0x20 > 'f') })
}

func (c *checker) number(s *shape) error {
	start := c.pos
	if c.peek() == '-' {
		c.pos++
	}
	if c.peek() == '0' {
		c.pos++
	} else if !c.digits() {
		return c.syntax("not a number")
	}
	if c.peek() == '.' {
		if c.pos++; !c.digits() {
			return c.syntax("a number needs digits after its point")
		}
	}
	if c.peek()|0x20 == 'e' {
		if c.pos++; c.peek() == '+' || c.peek() == '-' {
			c.pos++
		}
		if !c.digits() {
			return c.syntax("a number needs digits in its exponent")
		}
	}
	if msg := s.checkNumber(string(c.data[start:c.pos])); msg != "" {
		return c.errorf(msg)
	}
	return nil
}

func (c *checker) digits() bool {
	start := c.pos
	for isDigit(c.peek()) {
		c.pos++
	}
	return c.pos > start
}

func isDigit(b byte) bool { return '0' <= b && b <= '9' }

// peek is the byte at pos, 0 at the end; a 0 byte in the data fits no token either.
func (c *checker) peek() byte {
	if c.pos < len(c.data) {
		return c.data[c.pos]
	}
	return 0
}

func (c *checker) space() {
	for c.pos < len(c.data) && strings.IndexByte(" \t\r\n", c.data[c.pos]) >= 0 {
		c.pos++
	}
}

func (c *checker) literal(word string) bool {
	if !strings.HasPrefix(string(c.data[c.pos:min(len(c.data), c.pos+len(word))]), word) {
		return false
	}
	c.pos += len(word)
	return true
}

// keys finds duplicates: known fields by their index, other keys by name.
type keys struct {
	known uint64
	more  map[string]bool
}

func (k *keys) add(key []byte, index int) bool {
	if 0 <= index && index < 64 {
		bit := uint64(1) << index
		fresh := k.known&bit == 0
		k.known |= bit
		return fresh
	}
	if k.more == nil {
		k.more = map[string]bool{}
	}
	fresh := !k.more[string(key)]
	k.more[string(key)] = true
	return fresh
}

func (c *checker) mismatch(s *shape, got string) error {
	return c.errorf("want " + s.kind.String() + ", got " + got)
}

func (c *checker) errorf(detail string) error {
	return FieldError(CodeInvalid, c.field(), "", "%s", detail)
}

func (c *checker) syntax(detail string) error {
	return FieldError(CodeInvalid, c.field(), "", "not valid JSON at byte %d: %s", c.pos, detail)
}

func (c *checker) unknown(s *shape) error {
	name := string(c.path[len(c.path)-1].key)
	return FieldError(CodeUnknownField, c.field(), suggest(name, s.fields), "there is no field %q here", shorten(name))
}

// field is the path as a problem document names it: resources.cpu, mounts[1].path.
func (c *checker) field() string {
	var b strings.Builder
	for i, s := range c.path {
		if s.key == nil {
			b.WriteString("[" + strconv.Itoa(s.index) + "]")
			continue
		}
		if i > 0 {
			b.WriteByte('.')
		}
		b.WriteString(shorten(string(s.key)))
	}
	return b.String()
}

// suggest names the known field that a client may have meant, or all of them.
func suggest(name string, fields map[string]fieldShape) string {
	known := make([]string, 0, len(fields))
	best, meant := 3, ""
	for f := range fields {
		known = append(known, f)
		if d := nearest.Distance(shorten(strings.ToLower(name)), f); d < best || (d == best && f < meant) {
			best, meant = d, f
		}
	}
	if meant != "" {
		return "did you mean " + meant + "?"
	}
	if len(known) == 0 {
		return "leave it out: there are no fields here"
	}
	slices.Sort(known)
	return "the fields are " + strings.Join(known, ", ")
}
