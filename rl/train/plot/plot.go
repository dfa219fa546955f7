// Package plot draws learning curves, as SVG and as PNG.
//
// A [Chart] is curves over one pair of axes; a curve made by [Mean] from several runs has a band around it, of one
// standard deviation on either side. The two forms show the same lines; PNG has letters of its own, capitals only, so
// that no font is needed.
package plot

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Point is a place on a curve.
type Point struct{ X, Y float64 }

// Curve is a line, with a band around it where Spread isn't nil.
type Curve struct {
	Name   string
	Points []Point
	Spread []float64 // half the height of the band at each point
}

// Chart is curves over one pair of axes.
type Chart struct {
	Title, XLabel, YLabel string
	Curves                []Curve
}

// Mean makes one curve of several runs: at n places of the range that all of them have, their mean and their standard
// deviation. Runs needn't have points at the same X; each has to have them in order.
func Mean(name string, runs [][]Point, n int) Curve {
	low, high := math.Inf(-1), math.Inf(1)
	var some [][]Point
	for _, r := range runs {
		if len(r) > 0 {
			low, high = max(low, r[0].X), min(high, r[len(r)-1].X)
			some = append(some, r)
		}
	}
	c := Curve{Name: name}
	if len(some) == 0 || high < low {
		return c
	}
	for i := range n {
		x := low + (high-low)*float64(i)/float64(max(1, n-1))
		mean, square := 0.0, 0.0
		for _, r := range some {
			y := at(r, x)
			mean += y / float64(len(some))
			square += y * y / float64(len(some))
		}
		c.Points = append(c.Points, Point{x, mean})
		c.Spread = append(c.Spread, math.Sqrt(max(0, square-mean*mean)))
	}
	return c
}

// at returns a run's Y at x, on the line between two of its points.
func at(r []Point, x float64) float64 {
	i, _ := slices.BinarySearchFunc(r, x, func(p Point, x float64) int {
		if p.X < x {
			return -1
		}
		return 1
	})
	switch {
	case i == 0:
		return r[0].Y
	case i == len(r):
		return r[i-1].Y
	case r[i].X == r[i-1].X:
		return r[i].Y
	}
	a, b := r[i-1], r[i]
	return a.Y + (b.Y-a.Y)*(x-a.X)/(b.X-a.X)
}

// Smooth returns points averaged over the last few: an exponential average with the given weight of the past.
func Smooth(points []Point, past float64) []Point {
	out := make([]Point, len(points))
	var sum, weight float64
	for i, p := range points {
		sum, weight = past*sum+p.Y, past*weight+1
		out[i] = Point{p.X, sum / weight}
	}
	return out
}

// The places of a chart's parts, in pixels.
const (
	width, height            = 800, 480
	left, right, top, bottom = 80, 24, 44, 56
)

// axis maps numbers to pixels.
type axis struct {
	low, high float64
	from, to  float64
	ticks     []float64
}

func (a axis) at(x float64) float64 { return a.from + (x-a.low)/(a.high-a.low)*(a.to-a.from) }

func (c Chart) axes() (x, y axis) {
	x = axis{low: math.Inf(1), high: math.Inf(-1), from: left, to: width - right}
	y = axis{low: math.Inf(1), high: math.Inf(-1), from: height - bottom, to: top}
	for _, curve := range c.Curves {
		for i, p := range curve.Points {
			spread := 0.0
			if curve.Spread != nil {
				spread = curve.Spread[i]
			}
			if !finite(p.X) || !finite(p.Y) || !finite(spread) {
				continue
			}
			x.low, x.high = min(x.low, p.X), max(x.high, p.X)
			y.low, y.high = min(y.low, p.Y-spread), max(y.high, p.Y+spread)
		}
	}
	x.round(8)
	y.round(6)
	return x, y
}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

// round widens an axis to round numbers, and puts ticks there, about n.
func (a *axis) round(n int) {
	if !(a.low <= a.high) {
		a.low, a.high = 0, 1
	}
	if a.high-a.low < 1e-12*max(math.Abs(a.low), math.Abs(a.high), 1e-300) || a.low == a.high {
		a.low, a.high = a.low-1, a.high+1
	}
	step := math.Pow(10, math.Floor(math.Log10((a.high-a.low)/float64(n))))
	for _, k := range []float64{1, 2, 5, 10} {
		if (a.high-a.low)/(k*step) <= float64(n) {
			step *= k
			break
		}
	}
	first, last := math.Floor(a.low/step), math.Ceil(a.high/step)
	a.low, a.high = first*step, last*step
	for k := first; k <= last; k++ {
		a.ticks = append(a.ticks, k*step)
	}
}

// label writes a tick's number.
func label(x float64) string {
	abs := math.Abs(x)
	switch {
	case abs < 1e-12:
		return "0"
	case abs >= 1e9:
		return trim(x/1e9) + "G"
	case abs >= 1e6:
		return trim(x/1e6) + "M"
	case abs >= 1e4:
		return trim(x/1e3) + "k"
	}
	return trim(x)
}

func trim(x float64) string { return strconv.FormatFloat(x, 'g', 5, 64) }

// anchor is which part of a text is at its place.
type anchor string

const (
	begin  anchor = "start"
	middle anchor = "middle"
	end    anchor = "end"
)

// canvas is what a chart is drawn on.
type canvas interface {
	line(points []Point, width float64, color [3]uint8)
	fill(points []Point, color [3]uint8) // a band, light
	text(at Point, a anchor, size int, s string)
}

// palette is of colours that the colour-blind tell apart (Okabe and Ito).
func palette(i int) [3]uint8 {
	colors := [...][3]uint8{{0, 114, 178}, {213, 94, 0}, {0, 158, 115}, {204, 121, 167}, {230, 159, 0}, {86, 180, 233}, {0, 0, 0}}
	return colors[i%len(colors)]
}

func (c Chart) draw(on canvas) {
	x, y := c.axes()
	grey, black := [3]uint8{225, 225, 225}, [3]uint8{60, 60, 60}
	for _, t := range x.ticks {
		on.line([]Point{{x.at(t), y.from}, {x.at(t), y.to}}, 1, grey)
		on.text(Point{x.at(t), y.from + 18}, middle, 12, label(t))
	}
	for _, t := range y.ticks {
		on.line([]Point{{x.from, y.at(t)}, {x.to, y.at(t)}}, 1, grey)
		on.text(Point{x.from - 8, y.at(t) + 4}, end, 12, label(t))
	}
	on.line([]Point{{x.from, y.to}, {x.from, y.from}, {x.to, y.from}}, 1, black)
	on.text(Point{width / 2, 24}, middle, 16, c.Title)
	on.text(Point{width / 2, height - 14}, middle, 12, c.XLabel)
	on.text(Point{left, top - 8}, middle, 12, c.YLabel)
	for i, curve := range c.Curves {
		curve.draw(on, x, y, palette(i))
	}
	for i, curve := range c.Curves {
		at := Point{width - right - 190, height - bottom - 14 - 18*float64(len(c.Curves)-1-i)}
		on.line([]Point{{at.X - 26, at.Y - 4}, {at.X - 6, at.Y - 4}}, 3, palette(i))
		on.text(at, begin, 12, curve.Name)
	}
}

func (c Curve) draw(on canvas, x, y axis, color [3]uint8) {
	var mid, up, down []Point
	for i, p := range c.Points {
		if !finite(p.X) || !finite(p.Y) {
			continue
		}
		mid = append(mid, Point{x.at(p.X), y.at(p.Y)})
		if c.Spread != nil && finite(c.Spread[i]) {
			up = append(up, Point{x.at(p.X), y.at(p.Y + c.Spread[i])})
			down = append(down, Point{x.at(p.X), y.at(p.Y - c.Spread[i])})
		}
	}
	if len(up) > 1 {
		slices.Reverse(down)
		on.fill(append(up, down...), color)
	}
	on.line(mid, 2, color)
}

// svg is a canvas of SVG elements.
type svg struct{ b strings.Builder }

// SVG returns the chart as a file.
func (c Chart) SVG() []byte {
	var s svg
	fmt.Fprintf(&s.b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="sans-serif">`+"\n", width, height, width, height)
	fmt.Fprintf(&s.b, `<rect width="%d" height="%d" fill="white"/>`+"\n", width, height)
	c.draw(&s)
	s.b.WriteString("</svg>\n")
	return []byte(s.b.String())
}

func (s *svg) points(points []Point) string {
	var b strings.Builder
	for i, p := range points {
		if i > 0 {
			b.WriteByte(' ')
		}
		fmt.Fprintf(&b, "%.1f,%.1f", p.X, p.Y)
	}
	return b.String()
}

func (s *svg) line(points []Point, width float64, c [3]uint8) {
	fmt.Fprintf(&s.b, `<polyline points="%s" fill="none" stroke="rgb(%d,%d,%d)" stroke-width="%g"/>`+"\n", s.points(points), c[0], c[1], c[2], width)
}

func (s *svg) fill(points []Point, c [3]uint8) {
	fmt.Fprintf(&s.b, `<polygon points="%s" fill="rgb(%d,%d,%d)" fill-opacity="0.2"/>`+"\n", s.points(points), c[0], c[1], c[2])
}

func (s *svg) text(at Point, a anchor, size int, text string) {
	safe := strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace(text)
	fmt.Fprintf(&s.b, `<text x="%.1f" y="%.1f" text-anchor="%s" font-size="%d">%s</text>`+"\n", at.X, at.Y, a, size, safe)
}
