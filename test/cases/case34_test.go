package cases

import (
	"fmt"
	"testing"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

func TestCase34UploadThatCantBeSeen(t *testing.T) {
	t.Parallel()
	sb := testbed.Shared(t).Create(t, api.Spec{})
	f := sb.Files()
	rounds := 60
	if longRun() {
		rounds = 5000
	}
	for i := range rounds {
		// A folder that the upload makes, and one that programs take for memory; mounts are in test/files.
		for _, dir := range []string{"/up", "/dev/shm"} {
			name, want := fmt.Sprintf("%s/%d", dir, i), fmt.Sprint("up ", i)
			put(t, f, name, want)
			r, err := sb.Exec(t.Context(), libdsec.Cmd{Argv: []string{"cat", name}})
			if err != nil || string(r.Stdout) != want {
				t.Fatalf("cat %s: %+v, %v", name, r, err)
			}
			r, err = sb.Exec(t.Context(), libdsec.Cmd{Argv: []string{"sh", "-c", "echo down $0 > " + name + ".out", fmt.Sprint(i)}})
			if err != nil || !exitsWith(r.ExitStatus, 0) {
				t.Fatalf("write %s: %+v, %v", name, r, err)
			}
			wantContent(t, f, name+".out", fmt.Sprintf("down %d\n", i))
		}
	}
}
