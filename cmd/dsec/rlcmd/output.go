package rlcmd

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/dsec-io/dsec/rl/train"
	"github.com/dsec-io/dsec/rl/train/logs"
	"github.com/dsec-io/dsec/rl/train/plot"
)

// logName is the log in a run's folder, which its curves are drawn from.
const logName = "log.tsv"

// lines tells of a run on stdout.
type lines struct {
	w      io.Writer
	json   bool
	headed bool
}

// Resumed implements [logs.Sink]. What was printed stays: it's another program's run.
func (l *lines) Resumed(int) error { return nil }

// Take implements [logs.Sink].
func (l *lines) Take(p train.Progress) error {
	scalars := logs.Scalars(p)
	var b bytes.Buffer
	if l.json {
		b.WriteByte('{')
		for i, s := range scalars {
			if i > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(&b, "%q:%s", s.Name, jsonNumber(s.Value))
		}
		b.WriteString("}\n")
	} else {
		names, values := make([]string, len(scalars)), make([]string, len(scalars))
		for i, s := range scalars {
			names[i], values[i] = s.Name, strconv.FormatFloat(s.Value, 'g', 8, 64)
		}
		if !l.headed {
			b.WriteString(strings.Join(names, "\t") + "\n")
			l.headed = true
		}
		b.WriteString(strings.Join(values, "\t") + "\n")
	}
	_, err := l.w.Write(b.Bytes())
	return wrote(err)
}

// Close implements [logs.Sink].
func (l *lines) Close() error { return nil }

func jsonNumber(x float64) string {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return "null"
	}
	b, err := json.Marshal(x)
	if err != nil {
		return "null"
	}
	return string(b)
}

// drawCurves draws score and return over the steps of the whole run, from its log.
func drawCurves(env, folder string) error {
	text, err := os.ReadFile(filepath.Join(folder, logName))
	if err != nil {
		return fmt.Errorf("curves: %w", err)
	}
	rows := strings.Split(strings.TrimSpace(string(text)), "\n")
	names := strings.Split(rows[0], "\t")
	for _, what := range []string{"score", "return"} {
		points := column(rows[1:], slices.Index(names, "steps"), slices.Index(names, "episode_"+what), slices.Index(names, "episodes"))
		if len(points) == 0 {
			continue // no episode has ended
		}
		chart := plot.Chart{Title: env, XLabel: "steps", YLabel: what, Curves: []plot.Curve{{Name: what, Points: points}}}
		png, err := chart.PNG()
		name := filepath.Join(folder, what)
		if err = errors.Join(err, os.WriteFile(name+".svg", chart.SVG(), 0o644), os.WriteFile(name+".png", png, 0o644)); err != nil {
			return fmt.Errorf("curves: %w", err)
		}
	}
	return nil
}

// column takes the points out of a log's rows where the count isn't 0.
func column(rows []string, x, y, count int) []plot.Point {
	var points []plot.Point
	for _, row := range rows {
		cells := strings.Split(row, "\t")
		var p [3]float64
		ok := true
		for i, at := range []int{x, y, count} {
			if at < 0 || at >= len(cells) {
				ok = false
				break
			}
			var err error
			p[i], err = strconv.ParseFloat(cells[at], 64)
			ok = ok && err == nil
		}
		if ok && p[2] > 0 {
			points = append(points, plot.Point{X: p[0], Y: p[1]})
		}
	}
	return points
}
