package bench_test

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dsec-io/dsec/internal/bench"
	"github.com/dsec-io/dsec/internal/need"
)

// run runs a benchmark that has a server of its own, or none, and wants no failure.
func run(t *testing.T, name string, o bench.Options) (map[string]bench.Result, *bench.Document) {
	t.Helper()
	need.Root(t)
	need.Command(t, "mkfs.erofs")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var progress bytes.Buffer
	o.Command, o.Quick, o.Self, o.Env, o.Progress = "test", true, self, os.Environ(), &progress
	doc, err := bench.Run(t.Context(), name, o)
	if err != nil {
		t.Fatalf("%v\n%s", err, progress.String())
	}
	if doc.Failures() != 0 {
		t.Fatalf("%d failures:\n%s", doc.Failures(), progress.String())
	}
	results := map[string]bench.Result{}
	for _, r := range doc.Results {
		results[r.Name] = r
	}
	return results, doc
}

// TestDensityOnARealNode makes a few sandboxes, and looks whether what it says of them can be.
func TestDensityOnARealNode(t *testing.T) {
	r, doc := run(t, bench.Density, bench.Options{N: 20, Out: t.TempDir()})
	if r["density.sandboxes"].Value != 20 || r["density.first-exec"].N != 20 || r["density.last-exec"].P50 <= 0 || r["density.stop.rate"].N != 20 {
		t.Errorf("%+v", doc.Results)
	}
	if !slices.Contains(doc.Notes, "stopped by --n: 20 sandboxes") {
		t.Errorf("notes %q", doc.Notes)
	}
	for name, least := range map[string]float64{
		"processes": 1, "threads": 1, "groups": 1, "server.descriptors": 1, "shards.descriptors": 1, "keeper.descriptors": 1,
		"shards.anonymous": 10, "server.anonymous": 100, "list": 0.01, "stop-all": 1,
	} {
		if v := r["density."+name].Value; v < least || v > 10_000 {
			t.Errorf("density.%s is %v", name, v)
		}
	}
	if r["density.shards"].Value != 1 {
		t.Errorf("20 sandboxes are in %v shards", r["density.shards"].Value)
	}
	// What other programs do meanwhile is in these, so that only the kernel's stacks are sure to grow.
	for _, kind := range []string{"", ".anonymous", ".slab", ".page-tables", ".kernel-stacks", ".per-cpu", ".sockets", ".shared"} {
		if u := r["density.memory"+kind].Unit; u != "KiB/sandbox" {
			t.Errorf("density.memory%s has unit %q", kind, u)
		}
	}
}

// TestDensityStopsAtMemory: no --n has to be reached when there is no room.
func TestDensityStopsAtMemory(t *testing.T) {
	r, doc := run(t, bench.Density, bench.Options{N: 2000, MemoryMB: 1})
	if n := r["density.sandboxes"].Value; n < 1 || n >= 2000 {
		t.Errorf("%v sandboxes in 1 MiB", n)
	}
	if !slices.ContainsFunc(doc.Notes, func(n string) bool { return strings.HasPrefix(n, "stopped by memory: ") }) {
		t.Errorf("notes %q", doc.Notes)
	}
}

func TestStreamOnARealNode(t *testing.T) {
	r, doc := run(t, bench.Stream, bench.Options{N: 2, StreamBytes: 5<<20 + 3, Out: t.TempDir()})
	for _, way := range []string{"output", "output-ndjson", "upload", "download"} {
		got := r["stream."+way]
		if got.N != 2 || got.Unit != "MB/s" || got.Value <= 0 || got.P10 > got.P90 {
			t.Errorf("%+v", got)
		}
	}
	for _, process := range []string{"client", "server", "keeper", "shard-0"} {
		if got := r["stream.growth."+process]; got.N < 1 || got.Value < 0 || got.Unit != "MiB" {
			t.Errorf("%s: %+v", process, got)
		}
	}
	if len(doc.Results) != 12 {
		t.Errorf("%d results", len(doc.Results))
	}
}

func TestCodec(t *testing.T) {
	r, _ := run(t, bench.Codec, bench.Options{N: 2, Out: t.TempDir()})
	for _, line := range []string{"encode", "decode", "relay"} {
		for size, unit := range map[string]string{"64k": "GB/s", "4k": "GB/s", "64B": "frames/s"} {
			for _, by := range []string{"", ".cpu"} {
				got := r["codec."+line+"."+size+by]
				if got.N != 2 || got.Unit != unit || got.Value <= 0 || got.Ratio["memcpy"] <= 0 || got.Ratio["crc32c"] <= 0 {
					t.Errorf("%s of %s%s: %+v", line, size, by, got)
				}
			}
		}
	}
}

// TestProfile: client, server and aether are drawn while they work, or it is said what is missing.
func TestProfile(t *testing.T) {
	out := t.TempDir()
	_, doc := run(t, bench.Exec, bench.Options{N: 8, Concurrency: []int{2}, Profile: true, Out: out})
	for part, function := range map[string]string{
		"client": "internal/bench.(*client).exec", "server": "internal/aether.(*Conn)", "aether": "internal/chronus.(*Shard)",
	} {
		file := filepath.Join(out, "exec-tiny-true-c2-"+part)
		svg, err := os.ReadFile(file + ".svg")
		told := slices.ContainsFunc(doc.Notes, func(n string) bool { return strings.HasPrefix(n, "no flame graph of the "+part+": ") })
		if errors.Is(err, os.ErrNotExist) && told {
			continue // a busy machine may have had no time for it, or it has no perf
		}
		if err != nil {
			t.Errorf("%s: %v, told: %v", part, err, told)
			continue
		}
		wellFormed(t, svg)
		list, err := os.ReadFile(file + ".tsv")
		if err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string][]byte{"picture": svg, "list": list} {
			if samples(t, list) > 50 && !strings.Contains(string(text), function) {
				t.Errorf("nothing of %s in the %s of the %s:\n%s", function, name, part, list)
			}
		}
	}
}

// samples is how many samples a list is of.
func samples(t *testing.T, list []byte) int64 {
	t.Helper()
	var n int64
	var unit string
	_, rest, _ := strings.Cut(string(list), "all: ")
	if _, err := fmt.Sscan(rest, &n, &unit); err != nil {
		t.Fatalf("%v in %q", err, list)
	}
	if unit == "nanoseconds" {
		n /= 10_000_000 // Go takes a hundred a second
	}
	return n
}

func wellFormed(t *testing.T, svg []byte) {
	t.Helper()
	for dec := xml.NewDecoder(bytes.NewReader(svg)); ; {
		if _, err := dec.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

func TestProfileNeedsAFolder(t *testing.T) {
	if _, err := bench.Run(t.Context(), bench.Codec, bench.Options{Profile: true}); err == nil {
		t.Error("no error")
	}
}
