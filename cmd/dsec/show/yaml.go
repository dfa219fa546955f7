package show

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strings"
)

// YAML turns a JSON document into YAML with the order kept. A text that YAML, or a terminal, could take for something
// else is written as JSON writes it, which is YAML too; library encoders let control characters through, which YAML
// forbids.
func YAML(doc []byte) ([]byte, error) {
	d := json.NewDecoder(bytes.NewReader(doc))
	d.UseNumber()
	y := yamlWriter{decoder: d}
	if err := y.value(0, atStart); err != nil {
		return nil, fmt.Errorf("convert to YAML: %w", err)
	}
	return y.out.Bytes(), nil
}

type yamlWriter struct {
	decoder *json.Decoder
	out     bytes.Buffer
}

// before is what stands on the line before a value.
type before int

const (
	atStart   before = iota // nothing
	afterKey                // a key, after which a collection starts a new line
	afterDash               // the dash of a list's entry, after which a collection goes on
)

// value writes the next value.
func (y *yamlWriter) value(indent int, at before) error {
	token, err := y.decoder.Token()
	if err != nil {
		return err
	}
	space := ""
	if at != atStart {
		space = " "
	}
	switch v := token.(type) {
	case json.Delim:
		return y.collection(v, indent, at)
	case string:
		y.out.WriteString(space + yamlText(v) + "\n")
	case nil:
		y.out.WriteString(space + "null\n")
	case json.Number:
		n := v.String()
		if !strings.Contains(n, ".") { // 1e-7 is a number in YAML 1.2 only, 1.0e-7 everywhere
			n = strings.NewReplacer("e", ".0e", "E", ".0E").Replace(n)
		}
		y.out.WriteString(space + n + "\n")
	default: // bool
		fmt.Fprintf(&y.out, "%s%v\n", space, v)
	}
	return nil
}

func (y *yamlWriter) collection(open json.Delim, indent int, at before) error {
	if !y.decoder.More() {
		if at != atStart {
			y.out.WriteByte(' ')
		}
		y.out.WriteString(map[json.Delim]string{'{': "{}\n", '[': "[]\n"}[open])
		_, err := y.decoder.Token()
		return err
	}
	margin := strings.Repeat("  ", indent)
	lead := map[before]string{atStart: margin, afterKey: "\n" + margin, afterDash: " "}[at]
	for ; y.decoder.More(); lead = margin {
		y.out.WriteString(lead)
		if err := y.entry(open, indent); err != nil {
			return err
		}
	}
	_, err := y.decoder.Token()
	return err
}

func (y *yamlWriter) entry(open json.Delim, indent int) error {
	if open == '[' {
		y.out.WriteByte('-')
		return y.value(indent+1, afterDash)
	}
	key, err := y.decoder.Token()
	if err != nil {
		return err
	}
	name, ok := key.(string)
	if !ok {
		return io.ErrUnexpectedEOF
	}
	y.out.WriteString(yamlText(name) + ":")
	return y.value(indent+1, afterKey)
}

// yamlText writes a plain word as it is, and everything else quoted.
func yamlText(s string) string {
	plain := regexp.MustCompile(`^[A-Za-z_/][A-Za-z0-9_./@+-]*$`)
	reserved := regexp.MustCompile(`(?i)^(true|false|yes|no|on|off|y|n|null|nan)$`)
	if plain.MatchString(s) && !reserved.MatchString(s) {
		return s
	}
	b, err := JSON(s, "")
	if err != nil {
		return `""` // a string can always be encoded
	}
	return string(b)
}
