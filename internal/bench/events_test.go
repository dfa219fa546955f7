package bench

import (
	"io"
	"strings"
	"testing"
)

func TestEvents(t *testing.T) {
	const (
		first  = `{"type":"started","id":"p1"}` + "\n"
		second = `{"type":"stdout","offset":0,"data":"aGVs"}` + "\n" + `{"type":"stdout","offset":3,"data":"bG8="}` + "\n"
		end    = `{"type":"exit","exit":{"exit_code":0}}` + "\n"
	)
	var got strings.Builder
	if err := events(strings.NewReader(first+second+end), &got); err != nil || got.String() != "hello" {
		t.Errorf("%q, %v", got.String(), err)
	}
	for what, text := range map[string]string{
		"no end": first + second, "another exit code": strings.Replace(end, ":0", ":1", 1), "no JSON": "x\n", "no base64": strings.Replace(second, "aGVs", "a*Vs", 1) + end,
	} {
		if events(strings.NewReader(text), io.Discard) == nil {
			t.Errorf("%s: no error", what)
		}
	}
}
