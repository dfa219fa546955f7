package logs

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dsec-io/dsec/rl/env"
	"github.com/dsec-io/dsec/rl/train"
)

func progress(update int) train.Progress {
	return train.Progress{
		Update: update, Updates: 5, Steps: int64(update) * 1000, Elapsed: time.Second, SPS: 1e5,
		Episodes: env.Stats{Episodes: 7, Return: 0.5, Length: 20, Score: float64(update) / 10},
	}
}

func content(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestLines: after any number of starts each update is there once, whatever a kill has left of the last line.
func TestLines(t *testing.T) {
	for name, open := range map[string]func(string) (Sink, error){"tsv": NewTSV, "json": NewJSON} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "log")
			take := func(resumed int, updates ...int) {
				t.Helper()
				s, err := open(file)
				if err != nil {
					t.Fatal(err)
				}
				h := All(s)
				if resumed > 0 {
					if err := h.Resumed(resumed); err != nil {
						t.Fatal(err)
					}
				}
				for _, u := range updates {
					if err := h.Update(progress(u)); err != nil {
						t.Fatal(err)
					}
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			}
			take(0, 1, 2, 3, 4, 5)
			want := content(t, file)
			take(2, 3, 4, 5)
			if diff := cmp.Diff(want, content(t, file)); diff != "" {
				t.Errorf("resumed from 2 (-want +got):\n%s", diff)
			}
			take(0, 1, 2, 3)
			if err := os.Truncate(file, int64(len(content(t, file))-4)); err != nil {
				t.Fatal(err)
			}
			take(2, 3, 4, 5)
			if diff := cmp.Diff(want, content(t, file)); diff != "" {
				t.Errorf("after a short line (-want +got):\n%s", diff)
			}
			if name == "json" {
				for line := range strings.Lines(want) {
					var v map[string]float64
					if err := json.Unmarshal([]byte(line), &v); err != nil || v["episode_return"] != 0.5 {
						t.Errorf("line %s: %v", line, err)
					}
				}
			}
		})
	}
}

func TestJSONOfNonsense(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	s, err := NewJSON(file)
	if err != nil {
		t.Fatal(err)
	}
	p := progress(1)
	p.Loss.Value = math.NaN()
	if err := errors.Join(s.Take(p), s.Close()); err != nil {
		t.Fatal(err)
	}
	var v map[string]any
	if err := json.Unmarshal([]byte(content(t, file)), &v); err != nil || v["value_loss"] != nil {
		t.Errorf("%v: %v", v["value_loss"], err)
	}
}

// TestTensorBoard reads the file as TensorBoard does: checksums, then the messages.
func TestTensorBoard(t *testing.T) {
	folder := t.TempDir()
	s, err := newTensorBoard(folder, func() time.Time { return time.Unix(1000, 0) })
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Take(progress(3)), s.Close()); err != nil {
		t.Fatal(err)
	}
	names, err := filepath.Glob(filepath.Join(folder, "events.out.tfevents.*"))
	if err != nil || len(names) != 1 {
		t.Fatal(names, err)
	}
	file, events := []byte(content(t, names[0])), [][]byte(nil)
	masked := func(b []byte) uint32 {
		c := crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))
		return ((c >> 15) | (c << 17)) + 0xa282ead8
	}
	for len(file) > 0 {
		n := binary.LittleEndian.Uint64(file)
		if binary.LittleEndian.Uint32(file[8:]) != masked(file[:8]) || binary.LittleEndian.Uint32(file[12+n:]) != masked(file[12:12+n]) {
			t.Fatal("a checksum is wrong")
		}
		events, file = append(events, file[12:12+n]), file[16+n:]
	}
	if len(events) != 2 || !bytes.HasSuffix(events[0], []byte("brain.Event:2")) {
		t.Fatalf("%d events: %q", len(events), events)
	}
	e := events[1]
	if e[0] != 0x09 || math.Float64frombits(binary.LittleEndian.Uint64(e[1:])) != 1000 || e[9] != 0x10 {
		t.Errorf("event begins %x", e[:10])
	}
	if step, _ := binary.Uvarint(e[10:]); step != 3000 {
		t.Errorf("step %d, want 3000", step)
	}
	score := append([]byte("\x0a\x16episodes/episode_score\x15"), binary.LittleEndian.AppendUint32(nil, math.Float32bits(0.3))...)
	if !bytes.Contains(e, score) {
		t.Errorf("no score in %q", e)
	}
}

func TestDashboard(t *testing.T) {
	var out bytes.Buffer
	now := time.Unix(0, 0)
	d := newDashboard(&out, "squared", func() time.Time { return now })
	for u := 1; u <= 4; u++ { // within a quarter of a second
		if err := d.Take(progress(u)); err != nil {
			t.Fatal(err)
		}
	}
	first := out.String()
	if strings.Count(first, "steps/s") != 1 {
		t.Errorf("drawn %d times within a moment", strings.Count(first, "steps/s"))
	}
	if err := d.Take(progress(5)); err != nil {
		t.Fatal(err)
	}
	second := strings.TrimPrefix(out.String(), first)
	if !strings.HasPrefix(second, "\x1b[14A") || !strings.Contains(second, "100.0 %") || !strings.Contains(second, "5000") {
		t.Errorf("the last update is drawn as %q", second)
	}
	for line := range strings.Lines(second) {
		if n := len(strings.TrimRight(strings.ReplaceAll(strings.TrimPrefix(line, "\x1b[14A"), "\x1b[2K", ""), "\n")); n > dashboardWidth {
			t.Errorf("a line of %d characters: %q", n, line)
		}
	}
}
