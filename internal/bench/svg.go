package bench

import (
	"encoding/xml"
	"fmt"
	"math"
	"strings"
	"time"
)

// The measures of a plot, in pixels.
const (
	plotWidth, plotHeight = 720, 420
	plotLeft, plotTop     = 60, 40
	plotRight, plotBottom = 200, 50
)

// plotColours tell curves apart, also for those who see few colours.
func plotColours() []string {
	return []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999"}
}

// plotCDF draws how the times of several series are distributed: the share of operations that took no longer, over a
// logarithmic axis of time.
func plotCDF(title string, all []*series) string {
	low, high := math.Inf(1), math.Inf(-1)
	for _, s := range all {
		if len(s.times) > 0 {
			low = min(low, log10(s.quantile(0)))
			high = max(high, log10(s.quantile(1)))
		}
	}
	if low > high {
		low, high = 0, 1
	}
	if high-low < 0.1 {
		low, high = low-0.1, high+0.1
	}
	w, h := float64(plotWidth-plotLeft-plotRight), float64(plotHeight-plotTop-plotBottom)
	x := func(v float64) float64 { return plotLeft + w*(v-low)/(high-low) }
	y := func(q float64) float64 { return plotTop + h*(1-q) }

	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", plotWidth, plotHeight)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#fff"/><text x="%d" y="24" font-size="15">%s</text>`+"\n", plotWidth, plotHeight, plotLeft, escaped(title))
	for _, q := range []float64{0, .1, .5, .9, .99, 1} {
		fmt.Fprintf(&b, `<path d="M%d %.1fH%.1f" stroke="#ddd"/><text x="%d" y="%.1f" text-anchor="end">%g</text>`+"\n",
			plotLeft, y(q), plotLeft+w, plotLeft-6, y(q)+4, q)
	}
	for _, d := range ticks(low, high) {
		fmt.Fprintf(&b, `<path d="M%.1f %dV%.1f" stroke="#ddd"/><text x="%.1f" y="%.1f" text-anchor="middle">%s</text>`+"\n",
			x(log10(d)), plotTop, plotTop+h, x(log10(d)), plotTop+h+18, d)
	}
	colours := plotColours()
	for i, s := range all {
		colour := colours[i%len(colours)]
		fmt.Fprintf(&b, `<rect x="%.1f" y="%d" width="12" height="12" fill="%s"/><text x="%.1f" y="%d">%s</text>`+"\n",
			plotLeft+w+12, plotTop+18*i, colour, plotLeft+w+30, plotTop+18*i+11, escaped(s.contender+" "+s.step))
		if len(s.times) == 0 {
			continue
		}
		fmt.Fprintf(&b, `<path fill="none" stroke="%s" stroke-width="1.5" d="`, colour)
		const points = 200
		for p := range points + 1 {
			q := float64(p) / points
			op := 'L'
			if p == 0 {
				op = 'M'
			}
			fmt.Fprintf(&b, "%c%.1f %.1f", op, x(log10(s.quantile(q))), y(q))
		}
		b.WriteString(`"/>` + "\n")
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// log10 is the decimal logarithm of a time in nanoseconds.
func log10(d time.Duration) float64 { return math.Log10(max(float64(d), 1)) }

// ticks are round times between two logarithms.
func ticks(low, high float64) []time.Duration {
	var out []time.Duration
	for e := math.Floor(low); e <= high; e++ {
		for _, m := range []float64{1, 2, 5} {
			if v := math.Log10(m) + e; v >= low && v <= high {
				out = append(out, time.Duration(math.Round(m*math.Pow(10, e))))
			}
		}
	}
	return out
}

func escaped(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a strings.Builder takes everything
	return b.String()
}
