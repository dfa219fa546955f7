package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"go.uber.org/goleak"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/cmd/dsec/cli"
	"github.com/dsec-io/dsec/cmd/dsec/show"
	"github.com/dsec-io/dsec/internal/aether"
)

var update = flag.Bool("update", false, "rewrite golden files")

// asProgram makes this test's executable dsec itself, for what needs a process: signals, pipes, kill -9.
const asProgram = "DSEC_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	goleak.VerifyTestMain(m)
}

// TestExitCodes is the contract with scripts.
func TestExitCodes(t *testing.T) {
	for name, tc := range map[string]struct {
		status api.ExitStatus
		want   int
	}{
		"zero":        {api.ExitStatus{ExitCode: new(0)}, 0},
		"own":         {api.ExitStatus{ExitCode: new(42)}, 42},
		"own-255":     {api.ExitStatus{ExitCode: new(255)}, 255},
		"timed-out":   {api.ExitStatus{TimedOut: true, Signal: "SIGKILL"}, 124},
		"killed":      {api.ExitStatus{Signal: "SIGKILL"}, 137},
		"out-of-mem":  {api.ExitStatus{Signal: "SIGKILL", OOMKilled: true}, 137},
		"interrupted": {api.ExitStatus{Signal: "SIGINT"}, 130},
		"real-time":   {api.ExitStatus{Signal: "SIG40"}, 168},
		"lost":        {api.ExitStatus{InfraError: "shard lost"}, 125},
	} {
		t.Run(name, func(t *testing.T) {
			if got := cli.StatusCode(tc.status); got != tc.want {
				t.Errorf("statusCode(%+v) = %d, want %d", tc.status, got, tc.want)
			}
		})
	}
	for name, tc := range map[string]struct {
		err  error
		want int
	}{
		"not-found":      {api.Errorf(api.CodeCommandNotFound, "x"), 127},
		"not-executable": {fmt.Errorf("wrapped: %w", api.Errorf(api.CodeCommandNotExecutable, "x")), 126},
		"no-workdir":     {api.Errorf(api.CodeWorkdirNotFound, "x"), 125},
		"api":            {api.Errorf(api.CodeNotFound, "x"), 125},
		"other":          {errors.New("x"), 125},
		"interrupt":      {&cli.InterruptedError{Signal: syscall.SIGINT}, 130},
		"terminate":      {&cli.InterruptedError{Signal: syscall.SIGTERM}, 143},
		"doctor":         {&cli.StatusError{Code: 1}, 1},
		"detached":       {cli.ErrDetached, 0},
	} {
		t.Run(name, func(t *testing.T) {
			if got := cli.ExitCode(tc.err); got != tc.want {
				t.Errorf("exitCode(%v) = %d, want %d", tc.err, got, tc.want)
			}
		})
	}
}

func TestRun(t *testing.T) {
	f := newFake(t)
	f.commands["both"] = func(ctx context.Context, st *aether.Stream, _ *aether.ExecStart) aether.Exited {
		put(ctx, st, aether.Stdout, "a\n\n\r\nb")
		put(ctx, st, aether.Stderr, "e\x00")
		return exited(3)
	}
	f.commands["cat"] = func(ctx context.Context, st *aether.Stream, m *aether.ExecStart) aether.Exited {
		if !m.Stdin {
			return exited(9)
		}
		input(ctx, st, func(b []byte) bool {
			put(ctx, st, aether.Stdout, string(b))
			return true
		})
		return exited(0)
	}
	f.commands["slow"] = func(_ context.Context, _ *aether.Stream, m *aether.ExecStart) aether.Exited {
		return aether.Exited{Signal: 9, TimedOut: true, TimeoutMS: m.TimeoutMS}
	}
	f.commands["oom"] = func(context.Context, *aether.Stream, *aether.ExecStart) aether.Exited {
		return aether.Exited{Signal: 9, OOMKilled: true}
	}
	f.commands["args"] = func(ctx context.Context, st *aether.Stream, m *aether.ExecStart) aether.Exited {
		for _, a := range m.Argv {
			put(ctx, st, aether.Stdout, string(a)+"|")
		}
		return exited(0)
	}
	f.commands["shell"] = func(ctx context.Context, st *aether.Stream, _ *aether.ExecStart) aether.Exited {
		put(ctx, st, aether.Stdout, "shell")
		return exited(0)
	}
	for name, tc := range map[string]struct {
		args   string
		stdin  string
		stdout string
		stderr string
		code   int
	}{
		"bytes":          {"busybox -- both", "", "a\n\n\r\nb", "e\x00", 3},
		"stdin":          {"-i busybox -- cat", "in\r\n\x00", "in\r\n\x00", "", 0},
		"no-stdin":       {"busybox -- cat", "ignored", "", "", 9},
		"timed-out":      {"--timeout 1.5 busybox -- slow", "", "", "dsec: the command timed out and was killed\nhint: give it more with --timeout\n", 124},
		"out-of-memory":  {"busybox -- oom", "", "", "dsec: the command was killed: out of memory\nhint: give it more with --memory\n", 137},
		"not-found":      {"busybox -- nope", "", "", "dsec: nope: not found\nhint: is it in the image, and on its PATH?\n", 127},
		"no-image":       {"none -- both", "", "", "dsec: image: no image \"none\"\\x1b[31m\nhint: make setup\n", 125},
		"flags-after":    {"busybox -e A=b -- args -e", "", "args|-e|", "", 0},
		"without-dashes": {"busybox args -e A=b", "", "args|-e|A=b|", "", 0},
		"no-command":     {"busybox", "", "shell", "", 0},
		"no-tty":         {"-it busybox -- both", "", "", "dsec: --tty: stdin isn't a terminal\nhint: leave -t away\n", 125},
		"bad-memory":     {"-m 512 busybox -- both", "", "", "dsec: invalid argument \"512\" for \"-m, --memory\" flag: \"512\" has no unit: write 512m for MiB or 512g for GiB\nhint: see `dsec run --help`\n", 125},
		"no-args":        {"", "", "", "dsec: IMAGE is missing\nhint: see `dsec run --help`\n", 125},
		"own-dashes":     {"busybox args -c x -- both", "", "args|-c|x|--|both|", "", 0},
		"flags-around":   {"-e A=b busybox -m 1g --label=a=b args -m", "", "args|-m|", "", 0},
		"joined-flags":   {"-m1g -ie A=b busybox args -i", "", "args|-i|", "", 0},
		"no-name":        {"-- busybox args", "", "", "dsec: IMAGE is missing\nhint: see `dsec run --help`\n", 125},
		"unknown-flag":   {"busybox --nope args", "", "", "dsec: unknown flag: --nope\nhint: see `dsec run --help`\n", 125},
	} {
		t.Run(name, func(t *testing.T) {
			stdout, stderr, code := f.dsec(tc.stdin, append([]string{"run"}, strings.Fields(tc.args)...)...)
			if stdout != tc.stdout || stderr != tc.stderr || code != tc.code {
				t.Errorf("dsec run %s = %q, %q, %d, want %q, %q, %d", tc.args, stdout, stderr, code, tc.stdout, tc.stderr, tc.code)
			}
			for len(f.created) > 0 {
				<-f.created
			}
		})
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if made, stopped := len(f.list), f.stopped.Load(); stopped != int64(made) {
		t.Errorf("%d sandboxes were made, %d stopped", made, stopped)
	}
}

// TestRunForwardsInterrupts: the first Ctrl-C is the command's; a command that ignores several is killed.
func TestRunForwardsInterrupts(t *testing.T) {
	for name, tc := range map[string]struct{ obeys bool }{"obeys": {true}, "ignores": {false}} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			f.commands["wait"] = func(ctx context.Context, _ *aether.Stream, _ *aether.ExecStart) aether.Exited {
				interrupt(t)
				for {
					select {
					case n := <-f.signals:
						if n == int32(syscall.SIGINT) && !tc.obeys {
							interrupt(t)
							continue
						}
						return aether.Exited{Signal: n}
					case <-ctx.Done():
						return exited(1)
					}
				}
			}
			_, stderr, code := f.dsec("", "run", "busybox", "--", "wait")
			if code != 130 || f.stopped.Load() != 1 {
				t.Errorf("exit code %d with %q, %d stopped, want 130 and 1", code, stderr, f.stopped.Load())
			}
		})
	}
}

// interrupt sends this process a SIGINT, which run has taken over.
func interrupt(t *testing.T) {
	if err := syscall.Kill(os.Getpid(), syscall.SIGINT); err != nil {
		t.Error(err)
	}
}

func TestCreateSpec(t *testing.T) {
	f := newFake(t)
	file := filepath.Join(t.TempDir(), "env")
	if err := os.WriteFile(file, []byte("# comment\n\nA=file\nQUOTED=\"as is\"\nTERM\nUNSET\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	stdout, stderr, code := f.dsec("", "sb", "create", "-m", "2g", "--cpu", "1.5", "--pids", "99", "-e", "A=flag", "--env-file", file,
		"-l", "k=v=w", "-u", "1000:1000", "-w", "/w", "--hostname", "h", "--job", "j", "--max-life", "90s", "busybox", "--", "httpd", "-f")
	if stdout != "s1\n" || stderr != "" || code != 0 {
		t.Fatalf("create = %q, %q, %d", stdout, stderr, code)
	}
	want := api.Spec{
		Image: "busybox", Command: []string{"httpd", "-f"}, User: "1000:1000", Workdir: "/w", Hostname: "h", Job: "j",
		Resources: api.Resources{CPU: new(1.5), MemoryMB: new(int64(2048)), PIDs: new(int64(99))},
		Env:       map[string]string{"A": "flag", "QUOTED": `"as is"`, "TERM": "dumb"}, Labels: map[string]string{"k": "v=w"},
		TTL: api.TTL{MaxS: new(int64(90))},
	}
	if diff := cmp.Diff(want, <-f.created); diff != "" {
		t.Errorf("spec (-want +got):\n%s", diff)
	}
}

// TestOutputFormats compares with golden files; -update rewrites them.
func TestOutputFormats(t *testing.T) {
	f := newFake(t)
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	f.list = []api.Sandbox{
		{ID: "s2", State: api.StateRunning, Project: "p", CreatedAt: now, Spec: api.Spec{
			Image: "debian", Resources: api.Resources{CPU: new(0.5), MemoryMB: new(int64(2048)), PIDs: new(int64(512))},
			Labels: map[string]string{"b": "evil\x1b]0;title\x07\u009b31m\u202e", "a": "1"}, Env: map[string]string{"K": "one\nline"},
		}},
		{ID: "s1", State: api.StateFailed, Reason: "init died", Project: "p", CreatedAt: now, EndedAt: &now, Spec: api.Spec{Image: "busybox"}},
	}
	for _, args := range []string{"ls -a -o json", "ls -a -o yaml", "ls -a -o name", "ls -o name", "ls -a", "get s2", "get s2 -o json", "get s2 -o yaml", "get s1 -o name"} {
		t.Run(strings.ReplaceAll(args, " ", "-"), func(t *testing.T) {
			stdout, stderr, code := f.dsec("", append([]string{"sandbox"}, strings.Fields(args)...)...)
			if stderr != "" || code != 0 {
				t.Fatalf("%q, %d", stderr, code)
			}
			stdout = strings.ReplaceAll(stdout, show.Age(now), "AGE")
			stdout = strings.ReplaceAll(stdout, now.Local().Format(time.RFC3339), "2026-01-02T03:04:05Z")
			golden(t, strings.ReplaceAll(args, " ", "_")+".golden", stdout)
			if strings.ContainsAny(stdout, "\x1b\x07") || strings.ContainsAny(stdout, "\u009b\u202e") {
				t.Errorf("control characters got through: %q", stdout)
			}
		})
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

func TestConfigCommands(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "data", "context.json")
	if err := errors.Join(os.Mkdir(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(`{"endpoint":"http://127.0.0.1:1","token":"secret"}`), 0o600)); err != nil {
		t.Fatal(err)
	}
	do := func(args ...string) (string, int) {
		var out strings.Builder
		code := run(t.Context(), args, []string{"HOME=" + dir}, strings.NewReader(""), &out, &out)
		return out.String(), code
	}
	if out, code := do("config", "show"); code != 125 || !strings.Contains(out, "hint: start one with `dsec dev`") {
		t.Errorf("config show without any = %q, %d", out, code)
	}
	if out, code := do("config", "use", file); code != 0 {
		t.Fatalf("config use = %q, %d", out, code)
	}
	if out, code := do("config", "show", "-o", "json"); code != 0 || !strings.Contains(out, "http://127.0.0.1:1") || strings.Contains(out, "secret") {
		t.Errorf("config show = %q, %d, want the endpoint and no token", out, code)
	}
	if out, code := do("config", "contexts", "-o", "name"); code != 0 || strings.Count(out, "\n") != 1 {
		t.Errorf("config contexts = %q, %d", out, code)
	}
	if out, code := do("sandbox", "ls"); code != 125 || !strings.Contains(out, "dsec: no DSec server answers at http://127.0.0.1:1") {
		t.Errorf("sandbox ls = %q, %d", out, code)
	}
	if out, code := do("config", "env"); code != 0 || out != "export DSEC_ENDPOINT='http://127.0.0.1:1'\nexport DSEC_TOKEN='secret'\n" {
		t.Errorf("config env = %q, %d", out, code)
	}
	if out, _ := do("--endpoint", "http://127.0.0.1:2", "--token", "it's", "config", "env"); !strings.HasSuffix(out, `DSEC_TOKEN='it'\''s'`+"\n") {
		t.Errorf("config env of a token with a quote = %q", out)
	}
	if out, _ := do("--endpoint", "http://127.0.0.1:2", "--token", "t", "sandbox", "ls"); !strings.HasSuffix(out, "the address comes from: --endpoint\n") {
		t.Errorf("of another address = %q", out)
	}
	if out, code := do("config", "use", "nope"); code != 125 || !strings.Contains(out, `no context "nope"`) {
		t.Errorf("config use nope = %q, %d", out, code)
	}
}

func TestCompletion(t *testing.T) {
	f := newFake(t)
	f.list = []api.Sandbox{{ID: "sa", State: api.StateRunning, Spec: api.Spec{Image: "busybox"}}, {ID: "sb", State: api.StateStopped}}
	stdout, _, code := f.dsec("", cobra.ShellCompRequestCmd, "sandbox", "get", "")
	if code != 0 || !strings.HasPrefix(stdout, "sa\tbusybox running\n") || strings.Contains(stdout, "sb") {
		t.Errorf("completion = %q, %d, want the living sandbox alone", stdout, code)
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if stdout, stderr, code := f.dsec("", "completion", shell); code != 0 || len(stdout) < 1000 {
			t.Errorf("completion %s = %d bytes, %q, %d", shell, len(stdout), stderr, code)
		}
	}
}

// TestUnknownCommands: whoever types something near a command is told the command.
func TestUnknownCommands(t *testing.T) {
	f := newFake(t)
	for typed, hint := range map[string]string{
		"bogus":        "see `dsec --help`",
		"exec":         "did you mean `dsec sandbox exec`?",
		"ps":           "did you mean `dsec sandbox ls`?", // what docker lists with it
		"ls":           "did you mean `dsec sandbox ls`?",
		"create":       "did you mean `dsec sandbox create`?",
		"rm":           "did you mean `dsec sandbox stop`?",
		"start":        "did you mean `dsec dev`?",
		"config xy":    "see `dsec config --help`", // as far from "rm" as two letters can be
		"sandbx":       "did you mean `dsec sandbox`?",
		"sb creat":     "did you mean `dsec sandbox create`?",
		"config bogus": "see `dsec config --help`",
	} {
		stdout, stderr, code := f.dsec("", strings.Fields(typed)...)
		if want := "\nhint: " + hint + "\n"; stdout != "" || code != 125 || !strings.HasPrefix(stderr, "dsec: there is no command `dsec ") || !strings.HasSuffix(stderr, want) {
			t.Errorf("dsec %s = %q, %q, %d, want %q", typed, stdout, stderr, code, want)
		}
	}
}

// TestGetShowsLifetimes: what ends a sandbox is seen before it does.
func TestGetShowsLifetimes(t *testing.T) {
	f := newFake(t)
	expires := time.Now().Add(time.Hour + 30*time.Minute)
	f.list = []api.Sandbox{{ID: "sa", State: api.StateRunning, Spec: api.Spec{TTL: api.TTL{IdleS: new(int64(90))}}, ExpiresAt: &expires}}
	stdout, _, code := f.dsec("", "sandbox", "get", "sa")
	if code != 0 || !strings.Contains(stdout, "Max idle:") || !strings.Contains(stdout, "1m30s\n") || !strings.Contains(stdout, "Expires:") || !strings.Contains(stdout, "(in 1h") {
		t.Errorf("get = %q, %d", stdout, code)
	}
	f.list[0].EndedAt = &expires
	if stdout, _, _ = f.dsec("", "sandbox", "get", "sa"); strings.Contains(stdout, "Expires:") {
		t.Errorf("get of one that has ended = %q", stdout)
	}
}

// TestUnknownFlags: whoever types nearly a flag, or one that container engines have, is told what to do.
func TestUnknownFlags(t *testing.T) {
	f := newFake(t)
	for typed, hint := range map[string]string{
		"run --memroy 1g busybox":            "did you mean `--memory`?",
		"run --cpus 2 busybox":               "did you mean `--cpu`?",
		"run -p 80:80 busybox":               "a port is reached later: dsec sandbox port-forward",
		"sandbox create --volume a:b busybx": "files are copied: dsec sandbox cp",
		"sandbox ls --lable a=b":             "did you mean `--label`?",
		"sandbox ls --volume a":              "see `dsec sandbox ls --help`",
		"sandbox ls -z":                      "see `dsec sandbox ls --help`",
		"sandbox ls --quite=1":               "did you mean `--quiet`?",
	} {
		stdout, stderr, code := f.dsec("", strings.Fields(typed)...)
		if want := "\nhint: " + hint + "\n"; stdout != "" || code != 125 || !strings.HasPrefix(stderr, "dsec: unknown ") || !strings.HasSuffix(stderr, want) {
			t.Errorf("dsec %s = %q, %q, %d, want %q", typed, stdout, stderr, code, want)
		}
	}
}

// TestEveryCommandExplainsItself: help with examples, one line that says what it's for.
func TestEveryCommandExplainsItself(t *testing.T) {
	a := &cli.App{}
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Short == "" || c.Example == "" || strings.HasSuffix(c.Short, ".") {
			t.Errorf("%s: short %q, example %q", c.CommandPath(), c.Short, c.Example)
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(root(a))
}
