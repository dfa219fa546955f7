package cases

import (
	"strings"
	"testing"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

func TestCase23LongArguments(t *testing.T) {
	t.Parallel()
	n := testbed.Shared(t)
	sb := n.Create(t, api.Spec{Resources: api.Resources{MemoryMB: new(int64(1024))}})
	const limit = 128<<10 - 1 // of Linux, for one string

	t.Run("script", func(t *testing.T) {
		const line = "n=$((n+1))\n"
		lines := 1<<20/len(line) + 1
		script := strings.Repeat(line, lines) + `echo "$n $# $0"; read x; echo "read $?"; exit 9`
		want := "95326 0 /bin/sh\nread 1\n"
		r := testbed.Shell(t, sb, script)
		if !exitsWith(r.ExitStatus, 9) || string(r.Stdout) != want || len(r.Stderr) > 0 {
			t.Errorf("%+v, stdout %q, stderr %.300q; want 9, %q", r.ExitStatus, r.Stdout, r.Stderr, want)
		}
		res, problem := postExec(t, n, sb.ID(), api.ExecRequest{Shell: script})
		if problem != nil || !exitsWith(res.ExitStatus, 9) || res.Stdout != want {
			t.Errorf("by REST: %+v, %+v", res, problem)
		}
	})
	t.Run("longest-argument", func(t *testing.T) {
		word := strings.Repeat("x", limit)
		r, err := sb.Exec(t.Context(), libdsec.Cmd{Argv: []string{"printf", "%s", word}})
		if err != nil || !exitsWith(r.ExitStatus, 0) || string(r.Stdout) != word {
			t.Errorf("%d bytes of argument: %+v, %v", limit, r, err)
		}
		// The longest scripts of either way to hand them over.
		for _, size := range []int{limit, limit + 1} {
			script := "echo end"
			script = ": " + strings.Repeat("y", size-len(script)-3) + "\n" + script
			if got := testbed.Output(t, sb, script); got != "end" {
				t.Errorf("script of %d bytes printed %q", len(script), got)
			}
		}
	})
	many := []string{"echo"}
	for range 40 {
		many = append(many, strings.Repeat("m", 64<<10))
	}
	for name, cmd := range map[string]libdsec.Cmd{
		"argument":       {Argv: []string{"echo", strings.Repeat("x", limit+1)}},
		"all-arguments":  {Argv: many},
		"variable":       {Argv: []string{"env"}, Env: map[string]string{"LONG": strings.Repeat("x", limit)}},
		"script-64-mib":  {Shell: "exit 3 #" + strings.Repeat("x", 64<<20)},
		"program-64-mib": {Argv: []string{strings.Repeat("x", 64<<20)}},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := sb.Exec(t.Context(), cmd)
			if e := wantRefused(t, err, api.CodeTooLarge); !strings.ContainsAny(e.Detail, "0123456789") {
				t.Errorf("%+v; error %q names no size", r, e.Detail)
			}
			_, err = sb.Start(t.Context(), cmd, libdsec.StartOptions{})
			wantRefused(t, err, api.CodeTooLarge)
			_, problem := postExec(t, n, sb.ID(), api.ExecRequest{Argv: cmd.Argv, Shell: cmd.Shell, Env: cmd.Env})
			if problem == nil || problem.Code != api.CodeTooLarge || problem.HTTP != 413 {
				t.Errorf("by REST: %+v", problem)
			}
		})
	}
	t.Run("upload", func(t *testing.T) {
		text := strings.Repeat("0123456789abcde\n", 1<<16) // 1 MiB
		put(t, sb.Files(), "/up/load", text)
		wantContent(t, sb.Files(), "/up/load", text)
		if got := testbed.Output(t, sb, "wc -c < /up/load"); got != "1048576" {
			t.Errorf("%s bytes", got)
		}
	})
	if got := testbed.Output(t, sb, "echo goes on"); got != "goes on" {
		t.Errorf("after all that: %q", got)
	}
}
