package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
)

// event is one line of `go test -json` (see `go doc test2json`).
type event struct {
	Action      string
	Package     string
	Test        string
	Output      string
	ImportPath  string // of build-output and build-fail
	FailedBuild string
}

// testName identifies a test or subtest; Test is empty for what the package itself prints.
type testName struct{ pkg, test string }

// report gathers what a run did. It prints what `go test` without -v would: the line of each package, and the whole
// output of each test that failed.
type report struct {
	out     io.Writer
	allowed map[string]bool
	start   time.Time

	passed, failed int
	skips          []skip
	left           []string // what the tests left behind in the kernel

	output      map[testName][]string // of the tests that run now
	failedTests map[string]bool       // packages in which a test failed
	failures    []string
}

// skip is a test that was skipped, and the name of what it missed: empty when it didn't say so through internal/need.
type skip struct {
	test    testName
	missing string
	reason  string
}

func newReport(out io.Writer) *report {
	return &report{
		out:         out,
		allowed:     make(map[string]bool),
		start:       time.Now(),
		output:      make(map[testName][]string),
		failedTests: make(map[string]bool),
	}
}

// allow reads the list of allowed skips: a name a line, "#" begins a comment.
func (r *report) allow(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		line, _, _ = strings.Cut(line, "#")
		if name := strings.TrimSpace(line); name != "" {
			r.allowed[name] = true
		}
	}
	return nil
}

// read takes in the events of one run.
func (r *report) read(events io.Reader) error {
	lines := bufio.NewReader(events)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			var e event
			if json.Unmarshal([]byte(line), &e) == nil && e.Action != "" {
				r.add(e)
			} else {
				fmt.Fprint(r.out, line) // go itself complains in plain text
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read test events: %w", err)
		}
	}
}

func (r *report) add(e event) {
	name := testName{e.Package, e.Test}
	switch e.Action {
	case "build-output":
		fmt.Fprint(r.out, e.Output)
	case "output":
		r.addOutput(name, e.Output)
	case "pass":
		if e.Test != "" {
			r.passed++
		}
		delete(r.output, name)
	case "skip":
		if e.Test != "" {
			r.skips = append(r.skips, r.newSkip(name))
		}
		delete(r.output, name)
	case "fail":
		r.addFailure(name)
	}
}

func (r *report) addOutput(name testName, text string) {
	if name.test == "" {
		if text != "PASS\n" && !strings.Contains(text, "[no test files]") {
			fmt.Fprint(r.out, text)
		}
		return
	}
	if !strings.HasPrefix(text, "=== ") {
		r.output[name] = append(r.output[name], text)
	}
}

// addFailure counts a failed test and prints its output. A package may fail without a failed test (it doesn't build, it
// panics, its time is up): that counts as one failure, and whatever its unfinished tests said is printed.
func (r *report) addFailure(name testName) {
	if name.test != "" {
		r.failedTests[name.pkg] = true
		r.fail(name)
		return
	}
	for running := range r.output {
		if running.pkg == name.pkg {
			r.failedTests[name.pkg] = true
			r.fail(running)
		}
	}
	if !r.failedTests[name.pkg] {
		r.fail(name)
	}
}

func (r *report) fail(name testName) {
	r.failed++
	r.failures = append(r.failures, strings.TrimSpace(name.pkg+" "+name.test))
	lines := r.output[name]
	if cut := len(lines) - firstLines - lastLines; cut > 0 {
		rest := append([]string{fmt.Sprintf("… %d lines …\n", cut)}, lines[firstLines+cut:]...)
		lines = append(lines[:firstLines:firstLines], rest...)
	}
	for _, line := range lines {
		fmt.Fprint(r.out, line)
	}
	delete(r.output, name)
}

// What is printed of a failed test: a test that hangs ends with the stacks of all goroutines.
const (
	firstLines = 150
	lastLines  = 450
)

// addUnfinished counts the tests that had neither passed nor failed when the run ended, and prints what they said.
func (r *report) addUnfinished() {
	names := slices.SortedFunc(maps.Keys(r.output), func(x, y testName) int {
		return cmp.Or(strings.Compare(x.pkg, y.pkg), strings.Compare(x.test, y.test))
	})
	for _, name := range names {
		fmt.Fprintf(r.out, "unfinished: %s %s\n", name.pkg, name.test)
		r.fail(name)
	}
}

func (r *report) newSkip(name testName) skip {
	s := skip{test: name, reason: "no reason given through internal/need"}
	for _, line := range r.output[name] {
		if _, after, ok := strings.Cut(line, "SKIP[need]: "); ok {
			s.missing, s.reason, _ = strings.Cut(strings.TrimSpace(after), ": ")
		}
	}
	return s
}

// close prints what was skipped and what was left behind, and the closing line.
func (r *report) close(allowedFile string) {
	r.addUnfinished()
	for _, f := range r.failures {
		fmt.Fprintf(r.out, "failed: %s\n", f)
	}
	for _, s := range r.skips {
		verdict := "skipped, as it may be"
		if !r.allowed[s.missing] {
			verdict = "skipped, and isn't in " + allowedFile
		}
		fmt.Fprintf(r.out, "%s: %s %s: %s: %s\n", verdict, s.test.pkg, s.test.test, s.missing, s.reason)
	}
	for _, entry := range r.left {
		fmt.Fprintf(r.out, "left behind: %s\n", entry)
	}
	if len(r.left) == 0 {
		fmt.Fprintln(r.out, "left behind: nothing (mounts, cgroups, network namespaces, processes, loop devices)")
	}
	fmt.Fprintf(r.out, "took %s\n%s\n", time.Since(r.start).Round(time.Second), r.summary())
}

func (r *report) summary() string {
	return fmt.Sprintf("%d passed, %d failed, %d skipped", r.passed, r.failed, len(r.skips))
}

// ok tells whether the run may be called a success. A run without a single test is none.
func (r *report) ok() bool {
	for _, s := range r.skips {
		if !r.allowed[s.missing] {
			return false
		}
	}
	return r.failed == 0 && len(r.left) == 0 && r.passed > 0
}
