package chronus_test

import (
	"os"
	"strconv"
	"sync"
	"testing"

	"github.com/dsec-io/dsec/internal/aether"
)

// TestMemoryIsFlat runs many commands and compares the shard's memory at one and at four quarters. DSEC_SOAK sets how
// many, in thousands.
func TestMemoryIsFlat(t *testing.T) {
	thousands := 4
	if v, err := strconv.Atoi(os.Getenv("DSEC_SOAK")); err == nil {
		thousands = v
	}
	s := newSandbox(t)
	quarter := func() {
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for range thousands * 1000 / 16 {
					r := s.exec(aether.ExecStart{Argv: bytesOf("/bin/true")}).finish()
					if r.err != nil || r.exited.Code != 0 {
						t.Errorf("%v, %+v", r.err, r.exited)
						return
					}
				}
			})
		}
		wg.Wait()
	}
	quarter()
	first := s.stats()
	for range 3 {
		quarter()
	}
	last := s.stats()
	t.Logf("peak %d KiB after a quarter, %d KiB at the end", first.PeakRSS>>10, last.PeakRSS>>10)
	if grown := last.PeakRSS - first.PeakRSS; grown > 4<<20 {
		t.Errorf("the shard grew by %d KiB", grown>>10)
	}
}
