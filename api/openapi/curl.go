package openapi

import "strings"

// Curl is an example as a command line. DSEC_ENDPOINT and DSEC_TOKEN are in the environment.
func Curl(op *Operation, e *Example) string {
	var b strings.Builder
	b.WriteString("curl -s")
	if op.Method != "GET" && (op.Method != "POST" || e.Body == "") {
		b.WriteString(" -X " + op.Method)
	}
	if !op.Public {
		b.WriteString(` -H "Authorization: Bearer $DSEC_TOKEN"`)
	}
	b.WriteString(` "$DSEC_ENDPOINT` + e.Path + `"`)
	typed := false
	for _, h := range e.Headers {
		b.WriteString(" -H " + quote(h))
		typed = typed || strings.HasPrefix(h, "Content-Type:")
	}
	switch {
	case e.Body == "":
	case typed:
		b.WriteString(" --data-binary " + quote(e.Body))
	default:
		b.WriteString(" --json " + quote(e.Body))
	}
	return b.String()
}

// quote quotes a word for a shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
