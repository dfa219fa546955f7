package openapi

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/dsec-io/dsec/api"
)

func description(t *testing.T) *Document {
	t.Helper()
	d, err := New([]string{"POST /v1/later", "GET /v1/before"})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestRulesApply fails for a rule about a field that doesn't exist, or that no operation has.
func TestRulesApply(t *testing.T) {
	d := description(t)
	for key := range rules() {
		if !d.schemas.used[key] {
			t.Errorf("rules: %s: there is no such thing in the document", key)
		}
	}
}

// TestDocumentIsTheSameEveryTime: it is compared with a file, and clients may cache it.
func TestDocumentIsTheSameEveryTime(t *testing.T) {
	first, err := description(t).JSON()
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if again, err := description(t).JSON(); err != nil || !bytes.Equal(first, again) {
			t.Fatalf("two documents differ, or: %v", err)
		}
	}
	var doc struct {
		Pending []string `json:"x-not-implemented"`
	}
	if err := json.Unmarshal(first, &doc); err != nil || !slices.Equal(doc.Pending, []string{"GET /v1/before", "POST /v1/later"}) {
		t.Errorf("x-not-implemented = %v, %v", doc.Pending, err)
	}
}

// TestOperations: each has what a reader needs, and what it refers to exists.
func TestOperations(t *testing.T) {
	d := description(t)
	ids, known, tagged := map[string]bool{}, map[api.Code]bool{}, map[string]bool{}
	for _, p := range d.Problems {
		known[p.Code] = true
		if p.Status < 400 || p.Code != api.CodeInternal && p.Status == 500 {
			t.Errorf("code %s has status %d", p.Code, p.Status)
		}
	}
	for _, tag := range d.Tags {
		tagged[tag.Name] = true
	}
	for _, op := range d.Operations {
		if ids[op.ID] || op.ID == "" || op.Summary == "" || !tagged[op.Tag] || len(op.Answers) == 0 {
			t.Errorf("operation %q of tag %q isn't complete, or there are two", op.ID, op.Tag)
		}
		ids[op.ID] = true
		for _, c := range op.Codes {
			if !known[c] {
				t.Errorf("%s: there is no code %s", op.ID, c)
			}
		}
		for _, name := range pathParams(op.Path) {
			if pathWords()[name].Schema == nil {
				t.Errorf("%s: {%s} isn't described", op.ID, name)
			}
		}
	}
	for _, e := range d.Examples {
		if !ids[e.Op] || e.Answer.Status == 0 || strings.Contains(e.Path, "{") {
			t.Errorf("example %s: nothing is recorded, or there is no such operation: run go test ./test/contract -run TestExamples -record", e.Key())
		}
	}
	for _, s := range d.Schemas {
		if s.Schema.Description == "" {
			t.Errorf("type %s has no comment", s.Name)
		}
	}
}

func TestCurl(t *testing.T) {
	op := Operation{Method: "POST"}
	e := Example{Path: "/v1/x?a=b", Headers: []string{"X: y"}, Body: `{"a": "it's"}`}
	want := `curl -s -H "Authorization: Bearer $DSEC_TOKEN" "$DSEC_ENDPOINT/v1/x?a=b" -H 'X: y' --json '{"a": "it'\''s"}'`
	if got := Curl(&op, &e); got != want {
		t.Errorf("Curl() = %s, want %s", got, want)
	}
	op = Operation{Method: "DELETE", Public: true}
	if got, want := Curl(&op, &Example{Path: "/x"}), `curl -s -X DELETE "$DSEC_ENDPOINT/x"`; got != want {
		t.Errorf("Curl() = %s, want %s", got, want)
	}
}
