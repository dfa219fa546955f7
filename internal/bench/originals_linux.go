package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/rl/rlbench"
)

// original says how an environment of PufferLib 3.0 is set up: what its C binding would be told.
type original struct {
	figure  string // of rlbench, which it's compared with
	header  string // below the folder that the reader points to
	kind    string // its struct
	setup   string // of the environment e
	agents  int    // rows of one environment
	obs     int    // elements of one row's observation
	choices int
}

func originals() []original {
	const pong = "e->width = 500; e->height = 640; e->paddle_width = 20; e->paddle_height = 70; e->ball_width = e->ball_height = 32;" +
		"e->paddle_speed = 8; e->ball_initial_speed_x = 10; e->ball_initial_speed_y = 1; e->ball_max_speed_y = 13;" +
		"e->ball_speed_y_increment = 3; e->max_score = 21; e->frameskip = 1; e->continuous = 0; init(e);"
	const breakout = "e->frameskip = 4; e->width = 576; e->height = 330; e->paddle_width = 62; e->paddle_height = 8;" +
		"e->ball_width = e->ball_height = 32; e->brick_width = 32; e->brick_height = 12; e->brick_rows = 6; e->brick_cols = 18;" +
		"e->continuous = 0; init(e);"
	const snake = "e->width = 640; e->height = 360; e->num_snakes = 256; e->food = 4096; e->vision = 5; e->leave_corpse_on_death = 1;" +
		"e->reward_food = e->reward_corpse = 0.1f; e->reward_death = -1; e->max_snake_length = 1024; e->cell_size = 2; init_csnake(e);"
	return []original{
		{"step/squared", "squared/squared.h", "Squared", "e->size = 11;", 1, 121, 5},
		{"step/memory", "memory/memory.h", "Memory", "e->length = 4;", 1, 1, 2},
		{"step/cartpole", "cartpole/cartpole.h", "Cartpole", "e->continuous = 0; init(e);", 1, 4, 2},
		{"step/pong", "pong/pong.h", "Pong", pong, 1, 8, 3},
		{"step/2048", "g2048/g2048.h", "Game", "", 1, 16, 4},
		{"step/breakout", "breakout/breakout.h", "Breakout", breakout, 1, 118, 3},
		{"step/snake-256", "snake/snake.h", "CSnake", snake, 256, 121, 4},
	}
}

// driver steps rows of an environment as often as stdin says, and tells the processor time and a number for the state that
// they are in. Its actions are prepared, as rlbench's are. It's all that is needed of an environment: its struct with the
// pointers to the rows, its Log with n, c_reset and c_step.
const driver = `#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include HEADER

enum { TABLES = 61 };

static double now(void) {
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

int main(int argc, char **argv) {
	int rows = argc > 1 ? atoi(argv[1]) : 0, n = rows / AGENTS;
	if (n < 1) return 2;
	ENV *all = calloc(n, sizeof *all);
	__typeof__(all->observations) obs = calloc((size_t)rows * OBS, sizeof *obs);
	__typeof__(all->actions) actions = calloc(rows, sizeof *actions), tables = calloc((size_t)rows * TABLES, sizeof *tables);
	__typeof__(all->rewards) rewards = calloc(rows, sizeof *rewards);
	__typeof__(all->terminals) terminals = calloc(rows, sizeof *terminals);
	srand(7);
	for (long i = 0; i < (long)rows * TABLES; i++) tables[i] = rand() % CHOICES;
	for (int i = 0; i < n; i++) {
		ENV *e = &all[i];
		SETUP
		e->observations = obs + (size_t)i * AGENTS * OBS;
		e->actions = actions + i * AGENTS;
		e->rewards = rewards + i * AGENTS;
		e->terminals = terminals + i * AGENTS;
		c_reset(e);
	}
	long steps, at = 0;
	while (scanf("%ld", &steps) == 1) {
		double began = now(), state = 0;
		for (long s = 0; s < steps; s++, at = (at + 1) % TABLES) {
			__builtin_memcpy(actions, tables + at * rows, rows * sizeof *actions);
			for (int i = 0; i < n; i++) c_step(&all[i]);
		}
		double took = now() - began;
		for (int i = 0; i < n; i++) state += all[i].log.n;
		for (long i = 0; i < (long)rows * OBS; i++) state += obs[i] * (double)(i % 97 + 1);
		printf("%.9f %.9g\n", took, state);
		fflush(stdout);
	}
	return 0;
}
`

// compile makes the driver of one original.
func (b *bench) compile(ctx context.Context, o original) (program string, err error) {
	source := filepath.Join(b.work, "original.c")
	if err := os.WriteFile(source, []byte(driver), 0o600); err != nil {
		return "", fmt.Errorf("compile %s: %w", o.header, err)
	}
	program = filepath.Join(b.work, "original-"+strings.ToLower(o.kind))
	args := []string{
		"-O2", "-w", "-o", program, "-I", b.Originals, "-I", filepath.Join(b.Originals, filepath.Dir(o.header)),
		"-DHEADER=\"" + o.header + "\"", "-DENV=" + o.kind, "-DSETUP=" + o.setup, fmt.Sprintf("-DAGENTS=%d", o.agents),
		fmt.Sprintf("-DOBS=%d", o.obs), fmt.Sprintf("-DCHOICES=%d", o.choices), source,
		// What draws is never called: it's left out, so that no library to draw with has to be there.
		"-lm", "-ffunction-sections", "-fdata-sections", "-Wl,--gc-sections",
	}
	cmd := exec.CommandContext(ctx, compiler, args...)
	cmd.Env = append(b.Env, "LC_ALL=C")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", api.FieldError(api.CodeInvalid, "--originals", "the folder needs what the header includes, raylib.h too",
			"%s doesn't compile: %s (%v)", o.header, complaint(string(out)), err)
	}
	return program, nil
}

const compiler = "gcc"

// complaint is the first line that says what is wrong.
func complaint(out string) string {
	first, _, _ := strings.Cut(out, "\n")
	for line := range strings.Lines(out) {
		if strings.Contains(line, "error: ") {
			return strings.TrimSpace(line)
		}
	}
	return first
}

// openOriginals compiles and starts those whose headers are in the folder that the reader has pointed to.
func (b *bench) openOriginals(ctx context.Context, rows int) (map[string]rlbench.Peer, func(), error) {
	if b.Originals == "" {
		return nil, func() {}, nil
	}
	const hint = "point to the folder pufferlib/ocean of PufferLib 3.0's sources"
	if st, err := os.Stat(b.Originals); err != nil || !st.IsDir() {
		return nil, nil, api.FieldError(api.CodeInvalid, "--originals", hint, "%s isn't a folder", b.Originals)
	}
	if _, err := exec.LookPath(compiler); err != nil {
		return nil, nil, api.FieldError(api.CodeInvalid, "--originals", "install gcc, or leave the flag out", "there's no %s to compile them with", compiler)
	}
	all, missing := make(map[string]rlbench.Peer), []string(nil)
	closeAll := func() {
		for _, p := range all {
			p.(*cPeer).close()
		}
	}
	for _, o := range originals() {
		if _, err := os.Stat(filepath.Join(b.Originals, o.header)); errors.Is(err, fs.ErrNotExist) {
			missing = append(missing, o.header)
			continue
		}
		program, err := b.compile(ctx, o)
		if err == nil {
			all[o.figure], err = startPeer(ctx, program, rows)
		}
		if err != nil {
			delete(all, o.figure)
			closeAll()
			return nil, nil, err
		}
	}
	if len(all) == 0 {
		return nil, nil, api.FieldError(api.CodeInvalid, "--originals", hint, "%s has none of %s", b.Originals, strings.Join(missing, ", "))
	}
	b.notef("originals: %s -O2, of %s; the same number of rows, by their thread's processor time, in turns with ours, sample by sample", compiler, b.Originals)
	if len(missing) > 0 {
		b.notef("originals that aren't in the folder: %s", strings.Join(missing, ", "))
	}
	return all, closeAll, nil
}

// cPeer is a driver that runs.
type cPeer struct {
	cmd   *exec.Cmd
	in    *os.File
	lines *bufio.Reader
	out   *os.File
}

func startPeer(ctx context.Context, program string, rows int) (*cPeer, error) {
	theirIn, in, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start original: %w", err)
	}
	out, theirOut, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start original: %w", err), theirIn.Close(), in.Close())
	}
	p := &cPeer{cmd: exec.CommandContext(ctx, program, fmt.Sprint(rows)), in: in, out: out, lines: bufio.NewReader(out)}
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = theirIn, theirOut, theirOut
	err = p.cmd.Start()
	err = errors.Join(err, theirIn.Close(), theirOut.Close())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start original: %w", err), in.Close(), out.Close())
	}
	return p, nil
}

// Step implements [rlbench.Peer].
func (p *cPeer) Step(_ context.Context, steps int) (took time.Duration, state float64, err error) {
	if _, err := fmt.Fprintln(p.in, steps); err != nil {
		return 0, 0, fmt.Errorf("original: %w", err)
	}
	line, err := p.lines.ReadString('\n') // the end of the context kills the program, which ends this
	if err != nil {
		return 0, 0, fmt.Errorf("original ended with %q: %w", line, err)
	}
	var seconds float64
	if _, err := fmt.Sscan(line, &seconds, &state); err != nil {
		return 0, 0, fmt.Errorf("original said %q: %w", line, err)
	}
	return time.Duration(seconds * float64(time.Second)), state, nil
}

func (p *cPeer) close() {
	_, _ = p.in.Close(), p.out.Close()
	_ = p.cmd.Wait() // it ends with its input, or was killed
}
