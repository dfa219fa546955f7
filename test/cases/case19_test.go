package cases

import (
	"strconv"
	"sync"
	"testing"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

// TestCase19ExitStatusOfItsOwn runs 20 rounds of 200 commands at once that exit with 0 to 199. Some of them outlive the
// moment up to which a command is waited for in another way.
func TestCase19ExitStatusOfItsOwn(t *testing.T) {
	t.Parallel()
	sb := testbed.Shared(t).Create(t, api.Spec{Resources: api.Resources{CPU: new(2.0)}})
	for round := range 20 {
		var wg sync.WaitGroup
		for code := range 200 {
			wg.Go(func() {
				script := "exit " + strconv.Itoa(code)
				if (code+round)%16 == 0 {
					script = "sleep 0.03; " + script
				}
				r, err := sb.Exec(t.Context(), libdsec.Cmd{Shell: script})
				if err != nil {
					t.Errorf("round %d, %q: %v", round, script, err)
				} else if !exitsWith(r.ExitStatus, code) {
					t.Errorf("round %d, %q: %+v", round, script, r.ExitStatus)
				}
			})
		}
		wg.Wait()
	}
}
