package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReport(t *testing.T) {
	for name, tc := range map[string]struct {
		events  string
		summary string
		ok      bool
		prints  string
	}{
		"passes": {
			`{"Action":"run","Package":"p","Test":"TestA"}
			{"Action":"output","Package":"p","Test":"TestA","Output":"chatter\n"}
			{"Action":"pass","Package":"p","Test":"TestA"}
			{"Action":"output","Package":"p","Output":"ok  \tp\t0.1s\n"}
			{"Action":"pass","Package":"p"}`,
			"1 passed, 0 failed, 0 skipped", true, "ok  \tp\t0.1s\n",
		},
		"nothing-ran": {`{"Action":"skip","Package":"p"}`, "0 passed, 0 failed, 0 skipped", false, ""},
		"failure-shows-its-output": {
			`{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:1: got 1\n"}
			{"Action":"fail","Package":"p","Test":"TestA"}
			{"Action":"fail","Package":"p"}`,
			"0 passed, 1 failed, 0 skipped", false, "got 1",
		},
		"build-failure-counts": {
			`{"Action":"build-output","ImportPath":"p","Output":"x.go:1: undefined: y\n"}
			{"Action":"build-fail","ImportPath":"p"}
			{"Action":"fail","Package":"p","FailedBuild":"p"}`,
			"0 passed, 1 failed, 0 skipped", false, "undefined: y",
		},
		"unfinished-test-fails": {
			`{"Action":"pass","Package":"p","Test":"TestA"}
			{"Action":"output","Package":"p","Test":"TestB","Output":"panic: test timed out\n"}
			{"Action":"fail","Package":"p"}`,
			"1 passed, 1 failed, 0 skipped", false, "timed out",
		},
		"allowed-skip": {
			`{"Action":"pass","Package":"p","Test":"TestA"}
			{"Action":"output","Package":"p","Test":"TestB","Output":"    b_test.go:3: SKIP[need]: kvm: no such device\n"}
			{"Action":"skip","Package":"p","Test":"TestB"}`,
			"1 passed, 0 failed, 1 skipped", true, "skipped, as it may be: p TestB: kvm: no such device",
		},
		"unlisted-skip": {
			`{"Action":"pass","Package":"p","Test":"TestA"}
			{"Action":"output","Package":"p","Test":"TestB","Output":"    b_test.go:3: SKIP[need]: crun: not found\n"}
			{"Action":"skip","Package":"p","Test":"TestB"}`,
			"1 passed, 0 failed, 1 skipped", false, "isn't in list: p TestB: crun: not found",
		},
		"skip-without-need": {
			`{"Action":"pass","Package":"p","Test":"TestA"}
			{"Action":"output","Package":"p","Test":"TestB","Output":"    b_test.go:3: later\n"}
			{"Action":"skip","Package":"p","Test":"TestB"}`,
			"1 passed, 0 failed, 1 skipped", false, "no reason given",
		},
	} {
		t.Run(name, func(t *testing.T) {
			list := filepath.Join(t.TempDir(), "list")
			if err := os.WriteFile(list, []byte("# why\nkvm\t# because\n\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			r := newReport(&out)
			if err := r.allow(list); err != nil {
				t.Fatal(err)
			}
			if err := r.read(strings.NewReader(tc.events)); err != nil {
				t.Fatal(err)
			}
			r.close("list")
			if got := r.summary(); got != tc.summary || r.ok() != tc.ok {
				t.Errorf("summary = %q, ok = %v, want %q, %v", got, r.ok(), tc.summary, tc.ok)
			}
			if !strings.Contains(out.String(), tc.prints) || !strings.HasSuffix(out.String(), "\n"+tc.summary+"\n") {
				t.Errorf("printed:\n%s\nwant %q in it, and the summary last", out.String(), tc.prints)
			}
			if strings.Contains(out.String(), "chatter") {
				t.Errorf("printed the output of a test that passed:\n%s", out.String())
			}
		})
	}
}

func TestLeakIsNoSuccess(t *testing.T) {
	r := newReport(&strings.Builder{})
	r.passed = 1
	if !r.ok() {
		t.Error("ok() = false, want true")
	}
	r.left = []string{"mount 7 erofs /x"}
	if r.ok() {
		t.Error("ok() = true with something left behind")
	}
}

// TestReportOfWhatHangs: a run that was interrupted fails by its unfinished tests, and stacks without end are cut.
func TestReportOfWhatHangs(t *testing.T) {
	line := `{"Action":"output","Package":"p","Test":"TestB","Output":"line\n"}` + "\n"
	var out strings.Builder
	r := newReport(&out)
	if err := r.read(strings.NewReader(`{"Action":"pass","Package":"p","Test":"TestA"}` + "\n" + strings.Repeat(line, 1000))); err != nil {
		t.Fatal(err)
	}
	r.close("list")
	if r.ok() || r.summary() != "1 passed, 1 failed, 0 skipped" {
		t.Errorf("summary %q, ok %v", r.summary(), r.ok())
	}
	if got := out.String(); !strings.HasPrefix(got, "unfinished: p TestB\nline\n") || !strings.Contains(got, "line\n… 400 lines …\nline\n") {
		t.Errorf("printed %q", got)
	}
}
