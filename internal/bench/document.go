package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Document is the outcome of a benchmark.
type Document struct {
	Machine string   `json:"machine"` // one line: processor, memory, kernel, load, versions of peers
	Command string   `json:"command"` // what prints this again
	Notes   []string `json:"notes"`   // what one has to know to read the figures
	Results []Result `json:"results"`
}

// Result is one figure with its spread. Value is a rate for units that end in "/s", and the median for times.
type Result struct {
	Name        string            `json:"name"`
	Unit        string            `json:"unit"`
	Value       float64           `json:"value"`
	N           int               `json:"n"`        // operations that succeeded
	Failures    int               `json:"failures"` // that did not
	Concurrency int               `json:"concurrency"`
	Peak        int               `json:"peak_concurrency"` // the most that were really under way at once
	P10         float64           `json:"p10"`
	P50         float64           `json:"p50"`
	P90         float64           `json:"p90"`
	P99         float64           `json:"p99"`
	Peers       map[string]Figure `json:"peers,omitempty"`
	// Ratio is ours to the peer's, the right way round for larger to be better.
	Ratio map[string]float64 `json:"ratio,omitempty"`
}

// Figure is what a peer had in the place of our [Result].
type Figure struct {
	Value    float64 `json:"value"`
	N        int     `json:"n"`
	Failures int     `json:"failures"`
	P10      float64 `json:"p10"`
	P50      float64 `json:"p50"`
	P90      float64 `json:"p90"`
	P99      float64 `json:"p99"`
}

// Failures counts what went wrong, of peers too: a comparison with half of a peer is none.
func (d *Document) Failures() int {
	n := 0
	for _, r := range d.Results {
		n += r.Failures
		for _, p := range r.Peers {
			n += p.Failures
		}
	}
	return n
}

// WriteJSON writes the one document.
func (d *Document) WriteJSON(w io.Writer) error {
	raw, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		return fmt.Errorf("encode results: %w", err)
	}
	_, err = w.Write(append(raw, '\n'))
	return err
}

// WriteTable writes the results for people.
func (d *Document) WriteTable(w io.Writer) error {
	fmt.Fprintf(w, "%s\n%s\n", d.Machine, d.Command)
	for _, n := range d.Notes {
		fmt.Fprintf(w, "  %s\n", n)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "\nNAME\tC\tN\tFAILED\tVALUE\tUNIT\tP10\tP50\tP90\tP99\tAGAINST\t")
	for _, r := range d.Results {
		var against strings.Builder
		for _, peer := range slices.Sorted(maps.Keys(r.Ratio)) {
			fmt.Fprintf(&against, " %s %s (%.2fx)", peer, number(r.Peers[peer].Value), r.Ratio[peer])
		}
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", r.Name, r.Concurrency, r.N, r.Failures, number(r.Value), r.Unit,
			number(r.P10), number(r.P50), number(r.P90), number(r.P99), against.String())
	}
	return t.Flush()
}

// number prints three significant digits or so.
func number(v float64) string {
	switch {
	case v >= 100 || v <= -100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10 || v <= -10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// unit is a unit of time.
type unit struct {
	name string
	size time.Duration
}

func milliseconds() unit { return unit{"ms", time.Millisecond} }
func microseconds() unit { return unit{"us", time.Microsecond} }

func (u unit) of(d time.Duration) float64 { return float64(d) / float64(u.size) }

// timing is the figure of one step.
func (t *tally) timing(step string, u unit) Figure {
	s := t.find(step)
	f := Figure{
		N: len(s.times), Failures: t.failed,
		P10: u.of(s.quantile(.1)), P50: u.of(s.quantile(.5)), P90: u.of(s.quantile(.9)), P99: u.of(s.quantile(.99)),
	}
	f.Value = f.P50
	return f
}

// throughput is the figure of whole operations; its quantiles are over blocks.
func (t *tally) throughput() Figure {
	return Figure{
		Value: t.rate(), N: t.done, Failures: t.failed,
		P10: quantileOf(t.rates, .1), P50: quantileOf(t.rates, .5), P90: quantileOf(t.rates, .9), P99: quantileOf(t.rates, .99),
	}
}

// result makes a [Result] of our figure. The failures of an operation are told once, with its rate.
func (t *tally) result(name, unit string, concurrency int, f Figure) Result {
	return Result{
		Name: name, Unit: unit, Value: f.Value, N: f.N, Failures: f.Failures, Concurrency: concurrency, Peak: t.peak,
		P10: f.P10, P50: f.P50, P90: f.P90, P99: f.P99,
	}
}

// against adds a peer. rate: more is better.
func (r *Result) against(peer string, f Figure, rate bool) {
	if f.N == 0 && f.Failures == 0 {
		return
	}
	if r.Peers == nil {
		r.Peers, r.Ratio = map[string]Figure{}, map[string]float64{}
	}
	r.Peers[peer] = f
	switch {
	case rate && f.Value > 0:
		r.Ratio[peer] = r.Value / f.Value
	case !rate && r.Value > 0:
		r.Ratio[peer] = f.Value / r.Value
	}
}
