// Package encode writes the results of commands as JSON, by hand: a command's output is most of it and must be looked at
// once, and encoding/json replaces bytes that aren't UTF-8.
package encode

import (
	"encoding/base64"
	"io"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/dsec-io/dsec/api"
)

// AppendResult appends an [api.ExecResult] as JSON.
func AppendResult(b []byte, e *api.ExitStatus, stdout, stderr []byte) []byte {
	b = append(b, '{')
	b = AppendStatus(b, e)
	b = AppendOutput(b, "stdout", stdout)
	b = AppendOutput(b, "stderr", stderr)
	return append(b, '}')
}

// AppendStatus appends the members of an [api.ExitStatus], without braces.
func AppendStatus(b []byte, e *api.ExitStatus) []byte {
	b = append(b, `"exit_code":`...)
	if e.ExitCode != nil {
		b = strconv.AppendInt(b, int64(*e.ExitCode), 10)
	} else {
		b = append(b, "null"...)
	}
	if e.Signal != "" {
		b = AppendString(append(b, `,"signal":`...), []byte(e.Signal))
	}
	b = strconv.AppendBool(append(b, `,"timed_out":`...), e.TimedOut)
	b = strconv.AppendBool(append(b, `,"oom_killed":`...), e.OOMKilled)
	if e.OOM != nil {
		b = strconv.AppendInt(append(b, `,"oom":{"limit_bytes":`...), e.OOM.LimitBytes, 10)
		b = append(strconv.AppendInt(append(b, `,"peak_bytes":`...), e.OOM.PeakBytes, 10), '}')
	}
	b = strconv.AppendBool(append(b, `,"cancelled":`...), e.Cancelled)
	if e.InfraError != "" {
		b = AppendString(append(b, `,"infra_error":`...), []byte(e.InfraError))
	}
	b = strconv.AppendBool(append(b, `,"stdin_closed_early":`...), e.StdinClosedEarly)
	b = strconv.AppendInt(append(b, `,"stdout_total":`...), e.StdoutTotal, 10)
	b = strconv.AppendInt(append(b, `,"stderr_total":`...), e.StderrTotal, 10)
	b = strconv.AppendBool(append(b, `,"truncated":`...), e.Truncated)
	b = strconv.AppendBool(append(b, `,"left_processes":`...), e.LeftProcesses)
	b = e.StartedAt.AppendFormat(append(b, `,"started_at":"`...), time.RFC3339Nano)
	b = strconv.AppendFloat(append(b, `","duration_ms":`...), e.DurationMS, 'f', -1, 64)
	if e.TimeoutMS != nil {
		b = strconv.AppendInt(append(b, `,"timeout_ms":`...), *e.TimeoutMS, 10)
	}
	return b
}

// AppendOutput appends an output and its encoding as members, a comma before each.
func AppendOutput(b []byte, name string, data []byte) []byte {
	b = append(append(append(b, `,"`...), name...), `":`...)
	encoding := api.EncodingUTF8
	if utf8.Valid(data) {
		b = AppendString(b, data)
	} else {
		b = AppendBase64(b, data)
		encoding = api.EncodingBase64
	}
	b = append(append(append(b, `,"`...), name...), `_encoding":"`...)
	return append(append(b, encoding...), '"')
}

// Piece is how much of an output is encoded at a time; a multiple of three, so that base64 has no padding inside.
const Piece = 48 << 10

// WriteOutput is [AppendOutput], piece by piece, by way of buf.
func WriteOutput(w io.Writer, buf *[]byte, name string, data []byte) error {
	encode, encoding := base64.StdEncoding.AppendEncode, api.EncodingBase64
	if utf8.Valid(data) {
		encode, encoding = appendEscaped, api.EncodingUTF8
	}
	b := append(append(append((*buf)[:0], `,"`...), name...), `":"`...)
	for piece := range slices.Chunk(data, Piece) {
		b = encode(b, piece)
		if _, err := w.Write(b); err != nil {
			return err
		}
		b = b[:0]
	}
	b = append(append(append(b, `","`...), name...), `_encoding":"`...)
	b = append(append(b, encoding...), '"')
	_, err := w.Write(b)
	*buf = b
	return err
}

// AppendBase64 appends bytes as a JSON string of their base64.
func AppendBase64(b, data []byte) []byte {
	b = base64.StdEncoding.AppendEncode(append(b, '"'), data)
	return append(b, '"')
}

// AppendString appends valid UTF-8 as a JSON string.
func AppendString(b, text []byte) []byte {
	return append(appendEscaped(append(b, '"'), text), '"')
}

// appendEscaped appends what is between the quotes of a JSON string.
func appendEscaped(b, text []byte) []byte {
	const hexDigits = "0123456789abcdef"
	start := 0
	for i, c := range text {
		if c >= 0x20 && c != '"' && c != '\\' {
			continue
		}
		b = append(b, text[start:i]...)
		start = i + 1
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, '\\', 'n')
		case '\r':
			b = append(b, '\\', 'r')
		case '\t':
			b = append(b, '\\', 't')
		default:
			b = append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
	}
	return append(b, text[start:]...)
}
