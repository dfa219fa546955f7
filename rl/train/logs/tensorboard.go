package logs

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/dsec-io/dsec/rl/train"
)

// tensorBoard is an event file: records of a length, a checksum of it, an Event message, and a checksum of that.
type tensorBoard struct {
	f     *os.File
	now   func() time.Time
	table *crc32.Table
}

// NewTensorBoard makes an event file in a folder. Every start of a run has one of its own; TensorBoard reads all of
// them, in the order of their names.
func NewTensorBoard(folder string) (Sink, error) { return newTensorBoard(folder, time.Now) }

func newTensorBoard(folder string, now func() time.Time) (*tensorBoard, error) {
	f, err := os.CreateTemp(folder, fmt.Sprintf("events.out.tfevents.%d.dsec.*", now().UnixNano()/1000))
	if err != nil {
		return nil, fmt.Errorf("event file: %w", err)
	}
	t := &tensorBoard{f: f, now: now, table: crc32.MakeTable(crc32.Castagnoli)}
	if err := os.Chmod(f.Name(), 0o644); err != nil {
		return nil, fmt.Errorf("event file: %w", err)
	}
	return t, t.record(text(t.event(0), 3, "brain.Event:2"))
}

// Resumed implements [Sink]. TensorBoard drops what it had of steps that come again.
func (t *tensorBoard) Resumed(int) error { return nil }

// Take implements [Sink].
func (t *tensorBoard) Take(p train.Progress) error {
	var summary []byte
	for _, s := range Scalars(p) {
		if s.Name == "update" || s.Name == "steps" {
			continue
		}
		var value []byte
		value = text(value, 1, tag(s.Name))
		value = append(value, 2<<3|5) // simple_value, 4 bytes
		value = binary.LittleEndian.AppendUint32(value, math.Float32bits(float32(s.Value)))
		summary = text(summary, 1, string(value))
	}
	return t.record(text(t.event(p.Steps), 5, string(summary)))
}

// tag puts a number into one of TensorBoard's groups.
func tag(name string) string {
	switch {
	case strings.HasPrefix(name, "episode"):
		return "episodes/" + name
	case strings.HasPrefix(name, "time_"), strings.Contains(name, "second"):
		return "speed/" + name
	}
	return "learning/" + name
}

// event begins an Event message: wall_time and step.
func (t *tensorBoard) event(step int64) []byte {
	b := append([]byte(nil), 1<<3|1) // 8 bytes
	b = binary.LittleEndian.AppendUint64(b, math.Float64bits(float64(t.now().UnixNano())/1e9))
	if step != 0 {
		b = binary.AppendUvarint(append(b, 2<<3), uint64(step))
	}
	return b
}

// text appends a field of bytes.
func text(b []byte, field byte, s string) []byte {
	b = binary.AppendUvarint(append(b, field<<3|2), uint64(len(s)))
	return append(b, s...)
}

func (t *tensorBoard) record(event []byte) error {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(event)))
	b = binary.LittleEndian.AppendUint32(b, t.masked(b))
	b = append(b, event...)
	b = binary.LittleEndian.AppendUint32(b, t.masked(event))
	if _, err := t.f.Write(b); err != nil {
		return fmt.Errorf("event file %s: %w", filepath.Base(t.f.Name()), err)
	}
	return nil
}

// masked is the format's checksum: a CRC of data that has CRCs in it is no good as it is.
func (t *tensorBoard) masked(b []byte) uint32 {
	c := crc32.Checksum(b, t.table)
	return (c>>15 | c<<17) + 0xa282ead8
}

// Close implements [Sink].
func (t *tensorBoard) Close() error { return t.f.Close() }
