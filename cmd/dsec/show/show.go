// Package show writes what came from outside so that a terminal shows it and never acts on it: as one line, JSON or YAML.
package show

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Line makes a text from outside (a label, a name, an error's detail) harmless to a terminal and one line long:
// control bytes, characters that change the direction of text, and what isn't UTF-8 become escapes.
func Line(s string) string {
	if !strings.ContainsFunc(s, harmful) && utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case harmful(r) && r < 0x80:
			fmt.Fprintf(&b, `\x%02x`, r)
		case harmful(r):
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
		i += n
	}
	return b.String()
}

// harmful tells whether a terminal would act on r rather than show it.
func harmful(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == '\u2028' || r == '\u2029'
}

// JSON is a value as JSON that a terminal can show: <, > and & as they are, no control characters.
func JSON(v any, indent string) ([]byte, error) {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	e.SetIndent("", indent)
	if err := e.Encode(v); err != nil {
		return nil, fmt.Errorf("print: %w", err)
	}
	return escapeJSON(bytes.TrimSuffix(out.Bytes(), []byte("\n"))), nil
}

// escapeJSON keeps the few control characters that JSON allows unescaped from a terminal. They occur in strings only,
// so the document's meaning stays.
func escapeJSON(doc []byte) []byte {
	var out []byte
	for i := 0; i < len(doc); {
		r, n := utf8.DecodeRune(doc[i:])
		if r >= 0x7f && r != utf8.RuneError && harmful(r) {
			if r > 0xffff {
				r -= 0x10000
				out = fmt.Appendf(out, `\u%04x\u%04x`, 0xd800+(r>>10), 0xdc00+(r&0x3ff))
			} else {
				out = fmt.Appendf(out, `\u%04x`, r)
			}
		} else {
			out = append(out, doc[i:i+n]...)
		}
		i += n
	}
	return out
}
