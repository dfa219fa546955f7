package cases

import (
	"testing"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/test/testbed"
)

func TestCase14BlankLinesAndCRLFAreKept(t *testing.T) {
	t.Parallel()
	sb := testbed.Shared(t).Create(t, api.Spec{})
	const want = "a\n\n\r\nb"
	r := testbed.Shell(t, sb, `printf 'a\n\n\r\nb'; printf 'a\n\n\r\nb' >&2`)
	if got := string(r.Stdout); got != want {
		t.Errorf("stdout = %q, want %q", got, want)
	}
	if got := string(r.Stderr); got != want {
		t.Errorf("stderr = %q, want %q", got, want)
	}
}
