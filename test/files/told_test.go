package files

import (
	"fmt"
	"testing"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

// TestWatchToldIsWatched: who was told of a new directory misses nothing that happens in it from then on. The one who
// acts on it waits in the sandbox, to be as fast as it gets.
func TestWatchToldIsWatched(t *testing.T) {
	t.Parallel()
	sb := testbed.Shared(t).Create(t, api.Spec{})
	testbed.Output(t, sb, "mkdir /w")
	w, _ := begin(t, sb.Files(), "/w", true)
	actor, err := sb.Start(t.Context(), libdsec.Cmd{Shell: `while read what; do eval "$what"; done`}, libdsec.StartOptions{StdinPipe: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = actor.Kill(t.Context()) }()
	do := func(what string) {
		if _, err := fmt.Fprintln(actor.Stdin(), what); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 300 {
		dir := fmt.Sprintf("/w/%d", i)
		do("mkdir " + dir)
		w.until("create " + dir + "/")
		do(": > " + dir + "/f")
		w.until("closed_write " + dir + "/f")
	}
}
