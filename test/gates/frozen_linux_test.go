package gates

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

// freeze writes a box's freeze file from the host, as a pause does, and waits for the kernel.
func (b *bed) freeze(t testing.TB, sb *libdsec.Sandbox, value string) {
	t.Helper()
	dir := filepath.Join(b.groups, b.shardOf(t, sb), sb.ID())
	if err := os.WriteFile(filepath.Join(dir, "cgroup.freeze"), []byte(value), 0o644); err != nil {
		t.Fatal(err)
	}
	testbed.Until(t, hang, "freeze state "+value, func() bool {
		raw, err := os.ReadFile(filepath.Join(dir, "cgroup.events"))
		return err == nil && strings.Contains(string(raw), "frozen "+value)
	})
}

// A helper that joins a frozen group stops there, and with it a thread of the shard: so nothing may be cloned at all.
func TestExecIntoAFrozenSandboxIsRefused(t *testing.T) {
	b := newBed(t, testbed.Options{Hooks: true})
	sb, other := b.Create(t, api.Spec{}), b.Create(t, api.Spec{})
	p, got := start(t, sb, lines(2000, 4), libdsec.StartOptions{})
	testbed.Until(t, hang, "its first output", func() bool { return got.len() > 0 })
	b.freeze(t, sb, "1")
	for range 20 {
		began := time.Now()
		status, answer, err := b.post(t.Context(), sb, `{"argv":["true"]}`)
		if err != nil || status != 409 || !strings.Contains(answer, `"code":"frozen"`) {
			t.Fatalf("exec into a frozen sandbox: %v, %d, %s", err, status, answer)
		}
		if took := time.Since(began); took > restartBound {
			t.Errorf("the refusal took %v", took)
		}
	}
	if s := stats(t, b.aether(t, b.shardOf(t, sb))); s.Stopped != 0 || s.Expired != 0 {
		t.Errorf("helpers were cloned into the frozen sandbox: %+v", s)
	}
	answers(t, other)
	b.freeze(t, sb, "0")
	answers(t, sb)
	wantOut, wantErr := printed(2000, "\n")
	wantCode(t, "frozen and thawed", p, 4)
	got.want(t, "frozen and thawed", wantOut, wantErr)
}

func TestFrozenSandboxIsDeleted(t *testing.T) {
	b := newBed(t, testbed.Options{})
	sb := b.Create(t, api.Spec{})
	start(t, sb, "sleep 1000", libdsec.StartOptions{})
	group := filepath.Join(b.groups, b.shardOf(t, sb), sb.ID())
	b.freeze(t, sb, "1")
	began := time.Now()
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("deleted in %v", time.Since(began))
	if took := time.Since(began); took > restartBound {
		t.Errorf("it took %v", took)
	}
	if _, err := os.Stat(group); err == nil {
		t.Error("its cgroup is still there")
	}
}
