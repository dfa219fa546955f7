package cases

import (
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

func TestCase04EOFOnStdinIsntDeliveredAfterStreamedWrites(t *testing.T) {
	t.Parallel()
	sb := testbed.Shared(t).Create(t, api.Spec{})
	random := rand.New(rand.NewPCG(4, 4))
	for name, most := range map[string]int{"small-chunks": 100, "chunks-beyond-a-pipe": 100_000} {
		sizes := make([]int, 1000)
		total := 0
		for i := range sizes {
			sizes[i] = 1 + random.IntN(most)
			total += sizes[i]
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, err := sb.Start(within(t, hang), libdsec.Cmd{Argv: []string{"wc", "-c"}}, libdsec.StartOptions{StdinPipe: true})
			if err != nil {
				t.Fatal(err)
			}
			out := p.Stdout()
			chunk := make([]byte, most)
			for i, size := range sizes {
				if _, err := p.Stdin().Write(chunk[:size]); err != nil {
					t.Fatalf("write %d: %v", i, err)
				}
			}
			if err := p.Stdin().Close(); err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(out)
			if err != nil || strings.TrimSpace(string(got)) != strconv.Itoa(total) {
				t.Errorf("wc -c says %q, %v; want %d", got, err, total)
			}
			if st, err := p.Wait(within(t, hang)); err != nil || !exited(st, 0) || st.StdinClosedEarly {
				t.Errorf("end: %+v %v", st, err)
			}
		})
	}
}
