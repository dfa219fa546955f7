package contract

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"pgregory.net/rapid"
)

// token is a piece of JSON text that may be no JSON at all.
type token string

// generator makes values of the document's schemas.
type generator struct {
	d  *document
	rt *rapid.T
}

// one is true once in a while, about every nth time. Draws lean towards 0, which must mean the usual.
func one(rt *rapid.T, nth int, what string) bool {
	return rapid.Uint64Range(0, 1<<40).Draw(rt, what)%uint64(nth) == uint64(nth)-1
}

// value draws a value that fits a schema. name finds known values for strings that mean something.
func (g *generator) value(name string, s map[string]any) any {
	_, s = g.d.resolve("", s)
	if all := list(s["allOf"]); len(all) > 0 {
		return g.value(name, all[0].(map[string]any))
	}
	if enum := list(s["enum"]); len(enum) > 0 {
		return rapid.SampledFrom(enum).Draw(g.rt, name)
	}
	kind := s["type"]
	if several := list(kind); len(several) > 0 {
		kind = several[0]
	}
	switch kind {
	case "boolean":
		return rapid.Bool().Draw(g.rt, name)
	case "integer":
		return g.integer(name, s)
	case "number":
		return rapid.Float64Range(bound(s, "minimum", 0.01), min(bound(s, "maximum", 8), 8)).Draw(g.rt, name)
	case "array":
		return g.array(name, s)
	case "object":
		return g.object(s)
	default:
		return g.text(name, s)
	}
}

func bound(s map[string]any, name string, none float64) float64 {
	if n, ok := s[name].(json.Number); ok {
		f, _ := n.Float64()
		return f
	}
	return none
}

// integer keeps to what a small machine can do: the refusals of large ones are drawn elsewhere.
func (g *generator) integer(name string, s map[string]any) any {
	low := int64(bound(s, "minimum", -1<<40))
	high := int64(bound(s, "maximum", 1<<40))
	if one(g.rt, 5, "extreme") {
		return rapid.SampledFrom([]int64{low, high}).Draw(g.rt, name)
	}
	return rapid.Int64Range(low, min(high, low+2000)).Draw(g.rt, name)
}

func (g *generator) array(name string, s map[string]any) any {
	if known, ok := arrays()[name]; ok && !one(g.rt, 10, "unknown") {
		return rapid.SampledFrom(known).Draw(g.rt, name)
	}
	n := rapid.IntRange(int(bound(s, "minItems", 0)), 3).Draw(g.rt, "n")
	out := make([]any, n)
	for i := range out {
		out[i] = g.value(name+"[]", child(s, "items"))
	}
	return out
}

func (g *generator) object(s map[string]any) any {
	out, required := map[string]any{}, list(s["required"])
	few := rapid.IntRange(2, 6).Draw(g.rt, "one in")
	properties := child(s, "properties")
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		if slices.Contains(required, any(name)) || one(g.rt, few, name+"?") && !unwanted(name) {
			out[name] = g.value(name, properties[name].(map[string]any))
		}
	}
	if values, ok := s["additionalProperties"].(map[string]any); ok {
		for range rapid.IntRange(0, 3).Draw(g.rt, "n") {
			out[rapid.SampledFrom([]string{"A", "PATH", "team", "x-y", "ключ", "a.b/c", "lang"}).Draw(g.rt, "key")] = g.value("value", values)
		}
	}
	return out
}

// unwanted are members that are refused whatever they say, so that most bodies get further.
func unwanted(name string) bool {
	return slices.Contains([]string{"layers", "mounts", "integrity", "network", "secrets", "burst", "priority", "rlimits", "disk_mb", "idle_s", "paused_s"}, name)
}

// arrays are those that do something.
func arrays() map[string][]any {
	return map[string][]any{
		"argv": {
			[]any{"true"},
			[]any{"echo", "héllo", ""},
			[]any{"cat"},
			[]any{"sh", "-c", "exit 3"},
			[]any{"nothing"},
			[]any{"/"},
			[]any{"printf", `\377\000`},
			[]any{"head", "-c", "200000", "/dev/zero"},
			[]any{"sh", "-c", "kill -9 $$"},
		},
		"command": {[]any{"true"}, []any{"sleep", "600"}, []any{"sh", "-c", "echo out; echo err >&2"}, []any{"nothing"}},
	}
}

// strings are those that do something, by the member's name.
func texts() map[string][]any {
	return map[string][]any{
		"image": {"busybox", "busybox", "busybox", "nothing"}, "shell": {"true", "echo a; exit 7", "cat", "cd /tmp", "read x; echo $x", "("}, "cwd": {"/", "/tmp", "/nothing", "tmp"},
		"workdir": {"/", "/new/dir"}, "user": {"root", "0:0", "1000", "nobody", "strange"}, "session": {"s1", "other"}, "id": {"s1", "s2", "s 3"},
		"reference": {"localhost:1/team/app", "127.0.0.1:1/app:1.2", "python:3.12", "localhost:1/App"}, "platform": {"", "linux/amd64", "windows/amd64"},
		"signal": {"SIGINT", "TERM", "9", "SIGNOPE", "0"}, "hostname": {"box", "a.b", "-"}, "project": {"default", "other", "*", "nothing"},
	}
}

func (g *generator) text(name string, s map[string]any) any {
	if s["contentEncoding"] == "base64" {
		return rapid.SampledFrom([]string{"", "aGVsbG8=", "/w==", "AAAA"}).Draw(g.rt, name)
	}
	if known, ok := texts()[name]; ok && !one(g.rt, 10, "unknown") {
		return rapid.SampledFrom(known).Draw(g.rt, name)
	}
	if pattern, ok := s["pattern"].(string); ok {
		return rapid.StringMatching(pattern).Draw(g.rt, name)
	}
	return rapid.StringN(0, 20, 80).Draw(g.rt, name)
}

// broken draws a value that is likely to fit nothing.
func (g *generator) broken() any {
	return rapid.SampledFrom([]any{
		nil, true, "", "x", "0", -1, 0, 1, 1.5,
		[]any{},
		[]any{nil},
		map[string]any{},
		map[string]any{"a": 1},
		token("NaN"), token("-Infinity"), token("1e400"), token("-0"),
		token("1e3"), token("9223372036854775808"), token("-9223372036854775809"), token("99999999999999999999999999"), token("0x10"), token("01"), token(`"\u0000"`), token(`"\ud800"`),
		token("\"\xff\""), token(`"`), token("{"), token(""), token(strings.Repeat("[", 100) + strings.Repeat("]", 100)), strings.Repeat("x", 140_000), "/../..", "é\u202e",
	}).Draw(g.rt, "broken")
}

// spoil changes one thing of a value.
func (g *generator) spoil(v any) any {
	m, ok := v.(map[string]any)
	if !ok || len(m) == 0 || one(g.rt, 10, "whole") {
		return g.broken()
	}
	key := rapid.SampledFrom(slices.Sorted(maps.Keys(m))).Draw(g.rt, "spoiled")
	switch rapid.IntRange(0, 6).Draw(g.rt, "how") {
	case 0:
		m[rapid.SampledFrom([]string{"unknown", "", "Image", "image ", "__proto__", "argv\u0000", strings.Repeat("k", 3000)}).Draw(g.rt, "extra")] = g.broken()
	case 1:
		delete(m, key)
	case 2:
		if inner, ok := m[key].(map[string]any); ok && len(inner) > 0 {
			m[key] = g.spoil(inner)
			break
		}
		m[key] = []any{m[key], g.broken()}
	default:
		m[key] = g.broken()
	}
	return m
}

// body draws a request body for an operation, and tells its type.
func (g *generator) body(op *operation) (text []byte, media string) {
	content := child(op.node, "requestBody", "content")
	if len(content) == 0 {
		return rapid.SampledFrom([][]byte{nil, nil, nil, []byte("{}"), []byte("x")}).Draw(g.rt, "body"), "application/json"
	}
	media = rapid.SampledFrom(slices.Sorted(maps.Keys(content))).Draw(g.rt, "media")
	if media != "application/json" {
		return rapid.SampledFrom([][]byte{nil, []byte("hello\n"), []byte(strings.Repeat("0123456789", 30_000)), make([]byte, 1024), goodTar, []byte("\x1f\x8b\x08broken")}).Draw(g.rt, "bytes"), media
	}
	v := g.value("body", child(content, media, "schema"))
	if one(g.rt, 3, "spoil") {
		v = g.spoil(v)
	}
	text = encode(nil, v)
	if !one(g.rt, 8, "text") {
		return text, media
	}
	switch rapid.IntRange(0, 4).Draw(g.rt, "how") {
	case 0:
		text = text[:rapid.IntRange(0, len(text)).Draw(g.rt, "cut")]
	case 1:
		text = append(text, []byte(rapid.SampledFrom([]string{"{}", ",", "\x00", "]"}).Draw(g.rt, "tail"))...)
	case 2: // a key twice
		if len(text) > 2 && text[0] == '{' && text[1] == '"' {
			text = append(append([]byte("{"), text[1:len(text)-1]...), append([]byte(","), text[1:]...)...)
		}
	case 3:
		text = append([]byte("\xef\xbb\xbf"), text...)
	case 4:
		text = append(text, []byte(strings.Repeat(" ", 17<<20))...) // over every limit
	}
	return text, media
}

// encode writes JSON with tokens as they are.
func encode(b []byte, v any) []byte {
	switch v := v.(type) {
	case token:
		return append(b, v...)
	case map[string]any:
		b = append(b, '{')
		for i, key := range slices.Sorted(maps.Keys(v)) {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(encode(append(encode(b, key), ':'), v[key]), []byte(nil)...)
		}
		return append(b, '}')
	case []any:
		b = append(b, '[')
		for i, e := range v {
			if i > 0 {
				b = append(b, ',')
			}
			b = encode(b, e)
		}
		return append(b, ']')
	}
	text, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("%v: %v", v, err)) // drawn values are all of JSON
	}
	return append(b, text...)
}

// query draws an operation's query string.
func (g *generator) query(op *operation, known map[string][]string) string {
	var parts []string
	odd := one(g.rt, 5, "odd query")
	for _, p := range list(op.node["parameters"]) {
		_, p := g.d.resolve("", p.(map[string]any))
		name := p["name"].(string)
		if p["in"] != "query" || p["required"] != true && !one(g.rt, 4, name+"?") {
			continue
		}
		schema := p["schema"].(map[string]any)
		if schema["type"] == "array" {
			schema = child(schema, "items")
		}
		value := quoted(fmt.Sprint(g.value(name, schema)))
		if len(known[name]) > 0 {
			value = rapid.SampledFrom(known[name]).Draw(g.rt, name)
		}
		if odd && one(g.rt, 3, "odd "+name) {
			value = rapid.SampledFrom([]string{"", "-1", "0", "99999999999999999999", "NaN", "maybe", "%00", "%zz", "%ff", "%2e%2e%2f", "a;b", strings.Repeat("y", 9000), "1.5", "%"}).Draw(g.rt, name)
		}
		parts = append(parts, name+"="+value)
	}
	if odd {
		parts = append(parts, rapid.SampledFrom([]string{"", "unknown=1", "follow", "limit=1&limit=2", "=", "&&", ";", "path=/x", "%=1", "stat=2"}).Draw(g.rt, "extra"))
	}
	if len(parts) == 0 {
		return ""
	}
	return "?" + strings.Join(parts, "&")
}

// quoted is percent-encoding of everything that isn't plain.
func quoted(s string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		if c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z' || strings.IndexByte("-_.~/", c) >= 0 {
			b.WriteByte(c)
			continue
		}
		b.WriteString("%" + strings.ToUpper(strconv.FormatUint(uint64(c)|0x100, 16)[1:]))
	}
	return b.String()
}
