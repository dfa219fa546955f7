package idem

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/edge/disk"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// flakyDisk fails, or writes a part, when told to.
type flakyDisk struct {
	disk.Files
	fail int // the operation that fails, counted down; 0: none
	part bool
}

var errNoSpace = errors.New("no space left on device")

func (d *flakyDisk) broken() bool {
	d.fail--
	return d.fail == 0
}

func (d *flakyDisk) AppendTo(label string, f *os.File, data []byte) error {
	if !d.broken() {
		return d.Files.AppendTo(label, f, data)
	}
	if d.part {
		_ = d.Files.AppendTo(label, f, data[:len(data)/2])
	}
	return errNoSpace
}

func (d *flakyDisk) Write(label, path string, data []byte) error {
	if !d.broken() {
		return d.Files.Write(label, path, data)
	}
	if d.part {
		_ = d.Files.Write(label, path, data[:len(data)/2])
	}
	return errNoSpace
}

func open(t interface{ Fatalf(string, ...any) }, dir string, d Disk, now *time.Time, l Limits) *Keys {
	k, err := Open(Config{Dir: dir, Disk: d, Limits: l, Now: func() time.Time { return *now }})
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	return k
}

func request(key string, k kind, what byte) call {
	return call{project: "p", key: key, kind: k, digest: digest{what}, ref: "ref-" + key}
}

func result(text string) Frame {
	return Frame{Channel: aether.Message, Type: aether.MsgReply, Data: []byte(text)}
}

// model is what may be known of each key.
type model struct {
	dir   string
	disk  *flakyDisk
	now   time.Time
	keys  *Keys
	runs  map[string]*Run   // under way
	can   map[string]string // what may be known of a key: a set of states
	ran   map[string]bool   // creates that have made a sandbox
	kinds map[string]kind
}

// TestCrashesForgetNothing makes requests, lets the disk fail and the process die at any moment, and compares what is
// known afterwards with what was promised.
func TestCrashesForgetNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "keys")
		if err != nil {
			t.Fatalf("%v", err)
		}
		defer func() { _ = os.RemoveAll(dir) }()
		m := &model{
			dir: dir, disk: &flakyDisk{}, now: time.Now(), runs: map[string]*Run{}, can: map[string]string{}, ran: map[string]bool{},
			kinds: map[string]kind{"a": kindCreate, "b": kindCommand, "c": kindCall, "d": kindCreate},
		}
		m.keys = open(t, dir, m.disk, &m.now, Limits{})
		key := rapid.SampledFrom([]string{"a", "b", "c", "d"})
		t.Repeat(map[string]func(*rapid.T){
			"claim":  func(t *rapid.T) { m.claim(t, key.Draw(t, "key")) },
			"finish": func(t *rapid.T) { m.finish(key.Draw(t, "key")) },
			"free":   func(t *rapid.T) { m.free(key.Draw(t, "key")) },
			"disk fails": func(t *rapid.T) {
				m.disk.fail = rapid.IntRange(1, 4).Draw(t, "at")
				m.disk.part = rapid.Bool().Draw(t, "part")
			},
			"crash": m.crash,
			"another day": func(t *rapid.T) {
				if len(m.runs) == 0 && rapid.IntRange(0, 9).Draw(t, "long") == 0 {
					m.now = m.now.Add(25 * time.Hour)
					clear(m.can)
					clear(m.ran)
				}
			},
		})
	})
}

func (m *model) claim(t *rapid.T, name string) {
	r, ours, err := m.keys.claim(request(name, m.kinds[name], 1))
	can := m.can[name]
	switch {
	case m.runs[name] != nil:
		if ours || err != nil || r != m.runs[name] {
			t.Fatalf("%s is under way: ours %v, %v", name, ours, err)
		}
	case ours:
		if can != "" && !strings.Contains(can, "f") {
			t.Fatalf("%s is run again; it can be %q", name, can)
		}
		m.runs[name], m.can[name] = r, "b"
	case api.IsCode(err, api.CodeUnavailable): // not on record, so nothing runs
	case api.IsCode(err, api.CodeResultGone):
		if !strings.ContainsAny(can, "ln") {
			t.Fatalf("%s is lost; it can be %q", name, can)
		}
	case err != nil:
		t.Fatalf("%v", err)
	default:
		if !strings.Contains(can, "d") || r.ref != "ref-"+name {
			t.Fatalf("%s is done with %q; it can be %q", name, r.ref, can)
		}
		if err := r.load(); err != nil || m.kinds[name] != kindCreate && string(r.frames[0].Data) != "result of "+name {
			t.Fatalf("%s: %v, %v", name, err, r.frames)
		}
	}
}

// end ends a run; what is known of it then is sure unless the disk failed.
func (m *model) end(name, sure, unsure string, do func(r *Run)) {
	r := m.runs[name]
	if r == nil {
		return
	}
	before := m.disk.fail
	do(r)
	m.can[name] = sure
	if before > 0 && m.disk.fail <= 0 {
		m.can[name] = unsure
	}
	delete(m.runs, name)
}

func (m *model) finish(name string) {
	m.end(name, "d", "dnl", func(r *Run) {
		if m.kinds[name] == kindCreate {
			m.ran[name] = true
			r.finish()
		} else {
			r.finish(result("result of " + name))
		}
		m.keys.told(r)
	})
}

func (m *model) free(name string) {
	m.end(name, "f", "fl", func(r *Run) { r.free(errors.New("refused")) })
}

func (m *model) crash(t *rapid.T) {
	m.disk.fail = 0
	m.keys = open(t, m.dir, m.disk, &m.now, Limits{})
	if err := m.keys.Settle(func(id string) bool { return m.ran[id[len("ref-"):]] }); err != nil {
		t.Fatalf("Settle: %v", err)
	}
	for name := range m.runs {
		m.can[name] = "l"
		if m.kinds[name] == kindCreate {
			m.can[name] = "f"
		}
	}
	clear(m.runs)
	for name, r := range m.ran {
		if r {
			m.can[name] += "d"
		}
	}
}

func TestAnotherRequestIsRefused(t *testing.T) {
	now := time.Now()
	k := open(t, t.TempDir(), nil, &now, Limits{})
	if _, ours, err := k.claim(request("a", kindCall, 1)); err != nil || !ours {
		t.Fatalf("%v, %v", ours, err)
	}
	if _, _, err := k.claim(request("a", kindCall, 2)); !api.IsCode(err, api.CodeKeyReused) {
		t.Errorf("another request: %v", err)
	}
	other := request("a", kindCall, 2)
	other.project = "q"
	if _, ours, err := k.claim(other); err != nil || !ours {
		t.Errorf("another project: %v, %v", ours, err)
	}
}

func TestOldKeysMakeRoom(t *testing.T) {
	now := time.Now()
	dir := t.TempDir()
	k := open(t, dir, nil, &now, Limits{Keys: 10, AllKeys: 15, Young: time.Minute})
	use := func(project, key string) error {
		c := request(key, kindCall, 1)
		c.project = project
		r, ours, err := k.claim(c)
		if err == nil && ours {
			r.finish(result(key))
		}
		return err
	}
	for i := range 10 {
		if err := use("p", fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := use("p", "one-more"); !api.IsCode(err, api.CodeTooMany) || api.AsError(err).RetryMS == 0 {
		t.Errorf("an eleventh young key: %v", err)
	}
	for i := range 5 {
		if err := use("q", fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := use("q", "one-more"); !api.IsCode(err, api.CodeTooMany) {
		t.Errorf("a sixteenth young key: %v", err)
	}
	now = now.Add(2 * time.Minute)
	if err := use("p", "one-more"); err != nil {
		t.Errorf("after two minutes: %v", err)
	}
	if _, ours, _ := k.claim(request("9", kindCall, 1)); ours {
		t.Error("a young key made room before an old one")
	}
	if _, ours, err := k.claim(request("0", kindCall, 1)); !ours {
		t.Errorf("the oldest key is still known: %v", err)
	}
	// What is forgotten has no file and no line for ever.
	now = now.Add(25 * time.Hour)
	for i := range 3 {
		if err := use("p", fmt.Sprint("late", i)); err != nil {
			t.Fatal(err)
		}
	}
	k.Sweep()
	if files, _ := filepath.Glob(filepath.Join(dir, "*.result")); len(files) > 4 {
		t.Errorf("%d results are left of 3", len(files))
	}
}

func TestOldResultsMakeRoom(t *testing.T) {
	now := time.Now()
	dir := t.TempDir()
	l := Limits{Results: 1000}
	k := open(t, dir, nil, &now, l)
	for i := range 10 {
		r, _, err := k.claim(request(fmt.Sprint(i), kindCall, 1))
		if err != nil {
			t.Fatal(err)
		}
		r.finish(result(string(bytes.Repeat([]byte{'x'}, 300))))
	}
	for range 2 {
		var kept []string
		for i := range 10 {
			r, ours, err := k.claim(request(fmt.Sprint(i), kindCall, 1))
			switch {
			case ours:
				t.Errorf("%d is run again", i)
			case err == nil && r.load() == nil:
				kept = append(kept, fmt.Sprint(i))
			case !api.IsCode(err, api.CodeResultGone):
				t.Errorf("%d: %v", i, err)
			}
		}
		if diff := cmp.Diff([]string{"7", "8", "9"}, kept); diff != "" {
			t.Errorf("kept (-want +got):\n%s", diff)
		}
		k = open(t, dir, nil, &now, l)
	}
	if files, _ := filepath.Glob(filepath.Join(dir, "*.result")); len(files) != 3 {
		t.Errorf("%d files", len(files))
	}
}

// TestJournalStaysSmall: segments whose lines hold no more are removed.
func TestJournalStaysSmall(t *testing.T) {
	now := time.Now()
	dir := t.TempDir()
	k := open(t, dir, nil, &now, Limits{Keys: 100, Young: time.Nanosecond})
	for i := range 200_000 {
		now = now.Add(time.Millisecond)
		r, ours, err := k.claim(request(fmt.Sprint(i), kindCreate, 1))
		if err != nil || !ours {
			t.Fatalf("%d: %v, %v", i, ours, err)
		}
		r.finish()
		k.told(r)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.log"))
	if err != nil || len(files) > 2 {
		t.Errorf("%d segments, %v", len(files), err)
	}
	if again := open(t, dir, nil, &now, Limits{Keys: 100}); len(again.table) < 100 {
		t.Errorf("%d keys came back", len(again.table))
	}
}

func FuzzLine(f *testing.F) {
	id, e := keyID{1, 2}, &entry{state: stateDone, kind: kindCommand, digest: digest{3}, project: 4, at: 5, ref: "s1", size: 6, crc: 7}
	f.Add(string(bytes.TrimSpace(line(id, e))))
	f.Add("d x 00 00 0 0 - 0 0 0")
	f.Fuzz(func(t *testing.T, text string) {
		id, e, ok := parse(text)
		if !ok {
			return
		}
		again, back, ok := parse(string(bytes.TrimSuffix(line(id, e), []byte{'\n'})))
		if !ok || again != id || *back != *e {
			t.Fatalf("%q comes back as %+v, was %+v", text, back, e)
		}
	})
}

func FuzzResult(f *testing.F) {
	f.Add(encode([]Frame{result("abc"), {Channel: aether.Stdout, End: true}}))
	f.Fuzz(func(t *testing.T, raw []byte) {
		frames, err := decode(raw)
		if err == nil && len(encode(frames)) != len(raw) {
			t.Fatalf("%x has %d bytes again", raw, len(encode(frames)))
		}
	})
}

// BenchmarkCreate is what a key adds to a create: its place in the table and two lines in the journal.
func BenchmarkCreate(b *testing.B) {
	now := time.Now()
	k, err := Open(Config{Dir: b.TempDir(), Now: func() time.Time { return now }, Limits: Limits{Young: time.Nanosecond}})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		r, _, err := k.claim(request(strconv.Itoa(i), kindCreate, 1))
		if err != nil {
			b.Fatal(err)
		}
		r.finish()
		k.told(r)
	}
}
