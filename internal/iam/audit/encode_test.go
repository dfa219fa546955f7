package audit

import (
	"encoding/json"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/dsec-io/dsec/api"
)

// TestEncoding: a record is written as the standard library writes it, whatever is in it.
func TestEncoding(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := func(name string) string {
			return rapid.OneOf(rapid.String(), rapid.StringMatching(`[a-z/<"\\]{0,5}`)).Draw(t, name)
		}
		rec := api.AuditRecord{
			Seq: rapid.Uint64().Draw(t, "seq"), Time: time.Unix(rapid.Int64Range(0, 4e9).Draw(t, "s"), rapid.Int64Range(0, 1e9-1).Draw(t, "ns")).UTC(),
			RequestID: text("id"), Token: text("token"), Project: text("project"), Action: text("action"), Operation: text("operation"),
			Resource: text("resource"), Decision: api.Decision(text("decision")), Result: text("result"), Client: text("client"),
			Suppressed: rapid.Int64().Draw(t, "suppressed"),
		}
		want, err := json.Marshal(rec)
		if err != nil {
			t.Fatal(err)
		}
		if got := appendRecord(nil, &rec); string(got) != string(want)+"\n" {
			t.Fatalf("appendRecord() = %s, want %s", got, want)
		}
	})
}
