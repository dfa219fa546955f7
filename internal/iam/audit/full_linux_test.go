package audit_test

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/iam/audit"
	"github.com/dsec-io/dsec/internal/need"
)

// TestFullDisk: what a full disk doesn't take pushes out nothing that is there, and is told when there is room again.
func TestFullDisk(t *testing.T) {
	need.Root(t)
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=256k,mode=700"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	l := open(t, audit.Config{Dir: filepath.Join(dir, "log")})
	defer func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}()
	l.Add(audit.Control, api.AuditRecord{RequestID: "old"})
	if err := l.Flush(); err != nil {
		t.Fatal(err)
	}
	fill := filepath.Join(dir, "fill")
	f, err := os.Create(fill)
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	lost := 0
	for range 1500 {
		l.Add(audit.Control, api.AuditRecord{RequestID: "late"})
		if l.Flush() != nil {
			lost++
		}
	}
	if lost < 1000 {
		t.Fatalf("%d of 1500 were lost on a full disk", lost)
	}
	if err := os.Remove(fill); err != nil {
		t.Fatal(err)
	}
	l.Add(audit.Control, api.AuditRecord{RequestID: "new"})
	got := all(t, l, audit.Query{Limit: 10_000})
	if len(got) != 1500-lost+2 || got[0].RequestID != "new" || got[0].Suppressed != int64(lost) || got[len(got)-1].RequestID != "old" {
		t.Errorf("%d records, from %+v to %+v; %d were lost", len(got), got[0], got[len(got)-1], lost)
	}
	if names, err := filepath.Glob(filepath.Join(dir, "log", "*")); err != nil || len(names) != 1 {
		t.Errorf("%d files, %v", len(names), err)
	}
}
