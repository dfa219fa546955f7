package container

import (
	"slices"
	"testing"
)

func TestWorkdirOwner(t *testing.T) {
	for user, want := range map[string][2]uint32{
		"": {0, 0}, "root": {0, 0}, "0": {0, 0}, "1000": {1000, 1000}, "1000:50": {1000, 50}, "1000:staff": {1000, 1000}, "app:7": {0, 0}, "-1": {0, 0},
	} {
		if u, g := workdirOwner(user); u != want[0] || g != want[1] {
			t.Errorf("workdirOwner(%q) = %d, %d, want %v", user, u, g, want)
		}
	}
}

func TestNamesHost(t *testing.T) {
	for hosts, want := range map[string]bool{
		"": false, "127.0.0.1 localhost": false, "127.0.0.1 localhost box": true, "127.0.0.1\tbox # x\n": true,
		"127.0.0.1 boxer": false, "# 127.0.0.1 box": false, "box 127.0.0.1": false,
	} {
		if got := namesHost(hosts, "box"); got != want {
			t.Errorf("namesHost(%q) = %v", hosts, got)
		}
	}
}

func TestUndoRunsBackwardsOnce(t *testing.T) {
	var u undo
	var got []int
	for i := range 3 {
		u.push(func() { got = append(got, i) })
	}
	u.run()
	u.run()
	if !slices.Equal(got, []int{2, 1, 0}) {
		t.Errorf("order %v", got)
	}
	u.push(func() { t.Error("run after release") })
	u.release()
	u.run()
}
