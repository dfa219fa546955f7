// Command suite runs the whole test suite and says what a plain `go test` doesn't: which tests were skipped and whether
// they may be, what the tests left behind in the kernel, and how many tests ran.
//
// Packages whose tests touch the kernel (they import internal/need, internal/leakcheck or a package for tests that builds
// on them) run one after the other, because they count what is on the host and measure time on a small machine. The
// others run beside each other under the race detector. The exit status is 0 only if every test passed, every skip is in the list, and nothing is left.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/dsec-io/dsec/internal/leakcheck"
	"golang.org/x/sys/unix"
)

const (
	// limit ends a run that hangs while there is still time to say which test it was.
	limit = 40 * time.Minute
	// settle is how long the kernel may take to free what the last test made.
	settle = time.Minute
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("the suite took longer than %s", limit))
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	cancel()
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("suite", flag.ContinueOnError)
	flags.SetOutput(stderr)
	allowedFile := flags.String("allowed-skips", "", "`file` with the names that a test may be skipped for, one a line")
	summaryFile := flags.String("summary", "", "`file` to write the closing line to")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if os.Geteuid() != 0 {
		fmt.Fprintln(stderr, "make test: needs root: the tests make namespaces, mounts and cgroups")
		return 1
	}
	patterns := flags.Args()
	if len(patterns) == 0 {
		patterns = []string{"./..."}
	}
	rep := newReport(stdout)
	err := suite(ctx, rep, patterns, *allowedFile)
	if ctx.Err() != nil {
		err = errors.Join(err, context.Cause(ctx))
	}
	if err != nil {
		fmt.Fprintf(stderr, "make test: %v\n", err)
	}
	rep.close(*allowedFile)
	if *summaryFile != "" {
		if werr := os.WriteFile(*summaryFile, []byte(rep.summary()+"\n"), 0o644); werr != nil {
			fmt.Fprintf(stderr, "make test: %v\n", werr)
			return 1
		}
	}
	if err != nil || !rep.ok() {
		return 1
	}
	return 0
}

// suite runs all tests that the patterns name and looks at the kernel's counts before and after.
func suite(ctx context.Context, rep *report, patterns []string, allowedFile string) error {
	if allowedFile != "" {
		if err := rep.allow(allowedFile); err != nil {
			return err
		}
	}
	plain, kernel, err := list(ctx, patterns)
	if err != nil {
		return err
	}
	before, err := leakcheck.Take()
	if err != nil {
		return err
	}
	var runs []error
	if len(plain) > 0 {
		runs = append(runs, goTest(ctx, rep, append([]string{"-race", "-timeout", "10m"}, plain...)))
	}
	if len(kernel) > 0 {
		// Built first and all at once, so that no compiler runs beside a test that measures.
		warm := exec.CommandContext(ctx, "go", append([]string{"test", "-exec", "true"}, kernel...)...)
		_ = warm.Run() // what doesn't build is reported by the run below
		runs = append(runs, goTest(ctx, rep, append([]string{"-p", "1", "-count", "1", "-timeout", "8m"}, kernel...)))
	}
	settled, cancel := context.WithTimeout(context.WithoutCancel(ctx), settle)
	defer cancel()
	left, err := leakcheck.Wait(settled, before.Host(), func() (leakcheck.Snapshot, error) {
		s, err := leakcheck.Take()
		return s.Host(), err
	})
	rep.left = left
	return errors.Join(append(runs, err)...)
}

// list splits the packages that have tests into those that touch the kernel and the rest.
func list(ctx context.Context, patterns []string) (plain, kernel []string, err error) {
	const format = `{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}` +
		`{{range .TestImports}} {{.}}{{end}}{{range .XTestImports}} {{.}}{{end}}{{end}}`
	cmd := exec.CommandContext(ctx, "go", append([]string{"list", "-f", format}, patterns...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, nil, fmt.Errorf("list packages: %w", err)
	}
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		switch {
		case len(words) == 0:
		case slices.ContainsFunc(words[1:], touchesKernel):
			kernel = append(kernel, words[0])
		default:
			plain = append(plain, words[0])
		}
	}
	return plain, kernel, nil
}

// touchesKernel judges a package by one import of its tests.
func touchesKernel(imported string) bool {
	room, ours := strings.CutPrefix(imported, "github.com/dsec-io/dsec/")
	inner := strings.HasPrefix(room, "internal/")
	return ours && (room == "test/testbed" || room == "internal/need" || room == "internal/leakcheck" ||
		inner && strings.HasSuffix(room, "test"))
}

// goTest runs one `go test` and feeds its events to the report. Failed tests are the report's to tell; the error is
// about the run itself.
func goTest(ctx context.Context, rep *report, args []string) error {
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-json"}, args...)...)
	cmd.Stderr = os.Stderr
	// A test that is ended by SIGQUIT tells where its goroutines are; the go command itself only waits for it.
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGQUIT) }
	cmd.WaitDelay = time.Minute
	events, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	readErr := rep.read(events)
	err = cmd.Wait()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == 1 && rep.failed > 0 {
		err = nil
	}
	return errors.Join(readErr, err)
}
