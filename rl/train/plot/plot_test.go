package plot

import (
	"bytes"
	"encoding/xml"
	"errors"
	"image/png"
	"io"
	"math"
	"os"
	"path/filepath"
	"testing"
)

func chart() Chart {
	var runs [][]Point
	for seed := range 5 {
		var r []Point
		for i := range 60 {
			r = append(r, Point{float64(i*65536 + 1000*seed), 1 - math.Exp(-float64(i)/float64(10+3*seed))})
		}
		runs = append(runs, r)
	}
	flat := []Point{{0, 0.25}, {1e6, 0.25}, {2e6, math.NaN()}, {3e6, 0.3}}
	return Chart{Title: "squared <mlp & lstm>", XLabel: "steps", YLabel: "score", Curves: []Curve{Mean("lstm128", runs, 100), {Name: "mlp128", Points: flat}}}
}

func TestMean(t *testing.T) {
	c := Mean("x", [][]Point{{{0, 0}, {10, 10}}, {{0, 2}, {4, 2}, {20, 2}}, nil}, 11)
	if len(c.Points) != 11 || c.Points[10] != (Point{10, 6}) || c.Points[3] != (Point{3, 2.5}) || math.Abs(c.Spread[10]-4) > 1e-9 {
		t.Errorf("Mean() = %+v", c)
	}
	if c := Mean("x", nil, 5); len(c.Points) != 0 {
		t.Errorf("Mean of nothing = %+v", c)
	}
}

func TestSmooth(t *testing.T) {
	got := Smooth([]Point{{0, 4}, {1, 4}, {2, 10}}, 0.5)
	if got[0].Y != 4 || got[1].Y != 4 || math.Abs(got[2].Y-(10+2+1)/1.75) > 1e-9 {
		t.Errorf("Smooth() = %v", got)
	}
}

func TestSVG(t *testing.T) {
	d, elements := xml.NewDecoder(bytes.NewReader(chart().SVG())), 0
	for {
		_, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		elements++
	}
	if elements < 50 {
		t.Errorf("%d elements", elements)
	}
	if bytes.Contains(chart().SVG(), []byte("NaN")) {
		t.Error("NaN in the file")
	}
}

// TestPNG looks for the first curve's colour where the curve is. DSEC_PLOT keeps the picture.
func TestPNG(t *testing.T) {
	file, err := chart().PNG()
	if err != nil {
		t.Fatal(err)
	}
	img, err := png.Decode(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	x, y := chart().axes()
	p := chart().Curves[0].Points[99]
	r, g, b, _ := img.At(int(x.at(p.X)), int(y.at(p.Y))).RGBA()
	if r>>8 > 60 || g>>8 > 150 || b>>8 < 140 {
		t.Errorf("colour %d %d %d at the end of the curve", r>>8, g>>8, b>>8)
	}
	if folder := os.Getenv("DSEC_PLOT"); folder != "" {
		if err := os.WriteFile(filepath.Join(folder, "test.png"), file, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestEmptyChart(t *testing.T) {
	for _, c := range []Chart{{}, {Curves: []Curve{{Points: []Point{{5, 5}}}}}, {Curves: []Curve{{Points: []Point{{math.NaN(), 1}}}}}} {
		if _, err := c.PNG(); err != nil {
			t.Error(err)
		}
		if bytes.Contains(c.SVG(), []byte("NaN")) {
			t.Errorf("NaN in the file of %+v", c)
		}
	}
}

func TestTicks(t *testing.T) {
	a := axis{low: 0.13, high: 0.97}
	a.round(6)
	if a.low != 0 || a.high != 1 || len(a.ticks) != 6 {
		t.Errorf("%+v", a)
	}
	for x, want := range map[float64]string{0: "0", 1500000: "1.5M", 20000: "20k", 0.25: "0.25", -3: "-3", 2e9: "2G"} {
		if got := label(x); got != want {
			t.Errorf("label(%v) = %s, want %s", x, got, want)
		}
	}
}

// TestRuns: seeds become one curve, names several; what is written is what the runs were.
func TestRuns(t *testing.T) {
	runs := []Run{
		{"a", 0, []Point{{0, 0}, {10, 1}}}, {"b", 0, []Point{{0, 5}, {10, 5}}}, {"a", 1, []Point{{0, 2}, {10, 3}}}, {"c", 2, nil},
	}
	c := OfRuns("walk", "score", runs)
	if len(c.Curves) != 3 || c.Title != "walk" || c.YLabel != "score" || c.Curves[0].Name != "a" || c.Curves[1].Name != "b" {
		t.Fatalf("%+v", c)
	}
	if a := c.Curves[0]; a.Points[0] != (Point{0, 1}) || a.Spread[0] != 1 || len(a.Points) != places || len(c.Curves[2].Points) != 0 {
		t.Errorf("%+v", a)
	}
	const want = "curve\tseed\tsteps\tscore\na\t0\t0\t0\na\t0\t10\t1\nb\t0\t0\t5\nb\t0\t10\t5\na\t1\t0\t2\na\t1\t10\t3\n"
	if got := string(TSV("score", runs)); got != want {
		t.Errorf("TSV() = %q", got)
	}
	dir := t.TempDir()
	if err := Write(dir, "walk", "score", runs); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"walk.svg": "</svg>", "walk.png": "PNG", "walk.tsv": "a\t1\t10\t3\n"} {
		if file, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !bytes.Contains(file, []byte(content)) {
			t.Errorf("%s: %d bytes, %v", name, len(file), err)
		}
	}
	if err := Write(filepath.Join(dir, "none"), "walk", "score", runs); err == nil {
		t.Error("a folder that isn't there: no error")
	}
}
