package cases

import (
	"fmt"
	"sync"
	"testing"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

func TestCase36ParallelUploadsToNewDirectories(t *testing.T) {
	t.Parallel()
	sb := testbed.Shared(t).Create(t, api.Spec{})
	testbed.Output(t, sb, "mkdir -m 1777 /a; chown 7:8 /a; touch -d '2001-02-03 04:05:06' /a")
	app := sb.Files().As("1000:1000")
	before := testbed.Output(t, sb, "stat -c '%u %g %a' /a")
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			name := fmt.Sprintf("/a/b/c/d/%d", i)
			if _, err := app.WriteFile(t.Context(), name, []byte(name), libdsec.WriteOptions{Parents: true}); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	wg.Wait()
	for i := range 64 {
		name := fmt.Sprintf("/a/b/c/d/%d", i)
		wantContent(t, app, name, name)
	}
	if after := testbed.Output(t, sb, "stat -c '%u %g %a' /a"); after != before {
		t.Errorf("the directory that was there: %s, now %s", before, after)
	}
	if got := testbed.Output(t, sb, "stat -c '%u:%g %a' /a/b /a/b/c /a/b/c/d /a/b/c/d/0; ls -a /a/b/c/d | wc -l"); got != "1000:1000 755\n1000:1000 755\n1000:1000 755\n1000:1000 644\n66" {
		t.Errorf("what was made: %s", got)
	}
	// Nothing is made in a directory that exists but for the file itself: its parent's time stays.
	testbed.Output(t, sb, "touch -d '2001-02-03 04:05:06' /a /a/b /a/b/c")
	before = testbed.Output(t, sb, "stat -c '%Y' /a /a/b /a/b/c")
	put(t, app, "/a/b/c/d/more", "x")
	if after := testbed.Output(t, sb, "stat -c '%Y' /a /a/b /a/b/c"); after != before {
		t.Errorf("times before %s, after %s", before, after)
	}
}
