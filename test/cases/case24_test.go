package cases

import (
	"bytes"
	"crypto/rand"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

// environment runs `env -0` and returns what it prints as a map.
func environment(t *testing.T, sb *libdsec.Sandbox, cmd libdsec.Cmd) map[string]string {
	t.Helper()
	if cmd.Session == "" {
		cmd.Argv = []string{"env", "-0"}
	} else {
		cmd.Shell = "env -0"
	}
	r, err := sb.Exec(t.Context(), cmd)
	if err != nil || !exitsWith(r.ExitStatus, 0) || len(r.Stderr) > 0 {
		t.Fatalf("env -0: %+v, %v", r, err)
	}
	all := make(map[string]string)
	for entry := range strings.SplitSeq(strings.TrimSuffix(string(r.Stdout), "\x00"), "\x00") {
		name, value, ok := strings.Cut(entry, "=")
		if _, twice := all[name]; !ok || twice {
			t.Errorf("entry %q has no name, or one that was there before", entry)
		}
		all[name] = value
	}
	return all
}

func wantVariables(t *testing.T, got, want map[string]string) {
	t.Helper()
	for name, value := range want {
		if v, ok := got[name]; !ok || v != value {
			t.Errorf("%s = %q (set: %v), want %q", name, v, ok, value)
		}
	}
}

func TestCase24EnvironmentIsExactAndHidden(t *testing.T) {
	t.Parallel()
	secret := "mark" + rand.Text() // in no file and no command line of this machine
	hard := map[string]string{
		"JSON":     `{"key":"a \"quoted\" value","list":[1,2],"secret":"` + secret + `"}`,
		"NEWLINES": "\nfirst " + secret + "\r\n\tsecond\n\n",
		"SHELL_IN": "$(touch /" + secret + ") `id` ${HOME} $HOME \\ ' \" ; & | > # !",
		"UTF8":     "项目 é 😀\u202e\ufeff" + secret,
		"EMPTY":    "",
		"EQUALS":   "=a=b==",
		"SPACES":   "   ",
		"CONTROL":  "\x01\x1b[31m\x7f",
		"a.b-c d":  "a name that isn't a shell's",
	}
	n := testbed.Shared(t)
	sb := n.Create(t, api.Spec{Env: hard})
	wantVariables(t, environment(t, sb, libdsec.Cmd{}), hard)

	own := map[string]string{"UTF8": "of the command alone", "BYTES": "\xff\xfe" + secret + "\x80"}
	want := maps.Clone(hard)
	maps.Copy(want, own)
	wantVariables(t, environment(t, sb, libdsec.Cmd{Env: own}), want)

	// While commands with the secret run, in each way that there is, nobody's command line has it.
	session, err := sb.NewSession(t.Context(), api.Session{})
	if err != nil {
		t.Fatal(err)
	}
	delete(want, "BYTES")
	delete(want, "a.b-c d") // a session is a shell, which keeps what it can name
	wantVariables(t, environment(t, sb, libdsec.Cmd{Session: session.ID, Env: map[string]string{"UTF8": own["UTF8"]}}), want)
	for _, o := range []libdsec.StartOptions{{}, {TTY: &api.Size{Rows: 24, Cols: 80}}} {
		if _, err := sb.Start(t.Context(), libdsec.Cmd{Shell: "sleep 1000; exit", Env: own}, o); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := sb.Start(t.Context(), libdsec.Cmd{Shell: "sleep 1000; exit", Session: session.ID, Env: map[string]string{"S": secret}}, libdsec.StartOptions{}); err != nil {
		t.Fatal(err)
	}
	testbed.Until(t, time.Minute, "three sleepers", func() bool { return len(strings.Fields(testbed.Output(t, sb, "pidof sleep || true"))) == 3 })
	inside := testbed.Output(t, sb, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
	if strings.Contains(inside, secret) || !strings.Contains(inside, "sleep 1000") {
		t.Errorf("inside, the command lines are %q", inside)
	}
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil || len(lines) == 0 {
		t.Fatalf("%d command lines, %v", len(lines), err)
	}
	for _, path := range lines {
		if raw, err := os.ReadFile(path); err == nil && bytes.Contains(raw, []byte(secret)) {
			t.Errorf("the secret is in %s: %.200q", path, raw)
		}
	}
	if got := testbed.Output(t, sb, "ls /"); strings.Contains(got, secret) {
		t.Errorf("a value was run as a script: %s", got)
	}
}

func TestCase24ReplaceMeansReplace(t *testing.T) {
	t.Parallel()
	sb := testbed.Shared(t).Create(t, api.Spec{Env: map[string]string{"KEPT": "1", "REMOVED": "1", "CHANGED": "1"}})
	before := environment(t, sb, libdsec.Cmd{})
	wantVariables(t, before, map[string]string{"KEPT": "1", "REMOVED": "1", "CHANGED": "1"})
	view, err := sb.Patch(t.Context(), api.Patch{Env: &map[string]string{"KEPT": "1", "CHANGED": "2"}})
	if err != nil {
		t.Fatal(err)
	}
	delete(before, "REMOVED")
	before["CHANGED"] = "2"
	session, err := sb.NewSession(t.Context(), api.Session{})
	if err != nil {
		t.Fatal(err)
	}
	for name, cmd := range map[string]libdsec.Cmd{"command": {}, "session": {Session: session.ID}} {
		after := environment(t, sb, cmd)
		wantVariables(t, after, map[string]string{"KEPT": "1", "CHANGED": "2"})
		if v, ok := after["REMOVED"]; ok {
			t.Errorf("%s: REMOVED is still there: %q", name, v)
		}
		if name == "command" && !maps.Equal(after, before) {
			t.Errorf("%s: %v, want %v", name, after, before)
		}
	}
	if _, ok := view.Spec.Env["REMOVED"]; ok || len(view.Spec.Env) != 2 {
		t.Errorf("the spec shows %v", view.Spec.Env)
	}
	if _, err := sb.Patch(t.Context(), api.Patch{Env: &map[string]string{}}); err != nil {
		t.Fatal(err)
	}
	if after := environment(t, sb, libdsec.Cmd{}); after["KEPT"] != "" || after["CHANGED"] != "" || after["PATH"] == "" {
		t.Errorf("after all were removed: %v", after)
	}
}
