// Command fix-a-bug lets agents repair a bug in a small Python project, each in a sandbox of its own, all at once, and
// grades what they did. Some of the agents cheat.
//
// What an agent says, and what its sandbox says, proves nothing: whoever is root in a sandbox can replace its python. So
// an agent hands in source files and nothing else, and they are graded in a fresh sandbox (see grade.go). A reward is 1
// or 0; where DSec failed there is none: the attempt is masked. The exit status is 0 if every reward was as expected.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"sync"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, stdout *os.File, stderr io.Writer) int {
	flags := flag.NewFlagSet("fix-a-bug", flag.ContinueOnError)
	flags.SetOutput(stderr)
	honest := flags.Int("n", 32, "how many honest agents")
	cheating := flags.Int("cheats", len(cheats()), "how many of the ways to cheat are tried, too")
	parallel := flags.Int("parallel", 32, "how many agents at a time")
	image := flags.String("image", "debian", "what the sandboxes are made from")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	client, err := libdsec.New()
	if err != nil {
		fmt.Fprintln(stderr, "fix-a-bug:", err)
		return 1
	}
	defer func() { _ = client.Close() }()

	jobs := make([]agent, *honest, *honest+*cheating)
	for _, c := range cheats()[:min(*cheating, len(cheats()))] {
		jobs = append(jobs, agent{cheat: c})
	}
	board := newBoard(stdout, len(jobs))
	slots := make(chan struct{}, max(1, *parallel))
	var all sync.WaitGroup
	for i := range jobs {
		a := &jobs[i]
		a.client, a.image, a.board = client, *image, board
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			board.done(a.attempt(ctx))
		})
	}
	all.Wait()
	return board.close()
}

// agent is one attempt.
type agent struct {
	client *libdsec.Client
	image  string
	board  *board
	cheat  cheat // the zero value: none
	sb     *libdsec.Sandbox
	steps  int
}

// attempt gives an agent the project and grades what it hands in.
func (a *agent) attempt(ctx context.Context) (o outcome) {
	began := time.Now()
	o.agent = "honest"
	if a.cheat.name != "" {
		o.agent = a.cheat.name
	}
	defer func() { o.steps, o.took = a.steps, time.Since(began) }()
	a.board.phase(+1, 0)
	work, err := a.work(ctx, &o)
	a.board.phase(-1, 0)
	if err != nil {
		return o.fail(err)
	}
	a.board.phase(0, +1)
	defer a.board.phase(0, -1)
	return o.fail(grade(ctx, a.client, a.image, work))
}

// work is the agent's time in its sandbox, which ends with it: nothing that it has left there goes on.
func (a *agent) work(ctx context.Context, o *outcome) (handedIn map[string][]byte, err error) {
	a.sb, err = a.client.Create(ctx, spec(a.image, "app"))
	if err != nil {
		return nil, err
	}
	o.id = a.sb.ID()
	defer stop(ctx, a.sb)
	if _, err := a.sb.Files().Untar(ctx, home, tarOf(project())); err != nil {
		return nil, err
	}
	act := a.repair
	if a.cheat.script != "" {
		act = func(ctx context.Context) error { _, err := a.shell(ctx, a.cheat.script); return err }
	}
	if err := act(ctx); err != nil && infrastructure(err) {
		return nil, err
	}
	return collect(ctx, a.sb)
}

// repair is an honest agent's way: it reads, looks for what the words mean in the code, edits, and runs the tests.
func (a *agent) repair(ctx context.Context) error {
	readme, err := a.shell(ctx, "cat README.md")
	if err != nil {
		return err
	}
	file := regexp.MustCompile("sliding window[^`]*`([^`]+[.]py)`").FindSubmatch(readme.Stdout)
	if file == nil {
		return fmt.Errorf("the README doesn't say where the window is kept")
	}
	name := home + "/" + string(file[1])
	tests, err := a.shell(ctx, "python3 -m unittest")
	if err != nil || tests.ExitCode != nil && *tests.ExitCode == 0 {
		return err // nothing to repair
	}
	// The tests fail at the window's very end, which the README excludes: a comparison there is too strict.
	found, err := a.shell(ctx, "grep -nE '_times\\[0\\] *<=? ' "+name)
	if err != nil {
		return err
	}
	line := bytes.TrimSpace(regexp.MustCompile(`^\d+:`).ReplaceAll(bytes.TrimSpace(found.Stdout), nil))
	source, err := a.sb.Files().ReadFile(ctx, name)
	if err != nil {
		return err
	}
	a.steps++
	source = bytes.Replace(source, line, bytes.Replace(line, []byte(" < "), []byte(" <= "), 1), 1)
	if _, err := a.sb.Files().WriteFile(ctx, name, source, libdsec.WriteOptions{}); err != nil {
		return err
	}
	_, err = a.shell(ctx, "python3 -m unittest")
	return err
}

// shell is one step of an agent.
func (a *agent) shell(ctx context.Context, script string) (*libdsec.Result, error) {
	a.steps++
	r, err := a.sb.Exec(ctx, libdsec.Cmd{Shell: script, Cwd: home, Timeout: patience})
	if err == nil && r.InfraError != "" {
		err = api.Errorf(api.CodeInternal, "%s", r.InfraError)
	}
	return r, err
}
