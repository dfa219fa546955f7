package api

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestDecodeRefuses(t *testing.T) {
	deep := strings.Repeat(`[`, 40) + strings.Repeat(`]`, 40)
	for name, tc := range map[string]struct {
		body, field, detail string
		code                Code
	}{
		"empty":             {"", "", "the body is empty, want an object", CodeInvalid},
		"blank":             {" \n", "", "the body is empty, want an object", CodeInvalid},
		"not-json":          {"hello", "", "not valid JSON at byte 0: not a JSON value", CodeInvalid},
		"array":             {"[]", "", "want an object, got an array", CodeInvalid},
		"null":              {"null", "", "want an object, got null", CodeInvalid},
		"trailing":          {`{"image":"a"} {}`, "", "not valid JSON at byte 14: data after the end of the document", CodeInvalid},
		"trailing-comma":    {`{"image":"a",}`, "", "not valid JSON at byte 13: want a quoted key here", CodeInvalid},
		"unknown":           {`{"imge":"a"}`, "imge", `there is no field "imge" here`, CodeUnknownField},
		"case":              {`{"Image":"a"}`, "Image", `there is no field "Image" here`, CodeUnknownField},
		"unknown-nested":    {`{"resources":{"memory":1}}`, "resources.memory", `there is no field "memory" here`, CodeUnknownField},
		"unknown-in-array":  {`{"mounts":[{"path":"/a"},{"paths":"/b"}]}`, "mounts[1].paths", `there is no field "paths" here`, CodeUnknownField},
		"escaped-duplicate": {`{"image":"a","im\u0061ge":"b"}`, "image", "the key is given twice", CodeInvalid},
		"map-duplicate":     {`{"env":{"A":"1","A":"2"}}`, "env.A", "the key is given twice", CodeInvalid},
		"string-for-number": {`{"resources":{"cpu":"2"}}`, "resources.cpu", "want a number, got a string", CodeInvalid},
		"number-for-string": {`{"image":5}`, "image", "want a string, got a number", CodeInvalid},
		"number-in-map":     {`{"env":{"A":1}}`, "env.A", "want a string, got a number", CodeInvalid},
		"null-in-map":       {`{"env":{"A":null}}`, "env.A", "want a string, got null", CodeInvalid},
		"null-for-string":   {`{"image":null}`, "image", "want a string, got null", CodeInvalid},
		"object-for-array":  {`{"command":{}}`, "command", "want an array, got an object", CodeInvalid},
		"bool-for-string":   {`{"command":[true]}`, "command[0]", "want a string, got a boolean", CodeInvalid},
		"fraction":          {`{"resources":{"pids":1.5}}`, "resources.pids", "want an integer, got the number 1.5", CodeInvalid},
		"overflow":          {`{"resources":{"pids":9223372036854775808}}`, "resources.pids", "the integer 9223372036854775808 is out of range", CodeInvalid},
		"infinite":          {`{"resources":{"cpu":1e999}}`, "resources.cpu", "the number 1e999 is out of range", CodeInvalid},
		"nan":               {`{"resources":{"cpu":NaN}}`, "resources.cpu", "not valid JSON at byte 20: not a JSON value", CodeInvalid},
		"leading-zero":      {`{"priority":01}`, "", "not valid JSON at byte 13: want ',' or '}' here", CodeInvalid},
		"surrogate":         {`{"image":"\ud800"}`, "image", "an unpaired surrogate isn't text", CodeInvalid},
		"bad-utf8":          {"{\"image\":\"\xff\"}", "image", "the text isn't valid UTF-8; send bytes as base64 where the field allows it", CodeInvalid},
		"control":           {"{\"image\":\"a\nb\"}", "image", "not valid JSON at byte 11: a control character in a string must be escaped", CodeInvalid},
		"deep":              {deep, "", "want an object, got an array", CodeInvalid},
		"cut":               {`{"image":"a`, "image", "not valid JSON at byte 11: the string doesn't end", CodeInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Decode[Spec]([]byte(tc.body))
			e := AsError(err)
			if e == nil {
				t.Fatal("Decode() accepted it")
			}
			if e.Code != tc.code || e.Detail != tc.detail || (e.Field != tc.field && tc.field != "") {
				t.Errorf("Decode() = %s %q %q, want %s %q %q", e.Code, e.Field, e.Detail, tc.code, tc.field, tc.detail)
			}
		})
	}
}

func TestDecodeDepth(t *testing.T) {
	for depth, ok := range map[int]bool{maxDepth: true, maxDepth + 1: false, 100000: false} {
		body := strings.Repeat(`[`, depth) + strings.Repeat(`]`, depth)
		if _, err := Decode[any]([]byte(body)); (err == nil) != ok {
			t.Errorf("Decode(depth %d) = %v, want accepted %v", depth, err, ok)
		}
	}
}

func TestDecodeHints(t *testing.T) {
	_, err := Decode[Size]([]byte(`{"Rows":1}`))
	if got := AsError(err).Hint; got != "did you mean rows?" {
		t.Errorf("hint = %q", got)
	}
	_, err = Decode[Size]([]byte(`{"elephants":1}`))
	if got := AsError(err).Hint; got != "the fields are cols, rows" {
		t.Errorf("hint = %q", got)
	}
	_, err = Decode[struct{}]([]byte(`{"elephants":1}`))
	if got := AsError(err).Hint; got != "leave it out: there are no fields here" {
		t.Errorf("hint = %q", got)
	}
}

func TestDecodeKeepsValues(t *testing.T) {
	body := ` {"shell":"a\u00e9\ud83d\ude00\n","env":{"A B":"$x\"'"},"stdin_b64":"AP8=","timeout_ms":5,"tty":{"rows":24,"cols":80},"tag":"t"} `
	got, err := Decode[StartRequest]([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	want := StartRequest{
		ExecRequest: ExecRequest{Shell: "aé😀\n", Env: map[string]string{"A B": `$x"'`}, Stdin: []byte{0, 255}, TimeoutMS: new(int64(5))},
		TTY:         &Size{Rows: 24, Cols: 80}, Tag: "t",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Decode() (-want +got):\n%s", diff)
	}
}

// TestDecodeRoundTrip: what the types encode to is accepted and means the same.
func TestDecodeRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.String()
		want := StartRequest{
			ExecRequest: ExecRequest{
				Argv:      rapid.SliceOfN(text, 1, 4).Draw(t, "argv"),
				Env:       rapid.MapOfN(text, text, 1, 4).Draw(t, "env"),
				Stdin:     rapid.SliceOfN(rapid.Byte(), 1, 9).Draw(t, "stdin"),
				TimeoutMS: new(rapid.Int64().Draw(t, "timeout")),
			},
			TTY: &Size{Rows: rapid.Uint16().Draw(t, "rows")},
		}
		body, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Decode[StartRequest](body)
		if err != nil {
			t.Fatalf("Decode(%s) = %v", body, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("Decode(%s) (-want +got):\n%s", body, diff)
		}
	})
}

// FuzzDecode: never a panic; a refusal is typed; what is accepted, the standard library accepts with the same meaning.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		`{"image":"busybox","resources":{"cpu":1.5,"memory_mb":64},"mounts":[{"path":"/a"}],"ttl":{"max_s":5}}`,
		`{"env":{"A":"\ud83d\ude00"},"secrets":[{"name":"x"}],"burst":true,"network":null}`, `{"image":"a","image":"b"}`, `[[[`, `{"a":1e5}`, "",
	} {
		f.Add([]byte(seed))
	}
	dec := NewDecoder[Spec]()
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := dec.Decode(data)
		if err != nil {
			if !IsCode(err, CodeInvalid) && !IsCode(err, CodeUnknownField) {
				t.Fatalf("Decode(%q) = %v, not a typed refusal", data, err)
			}
			return
		}
		var want Spec
		std := json.NewDecoder(bytes.NewReader(data))
		std.DisallowUnknownFields()
		if err := std.Decode(&want); err != nil {
			t.Fatalf("Decode(%q) accepted what encoding/json refuses: %v", data, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("Decode(%q) (-want +got):\n%s", data, diff)
		}
	})
}

// FuzzDecodeAny compares the grammar with the standard library's: only duplicates, depth, text that isn't Unicode and
// numbers out of range may be refused beyond it.
func FuzzDecodeAny(f *testing.F) {
	for _, seed := range []string{`{"a":[1,-0.5e+3,"x",null,true]}`, `"\u12`, `-`, `1.`, `{"a" : }`} {
		f.Add([]byte(seed))
	}
	dec := NewDecoder[any]()
	f.Fuzz(func(t *testing.T, data []byte) {
		_, err := dec.Decode(data)
		if err == nil && !json.Valid(data) {
			t.Fatalf("Decode(%q) accepted invalid JSON", data)
		}
		if err != nil && json.Valid(data) && strings.Contains(AsError(err).Detail, "not valid JSON") {
			t.Fatalf("Decode(%q) = %v, but it is valid", data, err)
		}
	})
}

func BenchmarkDecodeExec(b *testing.B) {
	dec := NewDecoder[ExecRequest]()
	body := []byte(`{"argv":["/bin/echo","hello"],"env":{"A":"b"},"timeout_ms":1000}`)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := dec.Decode(body); err != nil {
			b.Fatal(err)
		}
	}
}
