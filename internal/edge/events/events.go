// Package events keeps the events of a sandbox: in memory, and in a file of JSON lines that outlives the process.
//
// A [Log] is safe for concurrent use; its lock is a leaf.
package events

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"github.com/dsec-io/dsec/api"
)

// Kept is how many events of a sandbox can be read; its file holds at most twice as many.
const Kept = 1000

// Files is how a log reaches the disk. Each operation has a label, so that a test can let exactly one fail.
type Files interface {
	Write(label, path string, data []byte) error
	Append(label, path string, data []byte) error
	Rename(label, from, to string) error
	Remove(label, path string) error
}

// Log is the events of one sandbox, in memory and in its file.
type Log struct {
	id    string
	path  string
	files Files

	// mu guards what follows, and the file.
	mu      sync.Mutex
	events  []api.Event // the newest Kept
	next    int64       // seq of the next event
	lines   int         // in the file
	first   []byte      // lines that wait for the next one, see Begin
	stale   bool        // the file lacks an event that couldn't be written
	sealed  bool        // the file is being removed
	changed chan struct{}
}

// New makes the log of a new sandbox, with a file at path.
func New(id, path string, files Files) *Log {
	return &Log{id: id, path: path, files: files, next: 1, changed: make(chan struct{})}
}

// Open reads a log back. A torn last line is what a crash leaves; it was never shown to anybody.
func Open(id, path string, files Files) (*Log, error) {
	j := New(id, path, files)
	raw, err := os.ReadFile(j.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read events of %s: %w", id, err)
	}
	good := 0
	for line := range bytes.Lines(raw) {
		var ev api.Event
		// What comes after a line that can't be read has lost its place in the order, so it isn't kept either.
		if line[len(line)-1] != '\n' || json.Unmarshal(line, &ev) != nil || (j.next > 1 && ev.Seq != j.next) {
			break
		}
		good += len(line)
		j.push(ev)
	}
	if good != len(raw) {
		return j, j.rewrite()
	}
	return j, nil
}

func (j *Log) push(ev api.Event) {
	if len(j.events) == Kept {
		j.events = append(j.events[:0:0], j.events[Kept/10:]...)
	}
	j.events = append(j.events, ev)
	j.next = ev.Seq + 1
	j.lines++
}

// overLocked tells whether the last event is the sandbox's end. The caller holds j.mu.
func (j *Log) overLocked() bool {
	if len(j.events) == 0 {
		return false
	}
	last := api.State(j.events[len(j.events)-1].Type)
	return last.Ended()
}

// Begin adds the first event of a log, whose file is made with the second: what a sandbox's making is told by is of no use
// to anybody without its outcome.
func (j *Log) Begin(kind string, data map[string]any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	ev := api.Event{Seq: j.next, Time: time.Now().UTC(), Sandbox: j.id, Type: kind, Data: data}
	line, err := json.Marshal(ev)
	if err != nil {
		return // strings and numbers: can't be
	}
	j.push(ev)
	j.first = append(line, '\n')
	close(j.changed)
	j.changed = make(chan struct{})
}

// Add appends an event; after the sandbox's end there are no more, and it does nothing. A file that can't be written loses events over a restart, never the running edge's.
func (j *Log) Add(kind, message string, data map[string]any) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.overLocked() {
		return nil
	}
	ev := api.Event{Seq: j.next, Time: time.Now().UTC(), Sandbox: j.id, Type: kind, Message: message, Data: data}
	line, err := json.Marshal(ev)
	if err != nil {
		return fmt.Errorf("encode event: %w", err)
	}
	j.push(ev)
	close(j.changed)
	j.changed = make(chan struct{})
	if j.sealed {
		return nil
	}
	if j.stale || j.lines > 2*Kept {
		return j.rewrite()
	}
	line = append(append(j.first, line...), '\n')
	j.first = nil
	if err := j.files.Append("events:append", j.path, line); err != nil {
		j.stale = true
		return fmt.Errorf("append event of %s: %w", j.id, err)
	}
	return nil
}

// Seal has nothing written any more: the file is about to be removed, and who comes late doesn't make it anew.
func (j *Log) Seal() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.sealed = true
}

// rewrite replaces the file by what is kept. The caller holds j.mu, or has j for itself.
func (j *Log) rewrite() error {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	for _, ev := range j.events {
		if err := enc.Encode(ev); err != nil {
			return fmt.Errorf("encode event: %w", err)
		}
	}
	tmp := j.path + ".tmp"
	if err := j.files.Write("events:write", tmp, buf.Bytes()); err != nil {
		_ = j.files.Remove("events:remove-tmp", tmp) // else the next start does
		return fmt.Errorf("write events of %s: %w", j.id, err)
	}
	if err := j.files.Rename("events:rename", tmp, j.path); err != nil {
		_ = j.files.Remove("events:remove-tmp", tmp) // else the next start does
		return fmt.Errorf("put events of %s in place: %w", j.id, err)
	}
	j.lines, j.stale, j.first = len(j.events), false, nil
	return nil
}

// Since returns the events after seq and a channel that is closed when there are more, nil after the sandbox's end. Where older ones have fallen
// out, the first event is of type "gap": it has the seq of the last missing one and names the first.
func (j *Log) Since(seq int64) ([]api.Event, <-chan struct{}) {
	j.mu.Lock()
	defer j.mu.Unlock()
	more := (<-chan struct{})(j.changed)
	if j.overLocked() {
		more = nil
	}
	if len(j.events) == 0 || seq >= j.next-1 {
		return nil, more
	}
	first := j.events[0].Seq
	if seq+1 >= first {
		return append([]api.Event(nil), j.events[seq+1-first:]...), more
	}
	gap := api.Event{
		Seq: first - 1, Time: j.events[0].Time, Sandbox: j.id, Type: "gap",
		Message: "older events aren't kept", Data: map[string]any{"first": seq + 1, "last": first - 1},
	}
	return append([]api.Event{gap}, j.events...), more
}
