package bench

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func sample(times ...time.Duration) *tally {
	t := &tally{done: len(times), wall: time.Second, rates: []float64{float64(len(times))}, peak: 2}
	t.step("x", "op").times = times
	return t
}

// TestRatios: larger is better, for rates and for times.
func TestRatios(t *testing.T) {
	ours, peer := sample(time.Millisecond, time.Millisecond), sample(4*time.Millisecond)
	rate := ours.result("r", "ops/s", 1, ours.throughput())
	rate.against("crun", peer.throughput(), true)
	took := ours.result("t", "ms", 1, ours.timing("op", milliseconds()))
	took.against("crun", peer.timing("op", milliseconds()), false)
	took.against("bwrap", (&tally{}).timing("op", milliseconds()), false)
	if rate.Ratio["crun"] != 2 || took.Ratio["crun"] != 4 {
		t.Errorf("ratios %v and %v, want 2 and 4", rate.Ratio, took.Ratio)
	}
	if _, there := took.Peers["bwrap"]; there {
		t.Error("a peer without such a step is in the result")
	}
}

func TestDocumentShape(t *testing.T) {
	ours, peer := sample(time.Millisecond, 3*time.Millisecond), sample(4*time.Millisecond)
	peer.failed = 3
	r := ours.result("exec.rate", "execs/s", 16, ours.throughput())
	r.against("crun", peer.throughput(), true)
	d := &Document{Machine: "m", Command: "dsec bench exec", Notes: []string{"n"}, Results: []Result{r}}
	var out bytes.Buffer
	if err := d.WriteJSON(&out); err != nil {
		t.Fatal(err)
	}
	var got any
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"machine": "m", "command": "dsec bench exec", "notes": []any{"n"},
		"results": []any{map[string]any{
			"name": "exec.rate", "unit": "execs/s", "value": 2.0, "n": 2.0, "failures": 0.0, "concurrency": 16.0, "peak_concurrency": 2.0,
			"p10": 2.0, "p50": 2.0, "p90": 2.0, "p99": 2.0,
			"peers": map[string]any{"crun": map[string]any{
				"value": 1.0, "n": 1.0, "failures": 3.0, "p10": 1.0, "p50": 1.0, "p90": 1.0, "p99": 1.0,
			}},
			"ratio": map[string]any{"crun": 2.0},
		}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("document (-want +got):\n%s", diff)
	}
	if d.Failures() != 3 {
		t.Errorf("Failures() = %d: a peer's count, too", d.Failures())
	}
	out.Reset()
	if err := d.WriteTable(&out); err != nil || !strings.Contains(out.String(), "crun 1.00 (2.00x)") {
		t.Errorf("table %v:\n%s", err, out.String())
	}
}

// TestPlot: the plot is well-formed, names everything safely, and its curves go up.
func TestPlot(t *testing.T) {
	odd := &series{contender: `<&">`, step: "op"}
	for i := range 1000 {
		odd.times = append(odd.times, time.Duration(i+1)*time.Microsecond)
	}
	svg := plotCDF("create & exec", []*series{odd, {contender: "none", step: "op"}})
	dec := xml.NewDecoder(strings.NewReader(svg))
	var text strings.Builder
	curves := 0
	for {
		token, err := dec.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("not XML: %v\n%s", err, svg)
		}
		switch token := token.(type) {
		case xml.CharData:
			text.Write(token)
		case xml.StartElement:
			for _, a := range token.Attr {
				if a.Name.Local == "stroke-width" {
					curves++
				}
			}
		}
	}
	for _, want := range []string{"create & exec", `<&"> op`, "none op", "100µs", "0.99"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in the texts", want)
		}
	}
	if curves != 1 {
		t.Errorf("%d curves of one series with times", curves)
	}
}
