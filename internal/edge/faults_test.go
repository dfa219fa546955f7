package edge

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/edge/disk"
	"github.com/dsec-io/dsec/internal/edge/events"
	"github.com/dsec-io/dsec/internal/fault"
)

// TestEndThatCouldNotBeSavedIsSavedLater: a client was told, so the next edge has to know, too.
func TestEndThatCouldNotBeSavedIsSavedLater(t *testing.T) {
	faults := &fault.Set{}
	n := startNode(t, func(c *Config) { c.Faults = faults })
	sb := n.create(plain)
	for _, point := range []string{"record:append", "record:write"} {
		faults.Arm(fault.Rule{Point: point, Err: syscall.ENOSPC, Part: 50})
	}
	n.must("sandbox.stop", sb.ID, nil, nil)
	faults.Clear()
	until(t, "the record is saved", func() bool {
		raw, err := os.ReadFile(filepath.Join(n.inst.DataDir, "sandboxes", sb.ID+".json"))
		lines := strings.Split(strings.TrimSpace(string(raw)), "\n")
		return err == nil && strings.Contains(lines[len(lines)-1], `"state":"stopped"`)
	})
	n.restart()
	if v := n.get(sb.ID); v.State != api.StateStopped {
		t.Errorf("after a restart: %+v", v)
	}
}

// TestRecordsThatCannotBeRemovedAreRemovedLater: neither those of a create that failed, nor those whose time is over.
func TestRecordsThatCannotBeRemovedAreRemovedLater(t *testing.T) {
	faults := &fault.Set{}
	n := startNode(t, func(c *Config) { c.Faults, c.EndedKeep = faults, 1 })
	n.fake.setFault("start", errors.New("no"))
	faults.Arm(fault.Rule{Point: "record:remove", Times: 3, Err: syscall.EIO}, fault.Rule{Point: "events:remove", Times: 2, Err: syscall.EIO})
	if err := n.call(t.Context(), as("p", "sandbox.create", "", encode(n.t, plain)), nil); err == nil {
		t.Error("it was made")
	}
	n.fake.setFault("start", nil)
	until(t, "nothing of it is left", func() bool {
		left, _ := filepath.Glob(filepath.Join(n.inst.DataDir, "sandboxes", "*"))
		return len(left) == 0 && n.edge.room.Used().Sandboxes == 0 && len(n.edge.all()) == 0
	})
}

// TestHalfWrittenFilesAreRemoved: a disk that is full keeps no halves until the next start.
func TestHalfWrittenFilesAreRemoved(t *testing.T) {
	faults := &fault.Set{}
	n := startNode(t, func(c *Config) { c.Faults = faults })
	for _, point := range []string{"record:write", "record:rename"} {
		faults.Arm(fault.Rule{Point: point, Times: 1, Err: syscall.ENOSPC, Part: 50})
		wantCode(t, n.call(t.Context(), as("p", "sandbox.create", "", encode(n.t, plain)), nil), api.CodeDiskFull)
	}
	if left, _ := filepath.Glob(filepath.Join(n.inst.DataDir, "sandboxes", "*")); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

// TestErrorsOfTheMachineAreTyped: none of them is a bug of ours, and each says what to do.
func TestErrorsOfTheMachineAreTyped(t *testing.T) {
	for err, want := range map[error]api.Code{
		syscall.ENOSPC: api.CodeDiskFull, syscall.EDQUOT: api.CodeDiskFull, syscall.EIO: api.CodeUnavailable,
		syscall.EMFILE: api.CodeNoCapacity, syscall.ENFILE: api.CodeNoCapacity, syscall.ENOMEM: api.CodeNoCapacity, syscall.EAGAIN: api.CodeNoCapacity,
		&lostError{fmt.Errorf("the first word: %w", aether.ErrConnLost)}: api.CodeUnavailable,
		errors.New("something else"):                                     "",
	} {
		got := lifeError("create", fmt.Errorf("make it: %w", err))
		if want == "" {
			if _, typed := errors.AsType[*api.Error](got); typed {
				t.Errorf("%v: %v", err, got)
			}
			continue
		}
		if !api.IsCode(got, want) || !strings.Contains(got.Error(), "make it") {
			t.Errorf("%v: %v, want %s", err, got, want)
		}
	}
}

// TestLateEventMakesNoFile: what is told while a sandbox is being forgotten leaves no file that has only that.
func TestLateEventMakesNoFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events")
	log := events.New("s1", path, disk.Files{})
	if err := log.Add("running", "", nil); err != nil {
		t.Fatal(err)
	}
	log.Seal()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := log.Add("stopped", "", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file is there again: %v", err)
	}
	if all, _ := log.Since(0); len(all) != 2 {
		t.Errorf("events: %v", all)
	}
}
