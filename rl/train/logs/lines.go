package logs

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"

	"github.com/dsec-io/dsec/rl/train"
)

// lines is a file of one line an update.
type lines struct {
	f      *os.File
	header string
	format func([]Scalar) ([]byte, error)
	update func(line []byte) (int, error)
}

// NewTSV opens or makes a file of tab-separated numbers, under a line of their names.
func NewTSV(name string) (Sink, error) {
	var names []string
	for _, s := range Scalars(train.Progress{}) {
		names = append(names, s.Name)
	}
	format := func(all []Scalar) ([]byte, error) {
		var b []byte
		for i, s := range all {
			if i > 0 {
				b = append(b, '\t')
			}
			b = strconv.AppendFloat(b, s.Value, 'g', 8, 64)
		}
		return b, nil
	}
	update := func(line []byte) (int, error) {
		first, _, _ := bytes.Cut(line, []byte{'\t'})
		return strconv.Atoi(string(first))
	}
	return newLines(name, strings.Join(names, "\t"), format, update)
}

// NewJSON opens or makes a file of JSON objects, one a line. A number that isn't finite is null there.
func NewJSON(name string) (Sink, error) {
	format := func(all []Scalar) ([]byte, error) {
		b := []byte{'{'}
		for i, s := range all {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(append(strconv.AppendQuote(b, s.Name), ':'), number(s.Value)...)
		}
		return append(b, '}'), nil
	}
	update := func(line []byte) (int, error) {
		var v struct{ Update int }
		err := json.Unmarshal(line, &v)
		return v.Update, err
	}
	return newLines(name, "", format, update)
}

func number(x float64) string {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return "null"
	}
	return strconv.FormatFloat(x, 'g', 10, 64)
}

func newLines(name, header string, format func([]Scalar) ([]byte, error), update func([]byte) (int, error)) (*lines, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("log: %w", err)
	}
	return &lines{f: f, header: header, format: format, update: update}, nil
}

// Resumed implements [Sink]: it keeps the whole lines of updates up to the given one.
func (l *lines) Resumed(update int) error {
	keep, err := l.upTo(update)
	if err != nil {
		return fmt.Errorf("log %s: %w", l.f.Name(), err)
	}
	return l.cut(keep)
}

// upTo returns how long the part of the file is that is kept.
func (l *lines) upTo(update int) (int64, error) {
	if _, err := l.f.Seek(0, io.SeekStart); err != nil {
		return 0, err
	}
	r, keep := bufio.NewReader(l.f), int64(0)
	for first := l.header != ""; ; first = false {
		line, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) { // a line that was cut short is void
			return keep, nil
		}
		if err != nil {
			return 0, err
		}
		if !first {
			if n, err := l.update(bytes.TrimSpace(line)); err != nil || n > update {
				return keep, nil
			}
		}
		keep += int64(len(line))
	}
}

func (l *lines) cut(keep int64) error {
	if err := l.f.Truncate(keep); err != nil {
		return fmt.Errorf("log: %w", err)
	}
	if _, err := l.f.Seek(keep, io.SeekStart); err != nil {
		return fmt.Errorf("log %s: %w", l.f.Name(), err)
	}
	if keep == 0 && l.header != "" {
		return l.write([]byte(l.header))
	}
	return nil
}

func (l *lines) write(line []byte) error {
	if _, err := l.f.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("log: %w", err)
	}
	return nil
}

// Take implements [Sink]. The first update of a run empties the file: until then nothing is lost.
func (l *lines) Take(p train.Progress) error {
	if p.Update == 1 {
		if err := l.cut(0); err != nil {
			return err
		}
	}
	line, err := l.format(Scalars(p))
	if err != nil {
		return err
	}
	return l.write(line)
}

// Close implements [Sink].
func (l *lines) Close() error { return l.f.Close() }
