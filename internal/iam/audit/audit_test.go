package audit_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/iam/audit"
)

// TestMain looks for goroutines that outlive what started them.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t testing.TB, cfg audit.Config) *audit.Log {
	t.Helper()
	l, err := audit.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func all(t testing.TB, l *audit.Log, q audit.Query) []api.AuditRecord {
	t.Helper()
	list, more, err := l.Read(t.Context(), q)
	if err != nil || more {
		t.Fatalf("Read() = %d records, %v, %v", len(list), more, err)
	}
	return list
}

// TestReadBack: newest first, across kinds and restarts, by pages, with filters.
func TestReadBack(t *testing.T) {
	dir := t.TempDir()
	n := 0
	for range 3 {
		l := open(t, audit.Config{Dir: dir})
		for range 20 {
			n++
			kind := []audit.Kind{audit.Control, audit.Use, audit.Refusal}[n%3]
			l.Add(kind, api.AuditRecord{RequestID: fmt.Sprint(n), Project: []string{"a", "b"}[n%2], Decision: api.Allow, Result: "ok"})
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	l := open(t, audit.Config{Dir: dir})
	defer l.Close()
	q, next := audit.Query{Limit: 7}, n
	for {
		list, more, err := l.Read(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		for _, rec := range list {
			if rec.RequestID != fmt.Sprint(next) || rec.Time.IsZero() {
				t.Fatalf("record %+v, want request %d", rec, next)
			}
			next--
		}
		if !more {
			break
		}
		q.Before = list[len(list)-1].Seq
	}
	if next != 0 {
		t.Errorf("%d records are missing", next)
	}
	if got := all(t, l, audit.Query{Project: "a", Limit: 100}); len(got) != n/2 {
		t.Errorf("project a: %d records, want %d", len(got), n/2)
	}
}

// TestBounded: the log doesn't grow without end, and a flood of one kind leaves the others alone.
func TestBounded(t *testing.T) {
	dir := t.TempDir()
	l := open(t, audit.Config{Dir: dir, FileSize: 16 << 10, Files: 4})
	l.Add(audit.Control, api.AuditRecord{RequestID: "precious"})
	for i := range 5000 {
		l.Add(audit.Use, api.AuditRecord{RequestID: fmt.Sprint(i), Resource: "sandbox/" + strings.Repeat("s", 22)})
		if i%50 == 0 {
			if err := l.Flush(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	var size int64
	files, _ := filepath.Glob(filepath.Join(dir, "use-*"))
	for _, f := range files {
		info, err := os.Stat(f)
		if err != nil {
			t.Fatal(err)
		}
		size += info.Size()
	}
	if size > 6*16<<10 || size < 2*16<<10 {
		t.Errorf("%d bytes in %d files", size, len(files))
	}
	l = open(t, audit.Config{Dir: dir})
	defer l.Close()
	list, _, err := l.Read(t.Context(), audit.Query{Limit: 1})
	if err != nil || len(list) != 1 || list[0].RequestID != "4999" {
		t.Errorf("the newest is %+v, %v", list, err)
	}
	if got := all(t, l, audit.Query{Limit: 10000}); got[len(got)-1].RequestID != "precious" {
		t.Errorf("the oldest of all is %+v", got[len(got)-1])
	}
}

// TestHalfALine: what a crash has left is passed over, before and after.
func TestHalfALine(t *testing.T) {
	dir := t.TempDir()
	l := open(t, audit.Config{Dir: dir})
	l.Add(audit.Use, api.AuditRecord{RequestID: "1"})
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	files, _ := filepath.Glob(filepath.Join(dir, "*"))
	f, err := os.OpenFile(files[0], os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"seq":2,"request_id":"ha`); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	l = open(t, audit.Config{Dir: dir})
	defer l.Close()
	l.Add(audit.Use, api.AuditRecord{RequestID: "3"})
	got := all(t, l, audit.Query{Limit: 10})
	if len(got) != 2 || got[0].RequestID != "3" || got[1].RequestID != "1" || got[0].Seq <= got[1].Seq {
		t.Errorf("records %+v", got)
	}
}

// TestForeignFiles: what others have put into the folder is no record, and no reason not to start.
func TestForeignFiles(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"control-x.jsonl", "control-7.jsonl", "control-.jsonl", "use-000000000001.jsonl.gz", "use-99999999999999999999999.jsonl"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("{\"seq\":99}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	l := open(t, audit.Config{Dir: dir})
	l.Add(audit.Control, api.AuditRecord{RequestID: "1"})
	if got := all(t, l, audit.Query{Limit: 10}); len(got) != 1 || got[0].Seq != 1 {
		t.Errorf("records %+v", got)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// TestLossIsTold: what the disk doesn't take is counted in what it takes later.
func TestLossIsTold(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	l := open(t, audit.Config{Dir: dir})
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	l.Add(audit.Refusal, api.AuditRecord{RequestID: "lost"})
	if err := l.Flush(); err == nil {
		t.Error("Flush() into nowhere = nil")
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	l.Add(audit.Refusal, api.AuditRecord{RequestID: "kept"})
	got := all(t, l, audit.Query{Limit: 10})
	if len(got) != 1 || got[0].RequestID != "kept" || got[0].Suppressed != 1 {
		t.Errorf("records %+v", got)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// TestManyWriters: no record is lost or torn.
func TestManyWriters(t *testing.T) {
	l := open(t, audit.Config{Dir: t.TempDir()})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 500 {
				l.Add(audit.Use, api.AuditRecord{Action: "x"})
			}
		})
	}
	wg.Wait()
	if got := all(t, l, audit.Query{Limit: 10000}); len(got) != 4000 {
		t.Errorf("%d records", len(got))
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

func BenchmarkAdd(b *testing.B) {
	l := open(b, audit.Config{Dir: b.TempDir()})
	rec := api.AuditRecord{
		RequestID: "2ihi0z5lioqtw", Token: "543rzm5ytm", Project: "default", Action: "sandbox:exec", Operation: "POST /v1/sandboxes/{id}/exec",
		Resource: "sandbox/saaaabcdefghijklmnopqr", Decision: api.Allow, Result: "ok", Client: "127.0.0.1",
	}
	b.ReportAllocs()
	for b.Loop() {
		l.Add(audit.Use, rec)
	}
	if err := l.Close(); err != nil {
		b.Fatal(err)
	}
}
