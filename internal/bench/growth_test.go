package bench

import (
	"io"
	"math"
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

// TestGrowth: what grows with the number and what grows with its square are told apart.
func TestGrowth(t *testing.T) {
	var all []grown
	for n := 16.0; n <= 1600; n += 16 {
		all = append(all, grown{n, 480*n + 0.07*n*n})
	}
	linear, square, ok := growth(all)
	if !ok || math.Abs(linear-480) > 1e-6 || math.Abs(square-0.07) > 1e-9 {
		t.Errorf("%v and %v, %v", linear, square, ok)
	}
	if _, _, ok := growth(all[:7]); ok {
		t.Error("seven samples are enough")
	}
}
