package cases

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

func TestCase03LargeStdinIsLostBrokenPipeIsSilent(t *testing.T) {
	t.Parallel()
	n := testbed.Shared(t)
	sb := n.Create(t, api.Spec{})
	payload := make([]byte, 10<<20)
	_, _ = rand.NewChaCha8([32]byte{3}).Read(payload) // never fails
	sum := sha256.Sum256(payload)
	hash := hex.EncodeToString(sum[:])

	r := run(t, sb, hang, libdsec.Cmd{Argv: []string{"sha256sum"}, Stdin: bytes.NewReader(payload)})
	if !strings.HasPrefix(string(r.Stdout), hash) || !exited(r.ExitStatus, 0) || r.StdinClosedEarly {
		t.Errorf("sha256sum: %q, %+v; want %s, all input taken", r.Stdout, r.ExitStatus, hash)
	}
	r = run(t, sb, hang, libdsec.Cmd{Argv: []string{"head", "-c", "10"}, Stdin: bytes.NewReader(payload)})
	if !bytes.Equal(r.Stdout, payload[:10]) || !exited(r.ExitStatus, 0) || !r.StdinClosedEarly {
		t.Errorf("head: %q, %+v; want the first 10 bytes, exit 0, stdin closed early", r.Stdout, r.ExitStatus)
	}

	// A reader slower than the pipe, which fills; a command that closes stdin and goes on.
	r = run(t, sb, hang, libdsec.Cmd{Shell: "sleep 0.5; sha256sum", Stdin: bytes.NewReader(payload)})
	if !strings.HasPrefix(string(r.Stdout), hash) || r.StdinClosedEarly {
		t.Errorf("slow reader: %q, %+v", r.Stdout, r.ExitStatus)
	}
	r = run(t, sb, hang, libdsec.Cmd{Shell: "head -c 10 >/dev/null; exec <&-; sleep 0.5; echo on", Stdin: bytes.NewReader(payload)})
	if string(r.Stdout) != "on\n" || !exited(r.ExitStatus, 0) || !r.StdinClosedEarly {
		t.Errorf("closed while running: %q, %+v", r.Stdout, r.ExitStatus)
	}

	res := execREST(t, n, sb, api.ExecRequest{Argv: []string{"sha256sum"}, Stdin: payload})
	if !strings.HasPrefix(res.Stdout, hash) || res.StdinClosedEarly {
		t.Errorf("sha256sum over HTTP: %q, %+v", res.Stdout, res.ExitStatus)
	}
	res = execREST(t, n, sb, api.ExecRequest{Argv: []string{"head", "-c", "10"}, Stdin: payload})
	if !exited(res.ExitStatus, 0) || !res.StdinClosedEarly {
		t.Errorf("head over HTTP: %+v", res.ExitStatus)
	}
}
