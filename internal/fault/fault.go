// Package fault lets a test make one step of the edge fail, wait, or be the last thing the process does.
//
// Steps that can go wrong on a real machine (a write on a full disk, a mount, a namespace, a call to a shard) have names,
// which [Points] lists. The code asks a [Set] before each of them. A program that isn't a test has none: a nil Set is
// asked with one comparison and says that all is well. There is no variable, flag or request that makes one; only the
// code that starts an edge can hand one in, and nothing but the testbed does.
//
// What a write had done when it failed is part of the fault: see [Rule].
//
// All methods are safe for concurrent use, on a nil Set too.
package fault

import (
	"maps"
	"os"
	"sync"
	"time"
)

// Rule says what happens at a point. Without Err and Die it only takes its time.
type Rule struct {
	Point string        // one of Points
	Skip  int           // so many times nothing happens first
	Times int           // then so many times it does; 0: from then on always
	Delay time.Duration // comes before all else
	Die   bool          // the process is killed there, as by kill -9
	Err   error         // the step isn't done, and fails with it
	// Part is how much of a write reaches the file before Err or Die, in percent. Steps that write nothing ignore it.
	Part int
}

// Set is the faults of one process. The zero Set has none and counts what is asked.
type Set struct {
	// mu guards what follows.
	mu    sync.Mutex
	rules map[string]*Rule
	asked map[string]int
	hit   map[string]int
}

// At is asked before a step. With an error the step is left undone and fails with it.
func (s *Set) At(point string) error {
	if s == nil {
		return nil
	}
	r, ok := s.next(point)
	if !ok {
		return nil
	}
	r.wait()
	return r.Err
}

// Write is asked before data is written. It returns how much of it is to be written, and the error of the write after
// that. A process that is to die there calls end in between.
func (s *Set) Write(point string, data []byte) (part []byte, end func(), err error) {
	if s == nil {
		return data, func() {}, nil
	}
	r, ok := s.next(point)
	if !ok {
		return data, func() {}, nil
	}
	part = data
	if r.Die || r.Err != nil {
		part = data[:len(data)*min(max(r.Part, 0), 100)/100]
	}
	delayed := r
	delayed.Die = false
	delayed.wait()
	return part, func() {
		if r.Die {
			die()
		}
	}, r.Err
}

func (r Rule) wait() {
	if r.Delay > 0 {
		<-time.After(r.Delay)
	}
	if r.Die {
		die()
	}
}

// die is the end of the process, as by kill -9: nothing of it runs on.
func die() {
	if self, err := os.FindProcess(os.Getpid()); err == nil {
		_ = self.Kill()
	}
	select {}
}

// next counts a step and tells whether anything happens there.
func (s *Set) next(point string) (Rule, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.asked == nil {
		s.asked, s.hit = map[string]int{}, map[string]int{}
	}
	s.asked[point]++
	r := s.rules[point]
	if r == nil {
		return Rule{}, false
	}
	if r.Skip > 0 {
		r.Skip--
		return Rule{}, false
	}
	s.hit[point]++
	now := *r
	if r.Times > 0 {
		if r.Times--; r.Times == 0 {
			delete(s.rules, point)
		}
	}
	return now, true
}

// Arm makes rules hold. Each takes the place of an earlier one of its point.
func (s *Set) Arm(rules ...Rule) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rules == nil {
		s.rules = map[string]*Rule{}
	}
	for _, r := range rules {
		s.rules[r.Point] = &r
	}
}

// Clear takes all rules back.
func (s *Set) Clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rules = nil
}

// Counts tells how often each point was asked, and how often something happened there.
func (s *Set) Counts() (asked, hit map[string]int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.asked), maps.Clone(s.hit)
}
