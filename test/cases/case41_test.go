package cases

import (
	"fmt"
	"testing"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/test/testbed"
)

func TestCase41HugeDirectories(t *testing.T) {
	t.Parallel()
	sb := testbed.Shared(t).Create(t, api.Spec{})
	f := sb.Files()
	files, rounds := 4_000, 3
	if longRun() {
		files, rounds = 1_000_000, 100
	}
	testbed.Output(t, sb, fmt.Sprintf("mkdir /many && cd /many && i=0; while [ $i -lt %d ]; do : > file-with-a-name-$i; i=$((i+1)); done", files))
	for range rounds {
		seen := make(map[string]bool, files)
		for info, err := range f.List(t.Context(), "/many") {
			if err != nil {
				t.Fatal(err)
			}
			seen[info.Name] = true
		}
		if len(seen) != files {
			t.Fatalf("%d of %d files are listed", len(seen), files)
		}
	}
	if err := f.RemoveAll(t.Context(), "/many"); err != nil {
		t.Fatal(err)
	}
	if got := testbed.Output(t, sb, "ls -d /many 2>/dev/null || echo gone"); got != "gone" {
		t.Error(got)
	}
	// Deeper than a walk goes: an error, and nothing that looks complete.
	testbed.Output(t, sb, "mkdir /deep && cd /deep && i=0; while [ $i -lt 200 ]; do mkdir d && cd d; i=$((i+1)); done")
	wantRefused(t, f.RemoveAll(t.Context(), "/deep"), api.CodeTooLarge)
	wantRefused(t, drain(f.Tar(t.Context(), "/deep")), api.CodeTooLarge)
}
