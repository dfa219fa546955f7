package edge

import (
	"bytes"
	"testing"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
)

// TestInputsUnderKeysHaveALimit: the inputs of commands with a key are collected before they run. What a project can
// have under way is limited, and another project doesn't notice.
func TestInputsUnderKeysHaveALimit(t *testing.T) {
	n := startNode(t, func(c *Config) { c.Keys.Memory = 4 << 20 })
	sb := n.create(plain)
	x := argv("cat")
	x.Stdin = true
	begin := func(project, key string, input []byte) *aether.Stream {
		t.Helper()
		s, err := n.client.Open(t.Context(), aether.Open{Method: "exec", Sandbox: sb.ID, Project: project, Key: key, Body: x.AppendTo(nil)})
		if err != nil {
			t.Fatal(err)
		}
		_ = s.Write(t.Context(), aether.Stdin, input) // refused in the middle of it, maybe
		return s
	}
	large, small := bytes.Repeat([]byte("x"), 900<<10), bytes.Repeat([]byte("y"), 200<<10)
	first := begin("p", "first", large)
	try := func(project string) error {
		s := begin(project, "small", small)
		_ = s.CloseWrite(aether.Stdin)
		return n.read(s).err
	}
	var err error
	until(t, "the first's input takes what there is", func() bool { err = try("p"); return err != nil })
	wantCode(t, err, api.CodeTooMany)
	wantCode(t, try("q"), api.CodeNotFound) // the sandbox isn't theirs, but there is memory
	if err := first.CloseWrite(aether.Stdin); err != nil {
		t.Fatal(err)
	}
	if tr := n.read(first); !bytes.Equal(tr.stdout, large) || tr.err != nil {
		t.Errorf("%d bytes came back, %v", len(tr.stdout), tr.err)
	}
	until(t, "the memory is given back", func() bool { return try("p") == nil })
}
