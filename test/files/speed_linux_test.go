package files

import (
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/test/testbed"
)

// TestTransferFlat uploads and downloads 1 GiB by plain HTTP: the content is right and no process grows with it. The speed is
// told and not demanded: that is the benchmarks' part.
func TestTransferFlat(t *testing.T) {
	n := testbed.Start(t, testbed.Options{})
	sb := n.Create(t, api.Spec{})
	put(t, sb.Files(), "/warm", strings.Repeat("x", 4<<20))
	wantContent(t, sb.Files(), "/warm", strings.Repeat("x", 4<<20))
	pids := append(shards(t, n), n.PID())
	var before []int64
	for _, pid := range pids {
		before = append(before, peak(t, pid))
	}
	const size = 1 << 30
	q := url.Values{"path": {"/big"}}
	req := faced{n, sb.ID()}.request(t, http.MethodPut, q, io.LimitReader(filler{}, size))
	req.ContentLength = size
	start := time.Now()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("status %d", resp.StatusCode)
	}
	up := time.Since(start)
	start = time.Now()
	resp, err = http.DefaultClient.Do(faced{n, sb.ID()}.request(t, http.MethodGet, q, nil))
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	if err != nil || got != size {
		t.Fatalf("%d bytes came back, %v", got, err)
	}
	down := time.Since(start)
	const room = 16 << 20
	for i, pid := range pids {
		if after := peak(t, pid); after > before[i]+room {
			t.Errorf("process %d (%s) grew from %d to %d KiB", pid, name(pid), before[i]>>10, after>>10)
		} else {
			t.Logf("%s: %d KiB, then %d KiB", name(pid), before[i]>>10, after>>10)
		}
	}
	sum := sha256.New()
	if _, err := io.CopyN(sum, filler{}, size); err != nil {
		t.Fatal(err)
	}
	if digest, err := sb.Files().Digest(t.Context(), "/big"); err != nil || digest != fmt.Sprintf("%x", sum.Sum(nil)) {
		t.Errorf("the content is another: %s, %v", digest, err)
	}
	t.Logf("up %.0f MB/s, down %.0f MB/s", size/1e6/up.Seconds(), size/1e6/down.Seconds())
}

// peak is the most memory that a process has had, in bytes.
func peak(t testing.TB, pid int) int64 {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(raw), "VmHWM:")
	var kib int64
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		t.Fatal(err)
	}
	return kib << 10
}

func name(pid int) string {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return "gone"
	}
	return strings.TrimSpace(string(raw))
}
