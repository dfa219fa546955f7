package cases

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

func TestCase08OutputSoFarIsLostAtTimeout(t *testing.T) {
	t.Parallel()
	n := testbed.Shared(t)
	sb := n.Create(t, api.Spec{})
	const script = "rm -f /count; i=0; while :; do i=$((i+1)); echo line $i; echo error $i >&2; echo $i >>/count; sleep 0.1; done"
	check := func(way, stdout, stderr string, st api.ExitStatus) {
		t.Helper()
		// What it had come to is in a file: 20 lines on a machine that has nothing else to do, any number on another.
		count, err := strconv.Atoi(testbed.Output(t, sb, "wc -l </count"))
		lines := strings.Count(stdout, "\n")
		if err != nil || !st.TimedOut || lines < count || lines > count+1 || lines > 21 || !strings.HasPrefix(stdout, "line 1\n") {
			t.Errorf("%s: %d lines of %d (%v), %+v\n%s", way, lines, count, err, st, stdout)
		}
		if got := strings.Count(stderr, "\n"); got < lines-1 || got > lines+1 {
			t.Errorf("%s: %d lines on stderr, %d on stdout", way, got, lines)
		}
		if st.StdoutTotal != int64(len(stdout)) || st.StderrTotal != int64(len(stderr)) || st.Truncated {
			t.Errorf("%s: totals %d and %d of %d and %d bytes", way, st.StdoutTotal, st.StderrTotal, len(stdout), len(stderr))
		}
	}
	r := run(t, sb, hang, libdsec.Cmd{Shell: script, Timeout: 2 * time.Second})
	check("exec", string(r.Stdout), string(r.Stderr), r.ExitStatus)
	res := execREST(t, n, sb, api.ExecRequest{Shell: script, TimeoutMS: new(int64(2000))})
	check("http", res.Stdout, res.Stderr, res.ExitStatus)

	var stdout, stderr strings.Builder
	p, err := sb.Start(within(t, hang), libdsec.Cmd{Shell: script, Timeout: 2 * time.Second}, libdsec.StartOptions{Handlers: libdsec.Handlers{
		OnStdout: func(b []byte) error { stdout.Write(b); return nil },
		OnStderr: func(b []byte) error { stderr.Write(b); return nil },
	}})
	if err != nil {
		t.Fatal(err)
	}
	st, err := p.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	check("started", stdout.String(), stderr.String(), st)
}
