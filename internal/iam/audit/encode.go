package audit

import (
	"encoding/json"
	"strconv"
	"time"

	"github.com/dsec-io/dsec/api"
)

// appendRecord appends a record as json.Marshal would write it, for a tenth of the time: there is one per exec.
func appendRecord(b []byte, r *api.AuditRecord) []byte {
	b = append(b, `{"seq":`...)
	b = strconv.AppendUint(b, r.Seq, 10)
	b = append(b, `,"time":"`...)
	b = r.Time.AppendFormat(b, time.RFC3339Nano)
	b = append(b, '"')
	b = appendText(b, "request_id", r.RequestID)
	b = appendText(b, "token", r.Token)
	b = appendText(b, "project", r.Project)
	b = append(b, `,"action":`...)
	b = appendString(b, r.Action)
	b = append(b, `,"operation":`...)
	b = appendString(b, r.Operation)
	b = appendText(b, "resource", r.Resource)
	b = append(b, `,"decision":`...)
	b = appendString(b, string(r.Decision))
	b = append(b, `,"result":`...)
	b = appendString(b, r.Result)
	b = appendText(b, "client", r.Client)
	if r.Suppressed != 0 {
		b = append(b, `,"suppressed":`...)
		b = strconv.AppendInt(b, r.Suppressed, 10)
	}
	return append(b, "}\n"...)
}

// appendText appends a member that is left out when empty.
func appendText(b []byte, name, value string) []byte {
	if value == "" {
		return b
	}
	b = append(append(append(b, `,"`...), name...), `":`...)
	return appendString(b, value)
}

func appendString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			quoted, err := json.Marshal(s)
			if err != nil {
				return append(b, `""`...) // a string can be encoded
			}
			return append(b, quoted...)
		}
	}
	return append(append(append(b, '"'), s...), '"')
}
