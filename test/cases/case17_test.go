package cases

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

// readerEnv makes the test below the program that reads: "ENDPOINT TOKEN SANDBOX BYTES".
const readerEnv = "DSEC_CASE17_READER"

// pieceSize is how much is written before the bytes are the same again.
const pieceSize = 8 << 20

// TestCase17StreamingTakesConstantMemory streams 1 GiB, in a long run 4 GiB, through a program with 256 MiB.
func TestCase17StreamingTakesConstantMemory(t *testing.T) {
	if work := os.Getenv(readerEnv); work != "" {
		readStream(t, strings.Fields(work))
		return
	}
	t.Parallel()
	n := testbed.Shared(t)
	sb := n.Create(t, api.Spec{Resources: api.Resources{CPU: new(2.0)}})
	size := int64(sized(1, 4)) << 30
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), "GOMEMLIMIT=200MiB", fmt.Sprintf("%s=%s %s %s %d", readerEnv, n.Endpoint, n.Token, sb.ID(), size))
	out, err := cmd.CombinedOutput()
	t.Logf("the reader says:\n%s", out)
	if err != nil || !bytes.Contains(out, []byte("--- PASS")) {
		t.Fatalf("the reader failed: %v", err)
	}
}

func readStream(t *testing.T, work []string) {
	size, err := strconv.ParseInt(work[3], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	client, err := libdsec.New(libdsec.WithEndpoint(work[0], work[1]))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ring := bytes.NewBuffer(nil)
	random := rand.NewChaCha8([32]byte{17})
	if _, err := io.CopyN(ring, random, pieceSize); err != nil {
		t.Fatal(err)
	}
	var total, next int64
	self := hostProcess(os.Getpid())
	take := func(b []byte) error {
		for len(b) > 0 {
			from := int(total % pieceSize)
			k := min(len(b), pieceSize-from)
			if !bytes.Equal(b[:k], ring.Bytes()[from:from+k]) {
				return fmt.Errorf("other bytes than were written in the %d from %d on", k, total)
			}
			total += int64(k)
			b = b[k:]
		}
		if total < next {
			return nil
		}
		next = total + 16<<20
		if peak := self.memory(t, "VmHWM"); peak >= 256<<20 {
			return fmt.Errorf("memory is %d MiB after %d MiB were read, want less than 256", peak>>20, total>>20)
		}
		return nil
	}
	sb := client.Sandbox(work[2])
	if r, err := sb.Exec(t.Context(), libdsec.Cmd{Argv: []string{"tee", "/piece"}, Stdin: bytes.NewReader(ring.Bytes())}); err != nil || !exitsWith(r.ExitStatus, 0) {
		t.Fatalf("tee: %+v, %v", r, err)
	}
	p, err := sb.Start(t.Context(), libdsec.Cmd{
		Shell: fmt.Sprintf("i=0; while [ $i -lt %d ]; do cat /piece; i=$((i+1)); done", size/pieceSize),
	}, libdsec.StartOptions{Lossless: true, Handlers: libdsec.Handlers{OnStdout: take}})
	if err != nil {
		t.Fatal(err)
	}
	st, err := p.Wait(t.Context())
	if err != nil || !exitsWith(st, 0) || st.Truncated {
		t.Fatalf("Wait() = %+v, %v", st, err)
	}
	if total != size || st.StdoutTotal != size || len(p.Gaps()) > 0 {
		t.Errorf("%d bytes came and %d were reported, with gaps %v; want %d and none", total, st.StdoutTotal, p.Gaps(), size)
	}
	t.Logf("%d bytes, memory at most %d MiB", total, self.memory(t, "VmHWM")>>20)
}
