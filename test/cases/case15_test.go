package cases

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

func TestCase15MultiByteAndInvalidUTF8(t *testing.T) {
	t.Parallel()
	n := testbed.Shared(t)
	sb := n.Create(t, api.Spec{})
	const emoji = "\U0001F600"
	// Each byte of the character alone, in writes that are far enough apart to be read alone.
	const slowly = `for b in '\360' '\237' '\230' '\200'; do printf "$b"; sleep 0.1; done`

	t.Run("random-bytes", func(t *testing.T) {
		t.Parallel()
		const script = "head -c 1048576 /dev/urandom | tee r1"
		r := run(t, sb, hang, libdsec.Cmd{Shell: script, MaxOutput: 2 << 20})
		same(t, sb, "r1", r.Stdout)
		res := execREST(t, n, sb, api.ExecRequest{Shell: "cat r1"})
		raw, err := base64.StdEncoding.DecodeString(res.Stdout)
		if err != nil || res.StdoutEncoding != api.EncodingBase64 || !bytes.Equal(raw, r.Stdout) {
			t.Errorf("over HTTP: %d bytes, %s, %v", len(raw), res.StdoutEncoding, err)
		}
		out, _, err := started(t, sb, libdsec.Cmd{Argv: []string{"cat", "r1"}}, libdsec.StartOptions{Lossless: true})
		if err != nil || out != string(r.Stdout) {
			t.Errorf("started: %d bytes differ, %v", len(out), err)
		}
	})
	t.Run("character-byte-by-byte", func(t *testing.T) {
		t.Parallel()
		if r := run(t, sb, hang, libdsec.Cmd{Shell: slowly}); string(r.Stdout) != emoji {
			t.Errorf("exec: %q, want %q", r.Stdout, emoji)
		}
		res := execREST(t, n, sb, api.ExecRequest{Shell: slowly})
		if res.Stdout != emoji || res.StdoutEncoding != api.EncodingUTF8 {
			t.Errorf("over HTTP: %q as %s, want %q", res.Stdout, res.StdoutEncoding, emoji)
		}
		var pieces int
		for try := 0; try < 10 && pieces == 0; try++ { // a busy machine may read all of it at once
			var whole strings.Builder
			p, err := sb.Start(within(t, hang), libdsec.Cmd{Shell: slowly}, libdsec.StartOptions{Handlers: libdsec.Handlers{
				OnStdout: func(b []byte) error {
					whole.Write(b)
					if !utf8.Valid(b) {
						pieces++
					}
					return nil
				},
			}})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := p.Wait(t.Context()); err != nil || whole.String() != emoji {
				t.Errorf("streamed: %q, %v", whole.String(), err)
			}
		}
		if pieces == 0 {
			t.Error("the character wasn't split, so nothing was tested")
		}
	})
	t.Run("nul-and-invalid-bytes", func(t *testing.T) {
		t.Parallel()
		const script, want = `printf 'a\000b\377\376\355\240\200\000'`, "a\x00b\xff\xfe\xed\xa0\x80\x00"
		if r := run(t, sb, hang, libdsec.Cmd{Shell: script}); string(r.Stdout) != want {
			t.Errorf("exec: %q, want %q", r.Stdout, want)
		}
		res := execREST(t, n, sb, api.ExecRequest{Shell: script + "; printf 'c\\000' >&2"})
		raw, err := base64.StdEncoding.DecodeString(res.Stdout)
		if err != nil || string(raw) != want || res.StdoutEncoding != api.EncodingBase64 {
			t.Errorf("over HTTP: %q as %s, %v", raw, res.StdoutEncoding, err)
		}
		if res.Stderr != "c\x00" || res.StderrEncoding != api.EncodingUTF8 {
			t.Errorf("stderr over HTTP: %q as %s", res.Stderr, res.StderrEncoding)
		}
	})
}

// same compares bytes with a file in the sandbox, by the sandbox's own account.
func same(t *testing.T, sb *libdsec.Sandbox, file string, b []byte) {
	t.Helper()
	sum := sha256.Sum256(b)
	if got := testbed.Output(t, sb, "sha256sum "+file); !strings.HasPrefix(got, hex.EncodeToString(sum[:])) {
		t.Errorf("%d bytes have another hash than %s: %s", len(b), file, got)
	}
}
