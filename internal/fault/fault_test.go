package fault_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dsec-io/dsec/internal/fault"
)

var errDisk = errors.New("disk")

func TestRules(t *testing.T) {
	var none *fault.Set
	if none.At("record:write") != nil {
		t.Error("a nil set fails")
	}
	if part, end, err := none.Write("record:write", []byte("abcd")); string(part) != "abcd" || err != nil {
		t.Errorf("a nil set writes %q, %v", part, err)
	} else {
		end()
	}
	s := &fault.Set{}
	s.Arm(fault.Rule{Point: "a", Skip: 1, Times: 2, Err: errDisk})
	var got []bool
	for range 5 {
		got = append(got, s.At("a") != nil)
	}
	if want := []bool{false, true, true, false, false}; !slices.Equal(got, want) {
		t.Errorf("fails %v, want %v", got, want)
	}
	s.Arm(fault.Rule{Point: "b", Err: errDisk, Part: 50})
	if part, end, err := s.Write("b", []byte("abcd")); string(part) != "ab" || !errors.Is(err, errDisk) {
		t.Errorf("half a write: %q, %v", part, err)
	} else {
		end()
	}
	s.Clear()
	if part, _, err := s.Write("b", []byte("abcd")); string(part) != "abcd" || err != nil {
		t.Errorf("cleared: %q, %v", part, err)
	}
	asked, hit := s.Counts()
	if asked["a"] != 5 || hit["a"] != 2 || asked["b"] != 2 || hit["b"] != 1 {
		t.Errorf("asked %v, hit %v", asked, hit)
	}
}

// TestNilSetCostsNothing: production has no Set, on the way of every create.
func TestNilSetCostsNothing(t *testing.T) {
	var none *fault.Set
	if n := testing.AllocsPerRun(100, func() { _ = none.At("record:write") }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestPointsAreThoseOfTheCode: a point that isn't listed would never be tried, one that isn't asked never be met.
func TestPointsAreThoseOfTheCode(t *testing.T) {
	called := regexp.MustCompile(`\.(?:At|Write|Append|AppendTo|Rename|Remove|Sync)\(\s*"([a-z]+:[a-z-]+)"|\{"([a-z]+:[a-z-]+)", s\.`)
	found := map[string]bool{}
	for _, root := range []string{"../edge", "../backend"} {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			for _, m := range called.FindAllStringSubmatch(string(text), -1) {
				found[m[1]+m[2]] = true
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for p := range found {
		if !slices.Contains(fault.Points(), p) {
			t.Errorf("%s isn't listed", p)
		}
	}
	for _, p := range fault.Points() {
		if !found[p] {
			t.Errorf("%s is listed and nobody asks", p)
		}
	}
}
