package cases

import (
	"fmt"
	"testing"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/test/testbed"
)

// TestCase01BackgroundChildOutlivesTheCallersLeaving: a caller leaves as soon as it has been told the end, and the
// children that are then just on their way must not be taken for a cancelled command's.
func TestCase01BackgroundChildOutlivesTheCallersLeaving(t *testing.T) {
	t.Parallel()
	sb := testbed.Shared(t).Create(t, api.Spec{})
	const n = 150
	for range n {
		testbed.Output(t, sb, "setsid sleep 1000 >/dev/null 2>&1 &")
	}
	count := func() string { return testbed.Output(t, sb, "ps -o args | grep -c '^sleep 100[0]'") }
	want := fmt.Sprint(n)
	testbed.Until(t, hang, "all children", func() bool { return count() == want })
}
