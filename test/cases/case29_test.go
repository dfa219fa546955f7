package cases

import (
	"math/bits"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

// TestCase29NprocFollowsTheLimit looks at what programs ask: the affinity (nproc, Go, Java, C++), the list of online
// processors (getconf and Python through the C library), and the quota. docs/limits.md says what doesn't follow.
func TestCase29NprocFollowsTheLimit(t *testing.T) {
	t.Parallel()
	n := testbed.Shared(t)
	host := runtime.NumCPU()
	for _, tc := range []struct {
		cpu  float64
		want int
	}{{0.5, 1}, {1, 1}, {1.5, 2}, {2, 2}, {float64(host), host}} {
		want := min(tc.want, host)
		if tc.cpu > float64(host) {
			continue // a machine refuses what it never has
		}
		t.Run(strconv.FormatFloat(tc.cpu, 'g', -1, 64), func(t *testing.T) {
			sb := n.Create(t, api.Spec{Resources: api.Resources{CPU: new(tc.cpu)}})
			wantProcessors(t, sb, want)
			for _, next := range []int{1, min(2, host)} {
				if _, err := sb.Patch(t.Context(), api.Patch{Resources: &api.Resources{CPU: new(float64(next))}}); err != nil {
					t.Fatal(err)
				}
				wantProcessors(t, sb, next)
			}
		})
	}
}

func wantProcessors(t *testing.T, sb *libdsec.Sandbox, want int) {
	t.Helper()
	if got := testbed.Output(t, sb, "nproc"); got != strconv.Itoa(want) {
		t.Errorf("nproc = %s, want %d", got, want)
	}
	online := testbed.Output(t, sb, "cat /sys/devices/system/cpu/online")
	if got := countList(t, online); got != want {
		t.Errorf("online processors are %q, want %d", online, want)
	}
	_, mask, _ := strings.Cut(testbed.Output(t, sb, "taskset -p $$"), "mask: ")
	set, err := strconv.ParseUint(strings.TrimSpace(mask), 16, 64)
	if err != nil || bits.OnesCount64(set) != want {
		t.Errorf("affinity mask %q (%v), want %d bits", mask, err, want)
	}
	p := startInteractive(t, sb)
	if p != strconv.Itoa(want) {
		t.Errorf("on a terminal nproc = %s, want %d", p, want)
	}
}

// startInteractive asks on the other way of starting commands.
func startInteractive(t *testing.T, sb *libdsec.Sandbox) string {
	t.Helper()
	var said transcript
	p, err := sb.Start(t.Context(), libdsec.Cmd{Argv: []string{"nproc"}}, libdsec.StartOptions{
		TTY: &api.Size{Rows: 24, Cols: 80}, Handlers: libdsec.Handlers{OnStdout: said.take},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(said.String())
}

// countList counts the members of a list such as 0-2,5.
func countList(t *testing.T, list string) int {
	t.Helper()
	sum := 0
	for part := range strings.SplitSeq(strings.TrimSpace(list), ",") {
		from, to, ranged := strings.Cut(part, "-")
		first, err := strconv.Atoi(from)
		last := first
		if ranged && err == nil {
			last, err = strconv.Atoi(to)
		}
		if err != nil {
			t.Fatalf("list %q: %v", list, err)
		}
		sum += last - first + 1
	}
	return sum
}
