package cases

import (
	"fmt"
	"testing"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/test/testbed"
)

func TestCase35OverwriteOfEqualSize(t *testing.T) {
	t.Parallel()
	sb := testbed.Shared(t).Create(t, api.Spec{})
	f := sb.Files()
	for i := range 100 {
		a, b := fmt.Sprintf("A%05d", i), fmt.Sprintf("B%05d", i)
		put(t, f, "/same", a)
		wantContent(t, f, "/same", a)
		put(t, f, "/same", b)
		wantContent(t, f, "/same", b)
	}
	if got := testbed.Output(t, sb, "cat /same; ls -a / | grep dsec- || true"); got != "B00099" {
		t.Errorf("the file and what is left beside it: %q", got)
	}
}
