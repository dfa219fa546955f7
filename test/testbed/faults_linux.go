package testbed

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/dsec-io/dsec/internal/fault"
)

// faultSocket is where a node with faults is told of them. It belongs to the testbed: no program of DSec has one.
const faultSocket = "faults.sock"

// Fault is what happens at a point of the node's edge; see [fault.Rule].
type Fault struct {
	Point       string
	Skip, Times int
	Delay       time.Duration
	Die         bool
	Errno       syscall.Errno // 0: no error
	Part        int           // percent of a write
}

// FaultCounts tells how often each point was asked, and how often something happened there.
type FaultCounts struct{ Asked, Hit map[string]int }

// faultOrder is one line to a node: rules to arm, after taking all others back if Clear says so.
type faultOrder struct {
	Clear bool
	Arm   []Fault
}

// serveFaults obeys orders until the process ends.
func serveFaults(set *fault.Set, dir string) error {
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, faultSocket)})
	if errors.Is(err, syscall.EADDRINUSE) { // of an earlier process
		if err = syscall.Unlink(filepath.Join(dir, faultSocket)); err == nil {
			ln, err = net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, faultSocket)})
		}
	}
	if err != nil {
		return fmt.Errorf("socket for faults: %w", err)
	}
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			var o faultOrder
			if json.NewDecoder(c).Decode(&o) == nil {
				obey(set, o)
				asked, hit := set.Counts()
				_ = json.NewEncoder(c).Encode(FaultCounts{asked, hit}) // a caller that is gone needs no answer
			}
			_ = c.Close()
		}
	}()
	return nil
}

func obey(set *fault.Set, o faultOrder) {
	if o.Clear {
		set.Clear()
	}
	for _, f := range o.Arm {
		r := fault.Rule{Point: f.Point, Skip: f.Skip, Times: f.Times, Delay: f.Delay, Die: f.Die, Part: f.Part}
		if f.Errno != 0 {
			r.Err = f.Errno
		}
		set.Arm(r)
	}
}

// TryFault replaces the faults of a node that was started with [Options.Faults]. A node that is down has none.
func (n *Node) TryFault(faults ...Fault) (FaultCounts, error) {
	return n.order(faultOrder{Clear: true, Arm: faults})
}

// Met is what has been met so far; the faults stay.
func (n *Node) Met(t testing.TB) FaultCounts {
	t.Helper()
	counts, err := n.order(faultOrder{})
	if err != nil {
		t.Fatalf("faults: %v", err)
	}
	return counts
}

func (n *Node) order(o faultOrder) (FaultCounts, error) {
	var counts FaultCounts
	c, err := net.DialTimeout("unix", filepath.Join(n.Dir, faultSocket), startTime)
	if err != nil {
		return counts, err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(startTime)); err != nil {
		return counts, err
	}
	if err := json.NewEncoder(c).Encode(o); err != nil {
		return counts, err
	}
	return counts, json.NewDecoder(c).Decode(&counts)
}

// Fault is TryFault for a node that is up.
func (n *Node) Fault(t testing.TB, faults ...Fault) FaultCounts {
	t.Helper()
	counts, err := n.TryFault(faults...)
	if err != nil {
		t.Fatalf("faults: %v", err)
	}
	return counts
}

// Start starts a node again whose process has ended, with faults that hold from its first step on. The error is the
// node's, which has ended once more.
func (n *Node) Start(faults ...Fault) error {
	n.arm = faults
	err := n.run()
	n.arm = nil
	return err
}

// Died waits for the end of a node's process that was told to die at a point; [Node.Restart] starts it again.
func (n *Node) Died(t testing.TB) {
	t.Helper()
	_ = n.Client.Close()
	ended := make(chan struct{})
	go func() {
		_ = n.cmd.Wait() // it says that the process was killed
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(startTime):
		t.Fatalf("the node lives on; its log ends:\n%s", n.LogTail())
	}
	_ = n.log.Close()
	n.cmd = nil
}
