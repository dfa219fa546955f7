// Package records has what an edge must know of its sandboxes after its own death: a record of each, in a file that is
// whole whenever the edge dies.
//
// A [Record] belongs to its sandbox's lock. A [Store] is safe for concurrent use, but one id is saved by one goroutine at a
// time.
package records

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/edge/instance"
	"github.com/dsec-io/dsec/internal/edge/lifetime"
)

// Version is that of the records that this program makes; those of later ones it leaves alone.
const Version = 1

var errVersion = errors.New("record has a later version")

// Record is what the edge must know of a sandbox after its own death. A running sandbox dies with the boot, so its
// record needs no fsync; that of a paused one has it before anybody is told.
type Record struct {
	Version      int             `json:"version"`
	Instance     string          `json:"instance"`
	BootID       string          `json:"boot_id"`
	ID           string          `json:"id"`
	Project      string          `json:"project"`
	Spec         api.Spec        `json:"spec"`           // effective
	Born         *api.Spec       `json:"born,omitempty"` // the effective spec at first, where a patch has changed it since
	ImageEnv     []string        `json:"image_env,omitempty"`
	ImageCommand []string        `json:"image_command,omitempty"` // what an exec without a command runs
	State        api.State       `json:"state"`
	Reason       string          `json:"reason,omitempty"`
	CreatedAt    time.Time       `json:"created_at"`
	StartedAt    *time.Time      `json:"started_at,omitempty"`
	PausedAt     *time.Time      `json:"paused_at,omitempty"`
	EndedAt      *time.Time      `json:"ended_at,omitempty"`
	Life         lifetime.Record `json:"life,omitzero"`
	Backend      string          `json:"backend"`
	BackendState json.RawMessage `json:"backend_state,omitempty"`
	Patching     bool            `json:"patching,omitempty"` // the limits in spec may not be set yet
	Unclean      bool            `json:"unclean,omitempty"`  // it ended, but something of it may be left
}

// View is the sandbox as clients see it.
func (r *Record) View() api.Sandbox {
	return api.Sandbox{
		ID: r.ID, State: r.State, Reason: r.Reason, Project: r.Project, Spec: r.Spec,
		CreatedAt: r.CreatedAt, StartedAt: r.StartedAt, PausedAt: r.PausedAt, EndedAt: r.EndedAt,
		ExpiresAt: r.Life.Ends(r.Spec.TTL, lifetime.Wall{Created: r.CreatedAt, Started: r.StartedAt, Paused: r.PausedAt}),
	}
}

// Birth is the view of a sandbox with which its creation was answered, whatever happened to it since.
func (r *Record) Birth() api.Sandbox {
	first := *r
	if r.Born != nil {
		first.Spec = *r.Born
	}
	first.State, first.Reason, first.PausedAt, first.EndedAt = api.StateRunning, "", nil, nil
	first.Life.Extra, first.Life.Stood = 0, 0
	return first.View()
}

// Files is how records reach the disk. Each operation has a label, so that a test can let exactly one fail or be the
// last thing the process does.
type Files interface {
	Write(label, path string, data []byte) error
	Append(label, path string, data []byte) error
	Rename(label, from, to string) error
	Remove(label, path string) error
	Sync(label, path string) error
}

// Store is the folder of records: ID.json, and ID.events beside it; ID.log of an ended sandbox that had a log.
//
// A record's file has a line for each version of the record, of which the last whole one holds. A line is cheap; to put
// a new file in the place of an old one makes ext4 write the content out at once, which a sandbox's life would wait for
// five times.
type Store struct {
	dir   string
	files Files
	log   *slog.Logger

	// mu guards tails: the sizes of the files that this process has written and whose last line is whole.
	mu    sync.Mutex
	tails map[string]int
}

// New makes the store of a folder, which is there.
func New(dir string, files Files, log *slog.Logger) *Store {
	return &Store{dir: dir, files: files, log: log, tails: map[string]int{}}
}

// maxRecordFile is when a record's file is written anew.
const maxRecordFile = 256 << 10

func (s *Store) path(id string) string    { return filepath.Join(s.dir, id+".json") }
func (s *Store) logPath(id string) string { return filepath.Join(s.dir, id+".log") }

// Events is the file of a sandbox's events.
func (s *Store) Events(id string) string { return filepath.Join(s.dir, id+".events") }

// Save puts a record in place whole or not at all. One id is saved by one goroutine at a time.
func (s *Store) Save(r *Record) error {
	raw, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode record of %s: %w", r.ID, err)
	}
	raw = append(raw, '\n')
	tail := s.tail(r.ID)
	if tail > 0 && tail+len(raw) <= maxRecordFile {
		if err := s.files.Append("record:append", s.path(r.ID), raw); err != nil {
			s.setTail(r.ID, 0) // there may be a part of a line now
			return fmt.Errorf("append to record of %s: %w", r.ID, err)
		}
		s.setTail(r.ID, tail+len(raw))
		return nil
	}
	tmp := s.path(r.ID) + ".tmp"
	if err := s.files.Write("record:write", tmp, raw); err != nil {
		_ = s.files.Remove("record:remove-tmp", tmp) // else the next start does
		return fmt.Errorf("write record of %s: %w", r.ID, err)
	}
	if err := s.files.Rename("record:rename", tmp, s.path(r.ID)); err != nil {
		_ = s.files.Remove("record:remove-tmp", tmp) // else the next start does
		return fmt.Errorf("put record of %s in place: %w", r.ID, err)
	}
	s.setTail(r.ID, len(raw))
	return nil
}

// Sync has a saved record on the disk, whatever happens to the machine.
func (s *Store) Sync(id string) error {
	for _, path := range []string{s.path(id), s.dir} {
		if err := s.files.Sync("record:sync", path); err != nil {
			return fmt.Errorf("bring record of %s to disk: %w", id, err)
		}
	}
	return nil
}

func (s *Store) tail(id string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tails[id]
}

// setTail remembers the size of a record's file; 0: it has to be written anew.
func (s *Store) setTail(id string, size int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if size == 0 {
		delete(s.tails, id)
		return
	}
	s.tails[id] = size
}

// Forget removes all files of a sandbox, the record last: what is left after a crash has a record still or can be told
// as an orphan.
func (s *Store) Forget(id string) error {
	s.setTail(id, 0)
	var faults []error
	for _, f := range []struct{ label, path string }{
		{"log:remove", s.logPath(id)},
		{"log:remove-tmp", s.logPath(id) + ".tmp"},
		{"events:remove", s.Events(id)},
		{"record:remove-tmp", s.path(id) + ".tmp"},
		{"record:remove", s.path(id)},
	} {
		if err := s.files.Remove(f.label, f.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			faults = append(faults, fmt.Errorf("remove record of %s: %w", id, err))
		}
	}
	return errors.Join(faults...)
}

// Load reads all records. Ids whose record can't be read are named apart: after a power cut the last renames may show
// files without their content. What belongs to no record is removed.
func (s *Store) Load() (records []*Record, damaged []string, err error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, nil, fmt.Errorf("read records: %w", err)
	}
	known := map[string]bool{}
	for _, e := range entries {
		id, isRecord := strings.CutSuffix(e.Name(), ".json")
		if !isRecord || !instance.ValidID(id) {
			continue
		}
		known[id] = true
		r, err := s.read(id)
		if errors.Is(err, errVersion) {
			// A later version's record: its sandbox may live, and judging it is beyond this one.
			s.log.Error("record is left alone", slog.String("sandbox", id), slog.Any("err", err))
			continue
		}
		if err != nil {
			s.log.Warn("record can't be read", slog.String("sandbox", id), slog.Any("err", err))
			damaged = append(damaged, id)
			continue
		}
		records = append(records, r)
	}
	for _, e := range entries {
		if !orphan(e.Name(), known) {
			continue
		}
		if err := s.files.Remove("orphan:remove", filepath.Join(s.dir, e.Name())); err != nil {
			return nil, nil, fmt.Errorf("remove orphan: %w", err)
		}
	}
	return records, damaged, nil
}

// orphan tells whether a file is a sandbox's that needs it no more: half-written, or without a record.
func orphan(name string, known map[string]bool) bool {
	id, ending, _ := strings.Cut(name, ".")
	if !instance.ValidID(id) {
		return false
	}
	switch ending {
	case "json.tmp", "log.tmp":
		return true
	case "events", "events.tmp", "log":
		return !known[id]
	}
	return false
}

// Missing tells whether there is certainly no record, not even one that can't be read.
func (s *Store) Missing(id string) bool {
	_, err := os.Lstat(s.path(id))
	return errors.Is(err, fs.ErrNotExist)
}

func (s *Store) read(id string) (*Record, error) {
	raw, err := os.ReadFile(s.path(id))
	if err != nil {
		return nil, err
	}
	r, err := lastLine(raw)
	if err != nil {
		return nil, err
	}
	if r.Version > Version {
		return nil, fmt.Errorf("%w %d", errVersion, r.Version)
	}
	if r.Version != Version || r.ID != id {
		return nil, fmt.Errorf("version %d of %q in the record of %q", r.Version, r.ID, id)
	}
	if !slices.Contains(api.States(), r.State) {
		return nil, fmt.Errorf("unknown state %q", r.State)
	}
	if c := r.Spec.Resources; c.CPU == nil || c.MemoryMB == nil || c.PIDs == nil {
		return nil, errors.New("no resources")
	}
	return r, nil
}

// lastLine reads the last version of a record. What follows it is what was being written when the edge died.
func lastLine(file []byte) (*Record, error) {
	file = bytes.TrimRight(file, "\n")
	for {
		start := bytes.LastIndexByte(file, '\n') + 1
		r := &Record{}
		err := json.Unmarshal(file[start:], r)
		if err == nil || start == 0 {
			return r, err
		}
		file = file[:start-1]
	}
}

// SaveLog keeps the log of a sandbox that is about to be removed beside its record.
func (s *Store) SaveLog(id string, raw []byte) error {
	tmp := s.logPath(id) + ".tmp"
	if err := s.files.Write("log:write", tmp, raw); err != nil {
		_ = s.files.Remove("log:remove-tmp", tmp) // else the next start does
		return fmt.Errorf("write log of %s: %w", id, err)
	}
	if err := s.files.Rename("log:rename", tmp, s.logPath(id)); err != nil {
		_ = s.files.Remove("log:remove-tmp", tmp) // else the next start does
		return fmt.Errorf("put log of %s in place: %w", id, err)
	}
	return nil
}

// ReadLog reads a log back; an error that is fs.ErrNotExist: there is none.
func (s *Store) ReadLog(id string) ([]byte, error) { return os.ReadFile(s.logPath(id)) }
