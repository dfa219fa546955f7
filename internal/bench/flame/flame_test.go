package flame

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"runtime/pprof"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// known is a profile whose picture is known.
func known() []Stack {
	return []Stack{
		{[]string{"main.main", "main.a", "do_syscall [k]"}, 60},
		{[]string{"main.main", "main.<b>&\"c\""}, 30},
		{[]string{"main.main"}, 10},
		{[]string{"main.main", "main.tiny"}, 0},
	}
}

// box is a box of a picture.
type box struct {
	Title string `xml:"title"`
	Rect  struct {
		X     float64 `xml:"x,attr"`
		Y     float64 `xml:"y,attr"`
		Width float64 `xml:"width,attr"`
	} `xml:"rect"`
	Text string `xml:"text"`
}

func draw(t *testing.T, stacks []Stack) []box {
	t.Helper()
	svg, err := Graph{Title: `a "title" & <more>`, Unit: "samples"}.SVG(stacks)
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Texts []string `xml:"text"`
		Boxes []box    `xml:"g"`
	}
	if err := xml.Unmarshal([]byte(svg), &doc); err != nil {
		t.Fatalf("not XML: %v\n%s", err, svg)
	}
	if len(doc.Texts) == 0 || doc.Texts[0] != `a "title" & <more>` {
		t.Errorf("texts %q", doc.Texts)
	}
	return doc.Boxes
}

// TestKnownProfile: every function has a box of its share, above its caller, that tells name and share.
func TestKnownProfile(t *testing.T) {
	boxes := draw(t, known())
	byTitle := map[string]box{}
	var titles []string
	for _, b := range boxes {
		titles = append(titles, b.Title)
		byTitle[b.Title] = b
	}
	want := []string{
		"all: 100 samples, 100.00%", "main.main: 100 samples, 100.00%", `main.<b>&"c": 30 samples, 30.00%`,
		"main.a: 60 samples, 60.00%", "do_syscall [k]: 60 samples, 60.00%",
	}
	if diff := cmp.Diff(want, titles); diff != "" {
		t.Fatalf("titles (-want +got):\n%s", diff)
	}
	all, a, b, call := byTitle[want[0]], byTitle[want[3]], byTitle[want[2]], byTitle[want[4]]
	if all.Rect.Width != 1380 || a.Rect.Width != 828 || b.Rect.Width != 414 || call.Rect.Width != 828 {
		t.Errorf("widths %v, %v, %v, %v", all.Rect.Width, a.Rect.Width, b.Rect.Width, call.Rect.Width)
	}
	if a.Rect.Y >= byTitle[want[1]].Rect.Y || call.Rect.Y >= a.Rect.Y || b.Rect.Y != a.Rect.Y {
		t.Errorf("rows: main %v, a %v, b %v, call %v", byTitle[want[1]].Rect.Y, a.Rect.Y, b.Rect.Y, call.Rect.Y)
	}
	if b.Rect.X != 10 || a.Rect.X != 10+414 || call.Rect.X != a.Rect.X || a.Text != "main.a" {
		t.Errorf("places: a %v, b %v, call %v; text %q", a.Rect.X, b.Rect.X, call.Rect.X, a.Text)
	}
}

func TestShares(t *testing.T) {
	stacks := append(known(), Stack{[]string{"main.main", "main.a", "main.main", "main.a"}, 100})
	want := []Share{
		{"main.main", 0.05, 1}, {"main.a", 0.5, 0.8}, {"do_syscall [k]", 0.3, 0.3}, {`main.<b>&"c"`, 0.15, 0.15}, {"main.tiny", 0, 0},
	}
	if diff := cmp.Diff(want, Shares(stacks)); diff != "" {
		t.Errorf("shares (-want +got):\n%s", diff)
	}
}

func TestNothingToDraw(t *testing.T) {
	if _, err := (Graph{}).SVG(nil); !errors.Is(err, ErrEmpty) {
		t.Errorf("%v, want %v", err, ErrEmpty)
	}
}

func hex(v uint64) string { return strconv.FormatUint(v, 16) }

//go:noinline
func burn(until time.Time) (n int) {
	for time.Now().Before(until) {
		for i := range 1000 {
			n += i * n
		}
	}
	return n
}

// TestPprof reads a real profile of a function that is known.
func TestPprof(t *testing.T) {
	for range 50 { // a busy machine may give too little time for a sample
		var raw bytes.Buffer
		if err := pprof.StartCPUProfile(&raw); err != nil {
			t.Fatal(err)
		}
		burn(time.Now().Add(200 * time.Millisecond))
		pprof.StopCPUProfile()
		stacks, unit, err := Pprof(raw.Bytes())
		if err != nil || unit != "nanoseconds" {
			t.Fatalf("%v, unit %q", err, unit)
		}
		if share := burning(t, stacks); share > 0.5 {
			draw(t, stacks)
			return
		}
	}
	t.Error("in no profile was most of the time burn's")
}

// burning is the share of burn, which the test calls.
func burning(t *testing.T, stacks []Stack) float64 {
	t.Helper()
	mine, sum := int64(0), int64(0)
	for _, s := range stacks {
		sum += s.Value
		for i, f := range s.Frames {
			if !strings.HasSuffix(f, "flame.burn") {
				continue
			}
			mine += s.Value
			if i == 0 || !strings.HasSuffix(s.Frames[i-1], "flame.TestPprof") {
				t.Errorf("burn isn't called by the test: %q", s.Frames)
			}
		}
	}
	return float64(mine) / float64(max(sum, 1))
}

// TestDamagedProfiles are refused, whatever is wrong with them.
func TestDamagedProfiles(t *testing.T) {
	var raw bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&raw, 0); err != nil {
		t.Fatal(err)
	}
	whole := raw.Bytes()
	if _, _, err := Pprof(whole); err != nil {
		t.Fatal(err)
	}
	for _, b := range [][]byte{nil, []byte("no"), whole[:len(whole)/2], {0x0a, 0xff}, {0x12, 0x80}} {
		if _, _, err := Pprof(b); err == nil {
			t.Errorf("%d bytes were read", len(b))
		}
	}
}

func FuzzPprof(f *testing.F) {
	f.Add([]byte{0x0a, 2, 0x10, 1, 0x32, 0, 0x32, 1, 'x'})
	f.Fuzz(func(_ *testing.T, b []byte) {
		stacks, unit, err := Pprof(b)
		if err == nil {
			_, _ = Graph{Unit: unit}.SVG(stacks)
		}
	})
}

// TestPerf reads what perf prints, and names the functions of a stripped Go program: this one, by the runtime's table.
func TestPerf(t *testing.T) {
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	symbols, err := ReadSymbols(program)
	if err != nil {
		t.Fatal(err)
	}
	const burn = "github.com/dsec-io/dsec/internal/bench/flame.burn"
	f := symbols.table.LookupFunc(burn)
	if f == nil {
		t.Fatal("the program doesn't know burn")
	}
	script := "dsec aether \n" +
		"\tffffffff81000000 do_syscall_64 ([kernel.kallsyms])\n" +
		"\t" + hex(f.Entry+1) + " [unknown] (/memfd:dsec-aether (deleted))\n" +
		"\t" + hex(f.Entry+1-symbols.text.Addr+symbols.text.Offset) + " [unknown] (/memfd:dsec-aether (deleted))\n" +
		"\t           7f00 main (/bin/other)\n\n" +
		"sh \n\t 1 [unknown] ([unknown])\n\n"
	got, err := Perf(strings.NewReader(script), "dsec-aether", symbols)
	if err != nil {
		t.Fatal(err)
	}
	want := []Stack{
		{[]string{"dsec aether", "main", burn, burn, "do_syscall_64 [k]"}, 1},
		{[]string{"sh", "? in [unknown]"}, 1},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("stacks (-want +got):\n%s", diff)
	}
	if _, err := Perf(io.LimitReader(strings.NewReader(script), 20), "x", nil); err != nil {
		t.Error(err)
	}
	if _, err := ReadSymbols([]byte("no program")); err == nil {
		t.Error("symbols of no program")
	}
}
