package admission

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"pgregory.net/rapid"
)

// empty is a machine on which nothing runs and everything finds room.
func empty() State {
	return State{
		MemoryMB: 1 << 20, AvailableMB: 1 << 20, PIDs: 1 << 22, MaxTasks: 1 << 20, MaxFiles: 1 << 20, MaxHandles: 1 << 24,
	}
}

func room(t interface{ Fatal(...any) }, k Capacity, now State) *Room {
	r, err := New(k, func() (State, error) { return now, nil })
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func wantFull(t *testing.T, err error, say ...string) {
	t.Helper()
	e, ok := errors.AsType[*api.Error](err)
	if !ok || e.Code != api.CodeNoCapacity || e.HTTP != 503 || e.RetryMS <= 0 || e.Hint == "" {
		t.Fatalf("refused with %+v", err)
	}
	for _, s := range say {
		if !strings.Contains(e.Detail, s) {
			t.Errorf("the refusal doesn't say %q: %s", s, e.Detail)
		}
	}
}

func TestAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total := Claim{Sandboxes: 4, MemoryMB: 100, MilliCPU: 1000, PIDs: 50}
		r := room(t, Capacity{}, empty())
		r.total = total
		held := map[string]Claim{}
		sum := func() (s Claim) {
			for _, c := range held {
				s = s.Plus(c)
			}
			return s
		}
		fits := func(old, c Claim) bool {
			for _, k := range [][4]int64{
				{old.Sandboxes, c.Sandboxes, sum().Sandboxes, total.Sandboxes},
				{old.MemoryMB, c.MemoryMB, sum().MemoryMB, total.MemoryMB},
				{old.MilliCPU, c.MilliCPU, sum().MilliCPU, total.MilliCPU},
				{old.PIDs, c.PIDs, sum().PIDs, total.PIDs},
			} {
				if k[1] > k[0] && k[2]-k[0]+k[1] > k[3] {
					return false
				}
			}
			return true
		}
		draw := func(t *rapid.T) Claim {
			return Claim{1, rapid.Int64Range(1, 110).Draw(t, "mb"), rapid.Int64Range(1, 1100).Draw(t, "cpu"), rapid.Int64Range(1, 55).Draw(t, "pids")}
		}
		id := rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f"})
		t.Repeat(map[string]func(*rapid.T){
			"reserve": func(t *rapid.T) {
				id, c := id.Draw(t, "id"), draw(t)
				if _, ok := held[id]; ok {
					t.Skip("ids are used once")
				}
				want := fits(Claim{}, c)
				if err := r.Reserve(id, c); (err == nil) != want {
					t.Fatalf("Reserve(%+v) with %+v: %v", c, sum(), err)
				}
				if want {
					held[id] = c
				}
			},
			"change": func(t *rapid.T) {
				id, c := id.Draw(t, "id"), draw(t)
				old, ok := held[id]
				want := ok && fits(old, c)
				if err := r.Change(id, c); (err == nil) != want {
					t.Fatalf("Change(%+v to %+v) with %+v: %v", old, c, sum(), err)
				}
				if want {
					held[id] = c
				}
			},
			"adopt":   func(t *rapid.T) { id, c := id.Draw(t, "id"), draw(t); r.Adopt(id, c); held[id] = c },
			"made":    func(t *rapid.T) { r.Made(id.Draw(t, "id")) },
			"release": func(t *rapid.T) { id := id.Draw(t, "id"); r.Release(id); delete(held, id) },
			"": func(t *rapid.T) {
				if r.Used() != sum() {
					t.Fatalf("in use %+v, want %+v", r.Used(), sum())
				}
				for id := range r.making {
					if _, ok := held[id]; !ok {
						t.Fatalf("%s counts as being made and has nothing", id)
					}
				}
			},
		})
	})
}

// TestWhatIsBeingMadeCounts: a burst doesn't pass on looks at the machine that don't show it yet.
func TestWhatIsBeingMadeCounts(t *testing.T) {
	const fit = 10
	for what, now := range map[string]State{
		"MiB of memory available":   {AvailableMB: 1000 + fit*freshMB, MaxTasks: 1000, MaxFiles: 1000, MaxHandles: 1000},
		"processes and threads":     {AvailableMB: 1 << 20, MaxTasks: 1000, Tasks: 950 - fit*freshTasks, MaxFiles: 1000, MaxHandles: 1000},
		"descriptors of the edge":   {AvailableMB: 1 << 20, MaxTasks: 1000, MaxFiles: 1000, Files: 950 - fit*freshFiles, MaxHandles: 1000},
		"open files of the machine": {AvailableMB: 1 << 20, MaxTasks: 1000, MaxFiles: 1000, MaxHandles: 1000, Handles: 950 - fit*freshHandles},
	} {
		t.Run(strings.ReplaceAll(what, " ", "-"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := room(t, Capacity{ReserveMB: 1000, MemoryMB: 1 << 20, PIDs: 1 << 20}, now)
				id := func(i int) string { return string(rune('a' + i)) }
				one := Claim{Sandboxes: 1, MemoryMB: 1, PIDs: 1}
				for i := range fit {
					if err := r.Reserve(id(i), one); err != nil {
						t.Fatalf("admission %d: %v", i, err)
					}
				}
				wantFull(t, r.Reserve("x", one), what, "10 sandboxes are being made")
				// However late the machine is looked at: they are still being made.
				<-time.After(lookEvery)
				wantFull(t, r.Reserve("x", one))
				wantFull(t, r.Change(id(0), Claim{Sandboxes: 1, MemoryMB: 2, PIDs: 1}))
				if err := r.Change(id(0), Claim{Sandboxes: 1, MemoryMB: 1, PIDs: 1, MilliCPU: 1}); err != nil {
					t.Errorf("more of what costs the machine nothing: %v", err)
				}
				// What was made shows at the next look, and not before.
				r.Made(id(0))
				r.Release(id(1))
				r.Made(id(0))
				wantFull(t, r.Reserve("x", one))
				<-time.After(lookEvery)
				for _, id := range []string{"x", "y"} {
					if err := r.Reserve(id, one); err != nil {
						t.Errorf("after a new look: %v", err)
					}
				}
				wantFull(t, r.Reserve("z", one))
				if r.Holds("z") || r.Used().Sandboxes != fit+1 {
					t.Errorf("who was refused has taken a share: %+v", r.Used())
				}
			})
		})
	}
}

// TestRefusedTakeNothing: those that find no room in the capacity don't count as being made.
func TestRefusedTakeNothing(t *testing.T) {
	now := empty()
	now.AvailableMB = 1000 + 2*freshMB
	r := room(t, Capacity{Sandboxes: 1, ReserveMB: 1000}, now)
	one := Claim{Sandboxes: 1, MemoryMB: 1}
	if err := r.Reserve("a", one); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		wantFull(t, r.Reserve("b", one), "1 more sandboxes are asked for; 0 of 1 are free")
	}
	r.Release("a")
	if err := r.Reserve("b", one); err != nil {
		t.Error(err)
	}
}

func TestAMachineThatCantBeLookedAtAdmitsNobody(t *testing.T) {
	blind := errors.New("no /proc")
	if _, err := New(Capacity{}, func() (State, error) { return State{}, blind }); !errors.Is(err, blind) {
		t.Errorf("New: %v", err)
	}
	r := room(t, Capacity{}, empty())
	r.read = func() (State, error) { return State{}, blind }
	if err := r.Reserve("a", Claim{Sandboxes: 1}); !errors.Is(err, blind) || r.Used() != (Claim{}) {
		t.Errorf("admitted blindly: %v, %+v", err, r.Used())
	}
}

func TestCapacityDefaults(t *testing.T) {
	m := State{MemoryMB: 10_000, PIDs: 1000}
	want := Capacity{Sandboxes: 10_000, MemoryRatio: 25, MemoryMB: 250_000, ReserveMB: 500, CPURatio: 1000, PIDRatio: 20, PIDs: 20_000}
	if diff := cmp.Diff(want, Capacity{}.On(m)); diff != "" {
		t.Errorf("defaults (-want +got):\n%s", diff)
	}
	m.MemoryMB = 1000
	set := Capacity{Sandboxes: 1, MemoryRatio: 2, CPURatio: 3, PIDRatio: 4}
	want = Capacity{Sandboxes: 1, MemoryRatio: 2, MemoryMB: 2000, ReserveMB: 256, CPURatio: 3, PIDRatio: 4, PIDs: 4000}
	if diff := cmp.Diff(want, set.On(m)); diff != "" {
		t.Errorf("with ratios (-want +got):\n%s", diff)
	}
	for _, bad := range []Capacity{{MemoryRatio: -1}, {CPURatio: 1e300}, {PIDRatio: -0.1}, {ReserveMB: -1}, {Sandboxes: -1}, {PIDs: -1}, {MemoryMB: -1}} {
		if bad.Valid() {
			t.Errorf("%+v is accepted", bad)
		}
	}
}

func TestMilliCPURoundsUp(t *testing.T) {
	for cores, want := range map[float64]int64{1: 1000, 0.0001: 1, 0.0011: 2, 1.5: 1500} {
		if got := milliCPU(cores); got != want {
			t.Errorf("%v cores are %d thousandths, want %d", cores, got, want)
		}
	}
}

// proc makes a folder like /proc.
func proc(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func procFiles() map[string]string {
	return map[string]string{
		"meminfo":                "MemTotal:       24684092 kB\nMemFree:  1 kB\nMemAvailable:   2048 kB\nHugePages_Total:       0\n",
		"loadavg":                "5.67 5.61 4.82 3/1234 99\n",
		"sys/kernel/pid_max":     "32768\n",
		"sys/kernel/threads-max": "190000\n",
		"sys/fs/file-nr":         "1195\t0\t2466177\n",
		"self/limits":            "Limit Soft Limit Hard Limit Units\nMax open files            1024                 4096                 files     \n",
	}
}

func TestReadMachine(t *testing.T) {
	got, err := readIn(proc(t, withFD(procFiles())))
	want := State{MemoryMB: 24_105, AvailableMB: 2, PIDs: 32_768, Tasks: 1234, MaxTasks: 32_768, MaxFiles: 1024, Handles: 1195, MaxHandles: 2_466_177}
	got.Files = 0 // of a folder that isn't the kernel's
	if err != nil || got != want {
		t.Errorf("read %+v, %v; want %+v", got, err, want)
	}
	for name, text := range map[string]string{
		"meminfo": "MemTotal: 1 kB\n", "loadavg": "nonsense", "sys/kernel/pid_max": "many", "sys/kernel/threads-max": "",
		"sys/fs/file-nr": "1 many", "self/limits": "\nMax open files unlimited",
	} {
		files := withFD(procFiles())
		files[name] = text
		if got, err := readIn(proc(t, files)); err == nil {
			t.Errorf("%s with %q: %+v", name, text, got)
		}
		delete(files, name)
		if _, err := readIn(proc(t, files)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("without %s: %v", name, err)
		}
	}
}

func withFD(files map[string]string) map[string]string {
	files["self/fd/0"] = ""
	return files
}

// TestReadThisMachine compares with what can be counted otherwise.
func TestReadThisMachine(t *testing.T) {
	before, err := Read()
	if err != nil || before.AvailableMB <= 0 || before.Tasks <= 0 || before.MaxTasks <= before.Tasks || before.Handles <= 0 || before.MaxHandles <= before.Handles {
		t.Fatalf("this machine: %+v, %v", before, err)
	}
	const more = 100
	for range more {
		f, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
	}
	after, err := Read()
	if err != nil || after.Files < before.Files+more || after.Files > before.Files+more+20 {
		t.Errorf("with %d more descriptors: %d, then %d, %v", more, before.Files, after.Files, err)
	}
	if n, err := os.ReadDir("/proc/self/fd"); err != nil || len(n) < int(after.Files)-20 || len(n) > int(after.Files)+20 {
		t.Errorf("%d descriptors are open, %d were counted, %v", len(n), after.Files, err)
	}
}

func TestMetrics(t *testing.T) {
	r := room(t, Capacity{Sandboxes: 7, MemoryMB: 700, CPURatio: 1, PIDs: 70}, empty())
	reg := prometheus.NewRegistry()
	if err := r.Register(reg); err != nil {
		t.Fatal(err)
	}
	if err := r.Register(reg); err == nil {
		t.Error("registered twice")
	}
	if err := r.Reserve("a", Claim{1, 100, 10, 20}); err != nil {
		t.Fatal(err)
	}
	list, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range list {
		for _, m := range f.GetMetric() {
			got[f.GetName()+" "+m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
		}
	}
	want := map[string]float64{
		"dsec_capacity_total sandboxes": 7, "dsec_capacity_total memory_mb": 700, "dsec_capacity_total pids": 70,
		"dsec_capacity_total cpu_thousandths": float64(r.Total().MilliCPU),
		"dsec_capacity_used sandboxes":        1, "dsec_capacity_used memory_mb": 100, "dsec_capacity_used cpu_thousandths": 10, "dsec_capacity_used pids": 20,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
