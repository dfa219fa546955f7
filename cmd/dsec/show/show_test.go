package show_test

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"

	"github.com/dsec-io/dsec/cmd/dsec/show"
)

// TestYAML: whatever JSON says, a YAML reader must find the same.
func TestYAML(t *testing.T) {
	doc := `{"a":[],"b":{},"c":[{"x":1,"y":[true,null]},"no","1","-","#x","a: b","",[["deep"]]],"d\u001b":"\u0085\ud83d\ude00 e","f":1e-7,"g":"2026-01-02"}`
	text, err := show.YAML([]byte(doc))
	if err != nil {
		t.Fatal(err)
	}
	var want, got any
	if err := errors.Join(json.Unmarshal([]byte(doc), &want), yaml.UnmarshalWithOptions(text, &got)); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	again, err := json.Marshal(got)
	if err == nil {
		err = json.Unmarshal(again, &got)
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s\n%s", err, diff, text)
	}
}

// TestJSON: what a shell script says stays readable.
func TestJSON(t *testing.T) {
	got, err := show.JSON(map[string]string{"a": "x >&2 <y\u009b\n"}, "")
	if want := `{"a":"x >&2 <y\u009b\n"}`; err != nil || string(got) != want {
		t.Errorf("JSON() = %s, %v, want %s", got, err, want)
	}
}
