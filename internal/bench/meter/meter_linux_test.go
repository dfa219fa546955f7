package meter

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const meminfo = `MemTotal:       24684048 kB
MemFree:        20000000 kB
MemAvailable:   22000000 kB
Buffers:             100 kB
Cached:             5000 kB
SwapCached:            7 kB
AnonPages:           300 kB
Shmem:                40 kB
Slab:               9000 kB
KernelStack:         160 kB
PageTables:          280 kB
Percpu:               50 kB
HugePages_Total:       0
`

const sockstat = `sockets: used 290
TCP: inuse 4 orphan 0 tw 2 alloc 5 mem 3
UDP: inuse 0 mem 2
FRAG: inuse 0 memory 0
`

func files(t *testing.T, meminfo string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "net"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"meminfo": meminfo, "net/sockstat": sockstat} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestMemory(t *testing.T) {
	m, err := readMemoryIn(files(t, meminfo))
	if err != nil {
		t.Fatal(err)
	}
	page := int64(os.Getpagesize()) / 1024
	want := Memory{
		Anonymous: 300, Slab: 9000, PageTables: 280, Stacks: 160, PerCPU: 50, Sockets: 5 * page, Shared: 40, PageCache: 5060,
		Free: 20_000_000, Available: 22_000_000,
	}
	if diff := cmp.Diff(want, m); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if used := m.Used(); used != 9830+5*page {
		t.Errorf("used %d", used)
	}
	less := m
	less.Slab, less.Free = 1000, 21_000_000
	if d := m.Minus(less); d.Used() != 8000 || d.Free != -1_000_000 {
		t.Errorf("difference %+v", d)
	}
	if _, err := readMemoryIn(files(t, strings.Replace(meminfo, "Slab:", "Slob:", 1))); err == nil {
		t.Error("a missing kind is no error")
	}
}

// TestThisProcess finds itself as the kernel knows it.
func TestThisProcess(t *testing.T) {
	ballast := make([]byte, 32<<20)
	for i := range ballast {
		ballast[i] = 1
	}
	f, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for end := time.Now().Add(time.Minute); ; { // the kernel counts in hundredths of a second
		p, err := ReadProcess(os.Getpid(), true)
		if err != nil {
			t.Fatal(err)
		}
		if p.Threads < 2 || p.Descriptors < 4 || p.AnonymousKiB < 32<<10 {
			t.Fatalf("%+v", p)
		}
		if p.CPU > 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("no processor time was used in a minute")
		}
	}
	if ballast[len(ballast)-1] != 1 {
		t.Error("the ballast is gone")
	}
	if _, err := ReadProcess(-1, true); err == nil {
		t.Error("a process -1")
	}
}

func TestNoSuchInstance(t *testing.T) {
	n, err := ReadNode("nosuchinst", os.Getpid())
	if err != nil || n.Server.PID != os.Getpid() || n.Keeper.PID != 0 || len(n.Shards)+n.Inside+n.Groups != 0 {
		t.Errorf("%+v, %v", n, err)
	}
	if kib, err := ChargedKiB("nosuchinst"); err != nil || kib != 0 {
		t.Errorf("%d, %v", kib, err)
	}
}
