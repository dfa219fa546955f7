package apiserver

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/dsec-io/dsec/internal/aether"
)

// BenchmarkExec is the whole way over HTTP to an edge that answers at once: what this package and the protocol cost.
func BenchmarkExec(b *testing.B) {
	r := newRig(b)
	b.ReportAllocs()
	for b.Loop() {
		req, err := http.NewRequestWithContext(b.Context(), "POST", r.url+box+"/exec", strings.NewReader(`{"argv":["exit"]}`))
		if err != nil {
			b.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+r.token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			b.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if resp.StatusCode != 200 {
			b.Fatal(resp.Status)
		}
	}
}

// BenchmarkExecAether is the same over an upgraded connection, which a client keeps.
func BenchmarkExecAether(b *testing.B) {
	r := newRig(b)
	conn := r.upgrade()
	m := aether.ExecStart{Argv: [][]byte{[]byte("exit")}}
	body := m.AppendTo(nil)
	b.ReportAllocs()
	for b.Loop() {
		st, err := conn.Open(b.Context(), aether.Open{Method: "exec", Sandbox: ourBox, Body: body})
		if err != nil {
			b.Fatal(err)
		}
		for {
			f, err := st.Recv(b.Context())
			if err != nil {
				break
			}
			f.Release()
		}
		_ = st.Close()
	}
}

// BenchmarkHealth is what HTTP alone costs.
func BenchmarkHealth(b *testing.B) {
	r := newRig(b)
	b.ReportAllocs()
	for b.Loop() {
		if resp := r.do(request{method: "GET", path: "/healthz"}); resp.status != 200 {
			b.Fatal(resp.status)
		}
	}
}
