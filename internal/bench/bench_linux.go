package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// Options say what to measure and where.
type Options struct {
	Command     string // as it was typed, for the document
	N           int    // operations per concurrency and contender; 0: the benchmark's default
	Quick       bool   // fewer operations on the same path
	Concurrency []int  // empty: the benchmark's default
	Peers       []string
	Sandboxes   int    // of RL: step so many sandboxes, instead of what is in memory
	MemoryMB    int64  // of Density: how much memory may be used; 0: the default
	StreamBytes int64  // of Stream: how much at once; 0: 1 GiB
	Originals   string // of RL: folder of the C originals to compare environments with; empty: none
	Profile     bool   // draw flame graphs into Out
	Out         string // folder for raw samples and plots; empty: none

	Endpoint, Token string   // the server to measure; empty: one of its own
	Images          string   // that server's own image folder, if it is on this machine
	Store           string   // the machine-wide image store
	Self            string   // the program dsec, to start servers of its own with
	Env             []string // for what is started

	Progress io.Writer // what it is doing, and what failed
}

// The names of the benchmarks.
const (
	Create  = "create"
	Exec    = "exec"
	Density = "density"
	Codec   = "codec"
	Stream  = "stream"
	RL      = "rl"
)

// maxErrors is how many failures are shown; all are counted.
const maxErrors = 10

// bench is a run in progress.
type bench struct {
	Options
	work     string // scratch folder
	place    *place
	document Document
	raw      []rawSeries

	mu     sync.Mutex // guards what follows, and document while there is a profile
	errors []string
}

// rawSeries is a series with where it is from, for files.
type rawSeries struct {
	concurrency int
	series      *series
}

// check finds the benchmark, and tells whether it is all in this process.
func (o *Options) check(name string) (run func(*bench, context.Context) error, inMemory bool, err error) {
	runs := map[string]func(*bench, context.Context) error{
		Create: (*bench).create, Exec: (*bench).exec, Density: (*bench).density, Codec: (*bench).codec, Stream: (*bench).stream, RL: (*bench).rl,
	}
	inMemory = name == Codec || name == RL && o.Sandboxes == 0 // no server, no image, no peer
	switch {
	case runs[name] == nil:
		err = fmt.Errorf("no benchmark %q", name)
	case o.Profile && o.Out == "":
		err = errors.New("a profile is drawn into a folder, and there is none")
	case os.Geteuid() != 0 && !inMemory:
		err = errors.New("the peers and the images to compare with need root")
	}
	for _, p := range o.Peers {
		if _, missing := exec.LookPath(p); err == nil && missing != nil {
			err = fmt.Errorf("peer %s: %w", p, missing)
		}
	}
	return runs[name], inMemory, err
}

// Run runs a benchmark. The document is there also when operations failed; an error means that there is none.
func Run(ctx context.Context, name string, o Options) (_ *Document, err error) {
	run, inMemory, err := o.check(name)
	if err != nil {
		return nil, err
	}
	b := &bench{Options: o}
	b.Store = cmp.Or(b.Store, "/var/lib/dsec/images")
	if b.work, err = os.MkdirTemp("", "dsec-bench"); err != nil {
		return nil, fmt.Errorf("make scratch folder: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.work)) }()
	if !inMemory {
		b.sayf("preparing")
		if b.place, err = openPlace(ctx, b.work, filepath.Join(b.Store, sourceImage, "image.erofs")); err != nil {
			return nil, err
		}
		defer b.place.close()
	}
	before := load()
	if err := run(b, ctx); err != nil {
		return nil, err
	}
	b.document.Machine = machine(ctx, b.Peers) + "; load " + before + " before, " + load() + " after"
	if name == RL {
		b.document.Machine += "; " + vectors()
	}
	b.document.Command = b.Command
	for _, e := range b.errors {
		b.sayf("FAILED %s", e)
	}
	if err := b.writeOut(name); err != nil {
		return nil, err
	}
	return &b.document, ctx.Err()
}

func (b *bench) sayf(format string, args ...any) {
	fmt.Fprintf(b.Progress, "bench: "+format+"\n", args...)
}

func (b *bench) notef(format string, args ...any) {
	b.document.Notes = append(b.document.Notes, fmt.Sprintf(format, args...))
}

func (b *bench) failed(contender string, err error) {
	text := contender + ": " + err.Error()
	if len(b.errors) < maxErrors && !slices.Contains(b.errors, text) {
		b.errors = append(b.errors, text)
	}
}

// keep remembers what a run measured, for the files.
func (b *bench) keep(concurrency int, tallies map[string]*tally) {
	for _, t := range tallies {
		for _, s := range t.steps {
			b.raw = append(b.raw, rawSeries{concurrency, s})
		}
	}
	slices.SortStableFunc(b.raw, func(x, y rawSeries) int {
		return cmp.Or(cmp.Compare(x.concurrency, y.concurrency), strings.Compare(x.series.step, y.series.step),
			strings.Compare(x.series.contender, y.series.contender))
	})
}

// writeOut writes all samples to one file, and a plot for each step at each concurrency.
func (b *bench) writeOut(name string) error {
	if b.Out == "" {
		return nil
	}
	if err := os.MkdirAll(b.Out, 0o755); err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	var text strings.Builder
	text.WriteString("concurrency\tcontender\tstep\tus\n")
	plots := map[string][]*series{}
	for _, r := range b.raw {
		for _, d := range r.series.times {
			fmt.Fprintf(&text, "%d\t%s\t%s\t%.1f\n", r.concurrency, r.series.contender, r.series.step, microseconds().of(d))
		}
		key := fmt.Sprintf("%s, %s, concurrency %d", name, r.series.step, r.concurrency)
		plots[key] = append(plots[key], r.series)
	}
	err := os.WriteFile(filepath.Join(b.Out, name+".tsv"), []byte(text.String()), 0o644)
	for title, all := range plots {
		file := strings.NewReplacer(", concurrency ", "-c", ", ", "-", " ", "-").Replace(title) + ".svg"
		err = errors.Join(err, os.WriteFile(filepath.Join(b.Out, file), []byte(plotCDF(title, all)), 0o644))
	}
	if err != nil {
		return fmt.Errorf("write samples: %w", err)
	}
	return nil
}

// counts are how many operations are done, and in how many rounds.
func (b *bench) counts(n, quick int) (operations, rounds int) {
	if b.Quick {
		return cmp.Or(b.N, quick), 2
	}
	return cmp.Or(b.N, n), 5
}

func (b *bench) levels(usual ...int) []int {
	if len(b.Concurrency) > 0 {
		return b.Concurrency
	}
	return usual
}
