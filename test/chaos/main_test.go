// Package chaos breaks a real node in every way it knows of, and then asks whether every sandbox is accounted for.
//
// TestChaos does so at random, for as long as DSEC_CHAOS says (a duration; `make chaos` takes ten minutes); its seed is
// printed and taken from DSEC_CHAOS_SEED. The other tests take the labelled points of package fault one by one.
package chaos

import (
	"os"
	"strings"
	"testing"

	"github.com/dsec-io/dsec/test/testbed"
)

func TestMain(m *testing.M) {
	if at, token, ok := strings.Cut(os.Getenv(clientEnv), " "); ok {
		client(at, token)
		return
	}
	testbed.Main(m)
}
