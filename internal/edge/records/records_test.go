package records

import (
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/edge/disk"
	"github.com/google/go-cmp/cmp"
)

// stumbling fails or cuts off one operation.
type stumbling struct {
	disk.Files
	label string // of what fails
	part  int    // bytes that get written before
}

var errStumble = errors.New("no space")

func (f *stumbling) Append(label, path string, data []byte) error {
	if label != f.label {
		return f.Files.Append(label, path, data)
	}
	f.label = ""
	return errors.Join(errStumble, f.Files.Append(label, path, data[:f.part]))
}

func testRecord(state api.State) *Record {
	return &Record{
		Version: Version, ID: "saaaaaaaaaaaaaaaaaaaaa", State: state, Reason: strings.Repeat("long ", 100),
		Spec: api.Spec{Resources: api.Resources{CPU: new(1.0), MemoryMB: new(int64(1)), PIDs: new(int64(1))}},
	}
}

func newTestStore(t *testing.T, f Files) *Store {
	t.Helper()
	return New(t.TempDir(), f, slog.New(slog.DiscardHandler))
}

// wantState fails unless a new process would find the record in this state.
func wantState(t *testing.T, s *Store, want api.State) {
	t.Helper()
	again := New(s.dir, disk.Files{}, s.log)
	records, damaged, err := again.Load()
	if err != nil || len(damaged) > 0 || len(records) != 1 {
		t.Fatalf("Load() = %d records, damaged %v, %v", len(records), damaged, err)
	}
	if diff := cmp.Diff(want, records[0].State); diff != "" {
		t.Errorf("state (-want +got):\n%s", diff)
	}
}

func TestRecordLastVersionHolds(t *testing.T) {
	s := newTestStore(t, disk.Files{})
	for _, state := range []api.State{api.StateCreating, api.StateRunning, api.StateStopping} {
		if err := s.Save(testRecord(state)); err != nil {
			t.Fatal(err)
		}
		wantState(t, s, state)
	}
}

// TestRecordTornLine: a line that a crash or a full disk has cut off counts for nothing, and what is saved after it does.
func TestRecordTornLine(t *testing.T) {
	f := &stumbling{}
	s := newTestStore(t, f)
	if err := errors.Join(s.Save(testRecord(api.StateCreating)), s.Save(testRecord(api.StateRunning))); err != nil {
		t.Fatal(err)
	}
	f.label, f.part = "record:append", 700
	if err := s.Save(testRecord(api.StateStopping)); !errors.Is(err, errStumble) {
		t.Fatalf("save() = %v", err)
	}
	wantState(t, s, api.StateRunning)
	if err := s.Save(testRecord(api.StateStopped)); err != nil {
		t.Fatal(err)
	}
	wantState(t, s, api.StateStopped)
}

func TestRecordFileStaysSmall(t *testing.T) {
	s := newTestStore(t, disk.Files{})
	for range 1000 {
		if err := s.Save(testRecord(api.StateRunning)); err != nil {
			t.Fatal(err)
		}
	}
	st, err := os.Stat(s.path(testRecord("").ID))
	if err != nil || st.Size() > maxRecordFile {
		t.Errorf("size %v, %v", st.Size(), err)
	}
	wantState(t, s, api.StateRunning)
}
