package devmode

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
)

// TestConcurrentExecs: each command gets its own status and all of its output.
func TestConcurrentExecs(t *testing.T) {
	d := start(t, t.TempDir(), nil)
	box := d.create(`{"image":"busybox"}`)
	const workers, rounds = 16, 30
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range rounds {
				n := (w*rounds + i) % 256
				var res api.ExecResult
				status := d.call("POST", box+"/exec", fmt.Sprintf(`{"shell":"printf x%d; exit %d"}`, n, n), &res)
				if status != 200 || res.ExitCode == nil || *res.ExitCode != n || res.Stdout != fmt.Sprintf("x%d", n) {
					t.Errorf("exit %d = %d %+v", n, status, res)
				}
			}
		})
	}
	wg.Wait()
}

// TestBytes: 1 MiB of what isn't text comes back as it was, through stdin and stdout.
func TestBytes(t *testing.T) {
	d := start(t, t.TempDir(), nil)
	box := d.create(`{"image":"busybox"}`)
	want := make([]byte, 1<<20)
	for i := range want {
		want[i] = byte(i * i >> 3)
	}
	var res api.ExecResult
	body := `{"argv":["cat"],"stdin_b64":"` + base64.StdEncoding.EncodeToString(want) + `"}`
	if status := d.call("POST", box+"/exec", body, &res); status != 200 || res.StdoutEncoding != api.EncodingBase64 {
		t.Fatalf("exec = %d %s", status, res.StdoutEncoding)
	}
	if got, err := base64.StdEncoding.DecodeString(res.Stdout); err != nil || !bytes.Equal(got, want) || res.Truncated {
		t.Errorf("%d bytes came back, %v, truncated %v", len(got), err, res.Truncated)
	}
}

// TestLeavingCancels: when the client of an exec goes, so does the command's whole tree.
func TestLeavingCancels(t *testing.T) {
	d := start(t, t.TempDir(), nil)
	box := d.create(`{"image":"busybox"}`)
	ctx, cancel := context.WithCancelCause(t.Context())
	req, err := http.NewRequestWithContext(ctx, "POST", d.file.Endpoint+box+"/exec", strings.NewReader(`{"shell":"sleep 4321 & sleep 4321"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+d.file.Token)
	failed := make(chan error, 1)
	go func() {
		resp, err := http.DefaultClient.Do(req)
		if err == nil {
			resp.Body.Close()
		}
		failed <- err
	}()
	sleepers := func() string {
		var res api.ExecResult
		d.call("POST", box+"/exec", `{"shell":"grep -l '^sleep' /proc/[0-9]*/comm | wc -l"}`, &res)
		return strings.TrimSpace(res.Stdout)
	}
	until(t, "both run", func() bool { return sleepers() == "2" })
	cancel(errors.New("client leaves"))
	if <-failed == nil {
		t.Error("the request was answered")
	}
	until(t, "both are gone", func() bool { return sleepers() == "0" })
}

func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(time.Minute)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%s: not within 10 s", what)
		}
	}
}
