package libdsec_test

import (
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/dsec-io/dsec/libdsec"
)

// TestEndedCommandsArentLeft: the server counts a command whose end was told as done, not as one that its client left.
func TestEndedCommandsArentLeft(t *testing.T) {
	f := realServer(t)
	sb := realSandbox(t, f.Endpoint, f.Token)
	ctx := testContext(t)
	for range 20 {
		if res, err := sb.Exec(ctx, libdsec.Cmd{Argv: []string{"true"}}); err != nil || *res.ExitCode != 0 {
			t.Fatalf("%+v, %v", res, err)
		}
		res, err := sb.Exec(ctx, libdsec.Cmd{Argv: []string{"cat"}, Stdin: strings.NewReader("in")})
		if err != nil || string(res.Stdout) != "in" {
			t.Fatalf("%+v, %v", res, err)
		}
		p, err := sb.Start(ctx, libdsec.Cmd{Argv: []string{"true"}}, libdsec.StartOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Wait(ctx); err != nil {
			t.Fatal(err)
		}
	}
	resp, err := http.Get(f.Endpoint + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	counted := regexp.MustCompile(`(?m)^dsec_execs_total\{.*$`).FindAllString(string(text), -1)
	if all := strings.Join(counted, "\n"); strings.Contains(all, "client_left") || !strings.Contains(all, `result="ok"`) {
		t.Errorf("20 each of commands, commands with input and processes ended, and the server counted:\n%s", all)
	}
}
