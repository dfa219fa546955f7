package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
)

// TestRealListsAndStops: filters, ids alone, several at once.
func TestRealListsAndStops(t *testing.T) {
	bed := newCopyBed(t)
	create := func(label string) string {
		t.Helper()
		return strings.TrimSpace(bed.ok("", "sandbox", "create", "-l", label, "busybox"))
	}
	a, b, c := create("team=red"), create("team=red"), create("team=blue")
	if got := bed.ok("", "sb", "ls", "-q", "-l", "team=red"); got != b+"\n"+a+"\n" {
		t.Errorf("ls -q -l team=red = %q, want %s and %s", got, b, a)
	}
	for args, want := range map[string]string{
		"sb ls -q -o json":               "none of the others can be",
		"sb ls --state odd":              `no state "odd"`,
		"sb stop":                        "name sandboxes, or say --label or --all",
		"sb stop --all " + a:             "names, --label and --all don't go together",
		"sb stop -l team":                "isn't KEY=VALUE",
		"sb logs " + a:                   "no start process",
		"sb logs --tail -1 " + a:         "-1 is negative",
		"top --sort colour":              "can't sort by",
		"top --interval never":           "isn't a time above 0",
		"sb stats --follow snotasandbox": "dsec: ",
	} {
		if _, stderr, code := dsec(t, bed.env, "", strings.Fields(args)...); code != 125 || !strings.Contains(stderr, want) {
			t.Errorf("dsec %s = %q, %d, want %q", args, stderr, code, want)
		}
	}
	if got := bed.ok("", "sb", "stop", "-l", "team=red"); got != b+"\n"+a+"\n" {
		t.Errorf("stop -l = %q", got)
	}
	out, stderr, code := dsec(t, bed.env, "", "sb", "stop", c, "snotasandbox", bed.id)
	if out != c+"\n"+bed.id+"\n" || code != 125 || !strings.Contains(stderr, "stop snotasandbox") {
		t.Errorf("stop of some = %q, %q, %d", out, stderr, code)
	}
	if got := bed.ok("", "sb", "ls", "-q"); got != "" {
		t.Errorf("%q live on", got)
	}
	// What run leaves is named, and nowhere in the command's output.
	out, stderr, code = dsec(t, bed.env, "", "run", "--keep", "busybox", "echo", "hi")
	if kept := strings.TrimSpace(bed.ok("", "sb", "ls", "-q")); out != "hi\n" || code != 0 || kept == "" || !strings.Contains(stderr, "sandbox "+kept+" goes on") {
		t.Errorf("run --keep = %q, %q, %d; %q lives", out, stderr, code, kept)
	}
	bed.ok("", "sb", "stop", "--all")
	if got := bed.ok("", "sb", "ls", "-q", "--state", "stopped"); strings.Count(got, "\n") != 5 {
		t.Errorf("stopped: %q, want five", got)
	}
}

// TestRealLogs: the last lines of each output, and what comes after them exactly once.
func TestRealLogs(t *testing.T) {
	bed := newCopyBed(t)
	script := "for i in $(seq 1000); do echo out$i; done; echo err >&2; echo -n part; until [ -e /tmp/go ]; do sleep 0.05; done; echo ial; echo more >&2"
	id := strings.TrimSpace(bed.ok("", "sandbox", "create", "busybox", "--", "sh", "-c", script))
	complete := func() bool { return strings.HasSuffix(bed.ok("", "sb", "logs", id), "out1000\npart") }
	for deadline := time.Now().Add(time.Minute); !complete(); {
		if time.Now().After(deadline) {
			t.Fatal("the start process writes nothing")
		}
	}
	for args, want := range map[string][2]string{
		"--tail 2":         {"out1000\npart", "err\n"},
		"--tail 0":         {"", ""},
		"-n 1":             {"part", "err\n"},
		"--since 99999999": {"", "err\n"},
	} {
		out, stderr, code := dsec(t, bed.env, "", append([]string{"sb", "logs", id}, strings.Fields(args)...)...)
		if code != 0 || out != want[0] || stderr != want[1] {
			t.Errorf("logs %s = %q, %q, %d, want %q", args, out, stderr, code, want)
		}
	}
	all := bed.ok("", "sb", "logs", id)
	if out := bed.ok("", "sb", "logs", "--since", fmt.Sprint(len(all)-6), id); out != "0\npart" {
		t.Errorf("the last six bytes are %q", out)
	}
	var stdout, stderr string
	done := make(chan int, 1)
	go func() {
		var code int
		stdout, stderr, code = dsec(t, bed.env, "", "sb", "logs", "-f", "--tail", "1", id)
		done <- code
	}()
	bed.inside("true") // the follower's turn comes before or after; both ways it sees all
	bed.ok("", "sb", "exec", id, "--", "touch", "/tmp/go")
	if code := <-done; code != 0 || stdout != "partial\n" || stderr != "err\nmore\n" {
		t.Errorf("logs -f --tail 1 = %q, %q, %d", stdout, stderr, code)
	}
}

// TestRealUsage: who works most is first.
func TestRealUsage(t *testing.T) {
	bed := newCopyBed(t)
	busy := strings.TrimSpace(bed.ok("", "sandbox", "create", "busybox", "--", "sh", "-c", "while :; do :; done"))
	var list []struct {
		ID     string
		Cores  float64
		Memory int64 `json:"memory_bytes"`
		PIDs   int64
	}
	for try := 0; try < 10 && (try == 0 || list[0].Cores == 0); try++ { // a busy machine may give it nothing for so long
		if err := json.Unmarshal([]byte(bed.ok("", "top", "-o", "json", "--interval", "500ms")), &list); err != nil || len(list) == 0 {
			t.Fatal(list, err)
		}
	}
	if len(list) != 2 || list[0].ID != busy || list[0].Cores <= list[1].Cores || list[0].Memory <= 0 || list[0].PIDs < 1 {
		t.Errorf("top = %+v, want %s first", list, busy)
	}
	if got := bed.ok("", "top", "-n", "1", "--interval", "10ms"); !strings.HasPrefix(got, "ID") || !strings.HasSuffix(got, "\n1 of 2\n") {
		t.Errorf("top = %q", got)
	}
	if got := bed.ok("", "top", "-o", "name", "--interval", "1s"); got != busy+"\n"+bed.id+"\n" {
		t.Errorf("top -o name = %q", got)
	}
	// Figures that are followed come as they are taken, until the sandbox ends.
	cmd := program(t, bed.env, "sandbox", "stats", "--follow", "-o", "json", busy)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(out)
	var before float64
	for range 2 {
		var m struct {
			CPU float64 `json:"cpu_ns"`
		}
		if err := d.Decode(&m); err != nil || m.CPU <= before {
			t.Errorf("stats --follow: cpu_ns %v after %v, %v", m.CPU, before, err)
		}
		before = m.CPU
	}
	bed.ok("", "sb", "stop", busy)
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 125 {
		t.Errorf("stats --follow of a stopped sandbox ends with %v", err)
	}
}

// TestRealCompletion: what is offered is what there is.
func TestRealCompletion(t *testing.T) {
	bed := newCopyBed(t)
	process := strings.TrimSpace(func() string {
		cmd := program(t, bed.env, "sb", "exec", bed.id, "--", "sleep", "1000")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Wait() }) // it was killed with its sandbox
		for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
			if ps := bed.ok("", "sb", "ps", "-o", "name", bed.id); ps != "" {
				return ps
			}
		}
		t.Fatal("no process is listed")
		return ""
	}())
	dir := t.TempDir()
	bed.ok("", "config", "create", "lab", "--endpoint", "http://127.0.0.1:9", "--token", "t")
	for line, want := range map[string]string{
		"sandbox get ":                   bed.id + "\tbusybox running",
		"sandbox exec ":                  bed.id + "\tbusybox running",
		"sandbox stop other ":            bed.id + "\tbusybox running",
		"sandbox attach " + bed.id + " ": process + "\tsleep 1000",
		"sandbox cp " + dir + " ":        bed.id + ":\tbusybox running",
		"sandbox cp " + bed.id[:5]:       bed.id + ":\tbusybox running",
		"run ":                           "busybox\t",
		"run -m 1g ":                     "busybox\t",
		"image inspect ":                 "busybox\t",
		"config rm ":                     "lab",
		"--context ":                     "lab",
		"sandbox ls --state ":            "paused",
		"sandbox ls -o ":                 "yaml",
		"dev --log-level ":               "debug",
		"top --sort ":                    "memory",
		"help sandbox ":                  "exec\tRun a command in a sandbox",
		"completion ":                    "fish",
		"sandbox lo":                     "logs\tPrint the output of a sandbox's start process",
	} {
		words := strings.Split(line, " ")
		out, stderr, code := dsec(t, bed.env, "", append([]string{"__complete"}, words...)...)
		if code != 0 || !slices.ContainsFunc(strings.Split(out, "\n"), func(l string) bool { return strings.HasPrefix(l, want) }) {
			t.Errorf("%q completes %q, %q, %d, want %q", line, out, stderr, code, want)
		}
	}
	// Files are offered where there is one to name, and nowhere else (4: none).
	for line, want := range map[string]string{
		"run --env-file ": ":0", "image import x ": ":0", "dev --data ": ":16", "run -m ": ":4", "sandbox ls ": ":4", "config create ": ":4", "sandbox cp /etc/host": ":0",
	} {
		out, _, _ := dsec(t, bed.env, "", append([]string{"__complete"}, strings.Split(line, " ")...)...)
		if strings.TrimSpace(out) != want {
			t.Errorf("%q completes %q, want %s", line, out, want)
		}
	}
}

// TestContexts: made, chosen, forgotten; a token is never shown.
func TestContexts(t *testing.T) {
	env := []string{"HOME=" + t.TempDir()}
	for _, step := range []struct {
		args, stdin string
		code        int
		want        string
	}{
		{"config create lab", "", 125, "--endpoint is missing"},
		{"config create lab --endpoint http://h:1", "", 125, "a token is needed"},
		{"config create lab --endpoint http://h:1 --token-stdin", "", 125, "there is no token on stdin"},
		{"config create lab --endpoint http://h:1 --token-stdin", "two words", 125, "there is no token on stdin"},
		{"config create lab --endpoint ftp://h:1 --token t", "", 125, "dsec: "},
		{"config create ../lab --endpoint http://h:1 --token t", "", 125, "invalid context name"},
		{"config create lab --endpoint http://h:1 --token-stdin --use", "secret\n", 0, ""},
		{"config create lab --endpoint http://h:2 --token t", "", 125, `there is a context "lab"`},
		{"config create lab2 --endpoint http://h:2 --token t", "", 0, ""},
		{"config show", "", 0, "http://h:1"},
		{"config contexts", "", 0, "*         lab    http://h:1\n"},
		{"config create lab --replace --endpoint http://h:3 --token t", "", 0, ""},
		{"config show -o name", "", 0, "http://h:3\n"},
		{"config rm", "", 125, "CONTEXT is missing"},
		{"config rm nope", "", 125, `no context "nope"`},
		{"config rm lab", "", 0, "lab\n"},
		{"config show", "", 125, "no DSec server is configured"},
		{"config contexts -o name", "", 0, "lab2\n"},
	} {
		out, stderr, code := dsec(t, env, step.stdin, strings.Fields(step.args)...)
		if code != step.code || !strings.Contains(out+stderr, step.want) || strings.Contains(out+stderr, "secret") {
			t.Errorf("dsec %s = %q, %q, %d, want %q, %d", step.args, out, stderr, code, step.want, step.code)
		}
	}
	home := strings.TrimPrefix(env[0], "HOME=")
	st, err := os.Stat(filepath.Join(home, ".config/dsec/contexts/lab2.json"))
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the context's file: %v, %v", st, err)
	}
}

// TestHelp: of what isn't there, an error.
func TestHelp(t *testing.T) {
	env := []string{"HOME=" + t.TempDir()}
	for args, want := range map[string]struct {
		code int
		text string
	}{
		"help":                 {0, "Available Commands:"},
		"help sandbox exec":    {0, "dsec sandbox exec [flags] SANDBOX"},
		"help sb ls":           {0, "--quiet"},
		"sandbox ls --help":    {0, "Examples:\n  dsec sandbox ls"},
		"help bogus":           {125, "dsec: there is no command `dsec bogus`\nhint: see `dsec --help`\n"},
		"help sandbx":          {125, "hint: did you mean `dsec sandbox`?\n"},
		"help sandbox lss":     {125, "hint: did you mean `dsec sandbox ls`?\n"},
		"help run bogus":       {125, "there is no command `dsec run bogus`"},
		"help completion bash": {125, "there is no command `dsec completion bash`"},
	} {
		out, stderr, code := dsec(t, env, "", strings.Fields(args)...)
		if code != want.code || !strings.Contains(out+stderr, want.text) || (code == 0) != (stderr == "") || (code != 0) != (out == "") {
			t.Errorf("dsec %s = %q, %q, %d, want %q, %d", args, out, stderr, code, want.text, want.code)
		}
	}
}

// TestFilesWithoutEndAreRefused: whatever settings and flags name, nothing is read without limit.
func TestFilesWithoutEndAreRefused(t *testing.T) {
	home := t.TempDir()
	for args, env := range map[string]string{
		"sandbox ls":                              "DSEC_CONTEXT=/dev/zero",
		"run --env-file /dev/zero busybox":        "DSEC_TOKEN=t",
		"sandbox create --env-file /dev/zero img": "DSEC_TOKEN=t",
		"config use /dev/zero":                    "DSEC_TOKEN=t",
	} {
		if _, stderr, code := dsec(t, []string{"HOME=" + home, env}, "", strings.Fields(args)...); code != 125 || !strings.HasPrefix(stderr, "dsec: ") {
			t.Errorf("%s dsec %s = %q, %d", env, args, stderr, code)
		}
	}
	lines := filepath.Join(home, "lines")
	if err := os.WriteFile(lines, []byte(strings.Repeat("A=b\n", 300_000)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, stderr, code := dsec(t, []string{"HOME=" + home}, "", "run", "--env-file", lines, "busybox"); code != 125 || !strings.Contains(stderr, "larger than") {
		t.Errorf("a long file of variables: %q, %d", stderr, code)
	}
}

// TestWatch: a listing is made again until an interrupt ends it.
func TestWatch(t *testing.T) {
	f := newFake(t)
	f.list = []api.Sandbox{{ID: "s1", State: api.StateRunning}}
	cmd := program(t, f.env(), "sandbox", "ls", "--watch", "-q")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 6)
	for n := 0; n < len(buf); {
		m, err := out.Read(buf[n:])
		if err != nil {
			t.Fatal(err)
		}
		n += m
	}
	if string(buf) != strings.Repeat("s1\n", 2) {
		t.Errorf("ls --watch = %q", buf)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 130 {
		t.Errorf("ls --watch ends with %v", err)
	}
}
