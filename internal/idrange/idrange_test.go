package idrange

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/dsec-io/dsec/internal/flock"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("IDRANGE_CHILD"); dir != "" {
		os.Exit(child(dir, os.Getenv("IDRANGE_FILE")))
	}
	os.Exit(m.Run())
}

// child is another instance in a process of its own: it takes ranges and owners, prints them, and stays until its stdin
// ends, so that its claim isn't stale.
func child(dir, file string) int {
	lock, err := flock.Try(filepath.Join(dir, "lock"))
	if err != nil {
		fmt.Println("error", err)
		return 1
	}
	a, err := Open(context.Background(), Config{File: file, Instance: filepath.Base(dir), DataDir: dir, InUse: nothing})
	if err != nil {
		fmt.Println("error", err)
		return 1
	}
	for range rangesPerChunk + 10 {
		r, err1 := a.Range()
		o, err2 := a.OwnerUID()
		if err := errors.Join(err1, err2); err != nil {
			fmt.Println("error", err)
			return 1
		}
		fmt.Println("range", r)
		fmt.Println("owner", o)
	}
	fmt.Println("done")
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	_ = lock.Unlock()
	return 0
}

func nothing(string) bool { return false }

// folder makes a data folder whose lock is held until the test ends.
func folder(t *testing.T, name string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	lock, err := flock.Try(filepath.Join(dir, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lock.Unlock() })
	return dir
}

func open(t *testing.T, file, dir string) *Allocator {
	t.Helper()
	a, err := Open(t.Context(), Config{File: file, Instance: filepath.Base(dir), DataDir: dir, InUse: nothing})
	if err != nil {
		t.Fatalf("Open(%s): %v", dir, err)
	}
	return a
}

func TestConcurrentProcessesNeverOverlap(t *testing.T) {
	base := t.TempDir()
	file := filepath.Join(base, "claims", "idranges.json")
	type result struct {
		lines []string
		err   error
	}
	const n = 8
	results := make([]result, n)
	started := make([]*exec.Cmd, n)
	var wg sync.WaitGroup
	for i := range n {
		dir := filepath.Join(base, fmt.Sprintf("inst%d", i))
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), "IDRANGE_CHILD="+dir, "IDRANGE_FILE="+file)
		stdin, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		started[i] = cmd
		defer func() {
			_ = stdin.Close()
			if err := cmd.Wait(); err != nil {
				t.Errorf("instance %d: %v", i, err)
			}
		}()
		wg.Go(func() {
			sc := bufio.NewScanner(stdout)
			for sc.Scan() && sc.Text() != "done" {
				results[i].lines = append(results[i].lines, sc.Text())
			}
			results[i].err = sc.Err()
		})
	}
	wg.Wait()
	seen := map[string]int{}
	for i, r := range results {
		if r.err != nil || len(r.lines) != 2*(rangesPerChunk+10) {
			t.Fatalf("instance %d: %d lines, %v: %v", i, len(r.lines), r.err, r.lines[max(0, len(r.lines)-1):])
		}
		for _, l := range r.lines {
			if other, ok := seen[l]; ok {
				t.Errorf("%s was given to instances %d and %d", l, other, i)
			}
			seen[l] = i
		}
	}
}

func TestAllocatorAgainstModel(t *testing.T) {
	file := filepath.Join(t.TempDir(), "idranges.json")
	dir := folder(t, "one")
	rapid.Check(t, func(t *rapid.T) {
		a, err := Open(context.Background(), Config{File: file, Instance: "one", DataDir: dir, InUse: nothing})
		if err != nil {
			t.Fatal(err)
		}
		used := map[uint32]bool{}
		var released []uint32
		t.Repeat(map[string]func(*rapid.T){
			"get": func(t *rapid.T) {
				for range rapid.IntRange(1, 80).Draw(t, "n") {
					id, err := a.Range()
					if err != nil {
						t.Fatal(err)
					}
					if used[id] || (id-firstRange)%Size != 0 || id < firstRange || id >= endRange {
						t.Fatalf("Range() = %#x, in use: %v", id, used[id])
					}
					used[id] = true
				}
			},
			"release": func(t *rapid.T) {
				for id := range used {
					a.Release(id)
					delete(used, id)
					released = append(released, id)
					break
				}
			},
			"take": func(t *rapid.T) {
				id := firstRange + Size*rapid.Uint32Range(0, 300).Draw(t, "slot")
				ours := (id-firstRange)/Size/rangesPerChunk < uint32(len(a.ranges.chunks))
				err := a.Take(id)
				if (err == nil) != (ours && !used[id]) {
					t.Fatalf("Take(%#x) = %v; ours %v, used %v", id, err, ours, used[id])
				}
				if err == nil {
					used[id] = true
				}
			},
		})
	})
}

func TestTakeRefusesOddAndForeignIDs(t *testing.T) {
	file := filepath.Join(t.TempDir(), "idranges.json")
	a, b := open(t, file, folder(t, "a")), open(t, file, folder(t, "b"))
	theirs, err := b.Range()
	if err != nil {
		t.Fatal(err)
	}
	owner, err := b.OwnerUID()
	if err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"foreign range": a.Take(theirs), "inside a range": a.Take(firstRange + 1), "below": a.Take(5),
		"foreign owner": a.TakeOwner(owner), "range as owner": a.TakeOwner(firstRange),
	} {
		if !errors.Is(err, ErrNotOurs) {
			t.Errorf("%s: %v, want ErrNotOurs", name, err)
		}
	}
}

func TestClaimSurvivesAndStaleOnesGo(t *testing.T) {
	base := t.TempDir()
	file := filepath.Join(base, "idranges.json")
	claimOf := func(name string, inUse func(string) bool) (uint32, error) {
		dir := filepath.Join(base, name)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		lock, err := flock.Try(filepath.Join(dir, "lock"))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = lock.Unlock() }()
		a, err := Open(t.Context(), Config{File: file, Instance: name, DataDir: dir, InUse: inUse})
		if err != nil {
			return 0, err
		}
		return a.ranges.chunks[0], nil
	}
	must := func(n uint32, err error) uint32 {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	inUse := func(s string) bool { return s == "cgroups-left" }
	left := must(claimOf("cgroups-left", inUse))
	gone := must(claimOf("gone", inUse))
	if left == gone {
		t.Fatal("a claim with cgroups left was reclaimed")
	}
	if got := must(claimOf("gone", inUse)); got != gone {
		t.Errorf("the same instance got chunk %d, had %d", got, gone)
	}
	if got := must(claimOf("next", inUse)); got != gone {
		t.Errorf("stale chunk %d wasn't reclaimed; the next instance got %d", gone, got)
	}
	if got := must(claimOf("cgroups-left", inUse)); got != left {
		t.Errorf("the instance with cgroups left got chunk %d, had %d", got, left)
	}
}

func TestCopiedFolderIsRefusedWhileTheOriginalLives(t *testing.T) {
	file := filepath.Join(t.TempDir(), "idranges.json")
	original, copied := folder(t, "same"), folder(t, "same")
	open(t, file, original)
	_, err := Open(t.Context(), Config{File: file, Instance: "same", DataDir: copied, InUse: nothing})
	if !errors.Is(err, ErrCopied) || !strings.Contains(err.Error(), original) {
		t.Errorf("Open of a copy: %v, want ErrCopied naming %s", err, original)
	}
}

func TestDamagedClaimsAreNeverIgnored(t *testing.T) {
	dir := folder(t, "one")
	for name, text := range map[string]string{
		"empty": "", "cut": `{"version":1,"cla`, "twice": `{"version":1,"claims":[{"ranges":[1]},{"ranges":[1]}]}`,
		"version": `{"version":9}`, "beyond": `{"version":1,"claims":[{"ranges":[4000]}]}`, "null": `{"version":1,"claims":[null]}`,
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "idranges.json")
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := Open(t.Context(), Config{File: file, Instance: "one", DataDir: dir, InUse: nothing}); err == nil {
				t.Error("opened")
			}
		})
	}
}

func TestExhaustionIsAnError(t *testing.T) {
	file := filepath.Join(t.TempDir(), "idranges.json")
	dir := folder(t, "one")
	chunks := make([]string, maxRangeChunks)
	for i := range chunks {
		chunks[i] = fmt.Sprint(i)
	}
	text := fmt.Sprintf(`{"version":1,"claims":[{"instance":"other","data_dir":%q,"ranges":[%s]}]}`, folder(t, "other"), strings.Join(chunks, ","))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), Config{File: file, Instance: "one", DataDir: dir, InUse: nothing}); !errors.Is(err, ErrExhausted) {
		t.Errorf("Open: %v, want ErrExhausted", err)
	}
}
