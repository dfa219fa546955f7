package plot

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
)

// Run is what one seed came to, of those that make a curve together.
type Run struct {
	Curve  string
	Seed   uint64
	Points []Point
}

// places is how many points the curve of several runs has.
const places = 100

// OfRuns makes a chart with one curve for each name among the runs, in their order. Points are smoothed by half.
func OfRuns(title, yLabel string, runs []Run) Chart {
	c := Chart{Title: title, XLabel: "steps", YLabel: yLabel}
	var names []string
	for _, r := range runs {
		if !slices.Contains(names, r.Curve) {
			names = append(names, r.Curve)
		}
	}
	for _, name := range names {
		var of [][]Point
		for _, r := range runs {
			if r.Curve == name {
				of = append(of, Smooth(r.Points, 0.5))
			}
		}
		c.Curves = append(c.Curves, Mean(name, of, places))
	}
	return c
}

// TSV is all points of the runs as they were, one a line: curve, seed, steps, and what the chart's Y is.
func TSV(yLabel string, runs []Run) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "curve\tseed\tsteps\t%s\n", yLabel)
	for _, r := range runs {
		for _, p := range r.Points {
			fmt.Fprintf(&b, "%s\t%d\t%.0f\t%s\n", r.Curve, r.Seed, p.X, strconv.FormatFloat(p.Y, 'g', 5, 64))
		}
	}
	return b.Bytes()
}

// Write draws the runs of name to the folder's files name.svg and name.png, and writes their numbers to name.tsv.
func Write(folder, name, yLabel string, runs []Run) error {
	chart := OfRuns(name, yLabel, runs)
	png, err := chart.PNG()
	if err != nil {
		return err
	}
	path := filepath.Join(folder, name)
	err = errors.Join(
		os.WriteFile(path+".svg", chart.SVG(), 0o644), os.WriteFile(path+".png", png, 0o644), os.WriteFile(path+".tsv", TSV(yLabel, runs), 0o644),
	)
	if err != nil {
		return fmt.Errorf("curves: %w", err)
	}
	return nil
}
