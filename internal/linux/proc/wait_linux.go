package proc

import (
	"bytes"
	"os"
	"strconv"
	"strings"
)

// Waiting is a process that waits in the kernel for something that no signal ends the wait for.
type Waiting struct {
	Inside int    // its number in its own pid namespace
	Name   string // of its program, as it says itself
	For    string // the kernel's function in which it waits; "something" where the kernel doesn't tell
}

// Waits tells whether the process pid waits so, which keeps it from being frozen. One that has ended doesn't.
func Waits(pid int) (Waiting, bool) {
	dir := "/proc/" + strconv.Itoa(pid) + "/"
	status, err := os.ReadFile(dir + "status")
	if err != nil {
		return Waiting{}, false
	}
	var w Waiting
	stuck := false
	for line := range bytes.Lines(status) {
		key, value, _ := strings.Cut(strings.TrimSpace(string(line)), ":")
		value = strings.TrimSpace(value)
		switch key {
		case "Name":
			w.Name = value
		case "State":
			stuck = strings.HasPrefix(value, "D")
		case "NSpid":
			w.Inside, _ = strconv.Atoi(value[strings.LastIndexByte(value, '\t')+1:]) // the kernel writes numbers
		}
	}
	w.For = "something"
	if f, err := os.ReadFile(dir + "wchan"); err == nil && len(f) > 1 {
		w.For = string(f)
	}
	return w, stuck
}
