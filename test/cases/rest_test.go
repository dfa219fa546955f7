package cases

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

// postExec runs a command by one plain HTTP request, which nobody repeats. A refusal is the second result.
func postExec(t testing.TB, n *testbed.Node, sandbox string, body api.ExecRequest) (*api.ExecResult, *api.Error) {
	t.Helper()
	raw, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, n.Endpoint+"/v1/sandboxes/"+sandbox+"/exec", bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+n.Token)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode == http.StatusOK {
		res := new(api.ExecResult)
		if err := json.Unmarshal(answer, res); err != nil {
			t.Fatalf("%v: %s", err, answer)
		}
		return res, nil
	}
	problem := new(api.Error)
	if err := json.Unmarshal(answer, problem); err != nil || problem.Code == "" || problem.HTTP != resp.StatusCode {
		t.Fatalf("status %d isn't told by a problem document: %v: %.500s", resp.StatusCode, err, answer)
	}
	return nil, problem
}

func readLines(t testing.TB, r io.Reader) []string {
	t.Helper()
	raw, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(string(raw), "\n")
}

// exitsWith tells whether a command ended by itself with this code and nothing of ours failed.
func exitsWith(s api.ExitStatus, code int) bool {
	return s.ExitCode != nil && *s.ExitCode == code && s.Signal == "" && s.InfraError == ""
}

// wantRefused demands that a command didn't start, for a reason with this code.
func wantRefused(t testing.TB, err error, code api.Code) *api.Error {
	t.Helper()
	if !libdsec.IsCode(err, code) {
		t.Errorf("error is %v, want one with code %s", err, code)
		return api.Errorf("", "none")
	}
	return api.AsError(err)
}

// transcript gathers a process's output as it comes.
type transcript struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (s *transcript) take(b []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.buf.Write(b)
	return nil
}

func (s *transcript) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.String()
}

func (s *transcript) has(text string) func() bool {
	return func() bool { return strings.Contains(s.String(), text) }
}
