package cgroup

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// ear keeps what an alarm has told of a box.
type ear struct {
	mu   sync.Mutex
	hits []Hit
}

func (e *ear) tell(h Hit) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.hits = append(e.hits, h)
}

func (e *ear) heard() []Hit {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]Hit(nil), e.hits...)
}

func newTestAlarm(t *testing.T, s *Shard) *alarm {
	t.Helper()
	a, err := s.newAlarm()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(a.close(), a.close()); err != nil {
			t.Error(err)
		}
	})
	return a
}

func guard(t *testing.T, a *alarm, b *Box) *ear {
	t.Helper()
	e := &ear{}
	if err := a.add(b, e.tell); err != nil {
		t.Fatal(err)
	}
	return e
}

// TestAlarmTellsOfLimitsThatAreMet makes two boxes meet one limit each, beside one that meets none.
func TestAlarmTellsOfLimitsThatAreMet(t *testing.T) {
	s := shard(t, driver(t, "alarm"), "shard-0", 0)
	full := box(t, s, "full", Limits{Memory: 64 * mib})
	many := box(t, s, "many", Limits{PIDs: 8})
	quiet := box(t, s, "quiet", Limits{Memory: 64 * mib, PIDs: 8})
	// What was before isn't told.
	if err := command(t, full, "/proc/self/exe", partHog, "256").Run(); err == nil {
		t.Fatal("no limit")
	}
	before := usage(t, full).OOMKills
	a := newTestAlarm(t, s)
	ofFull, ofMany, ofQuiet := guard(t, a, full), guard(t, a, many), guard(t, a, quiet)
	if err := command(t, full, "/proc/self/exe", partHog, "256").Run(); err == nil {
		t.Fatal("no limit")
	}
	c := command(t, many, "/bin/sh", "-c", "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 1000 & done; wait")
	c.Stderr = nil // it complains about the forks
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "both are told", func() bool { return len(ofFull.heard()) > 0 && len(ofMany.heard()) > 0 })
	if h := ofFull.heard()[0]; h.OOMKills < 1 || h.Total != before+h.OOMKills || h.PIDsRefused != 0 {
		t.Errorf("full, with %d kills before: %+v", before, h)
	}
	if h := ofMany.heard()[0]; h.PIDsRefused < 1 || h.Total < h.PIDsRefused || h.OOMKills != 0 {
		t.Errorf("many: %+v", h)
	}
	if h := ofQuiet.heard(); len(h) > 0 || len(ofFull.heard()) > 2 {
		t.Errorf("quiet: %+v, full: %+v", h, ofFull.heard())
	}
	for _, b := range []*Box{full, many, quiet} {
		a.remove(b)
		if err := b.Remove(t.Context()); err != nil {
			t.Error(err)
		}
	}
	_ = c.Wait()
}

// TestAlarmOnV2 has files stand in for a machine whose controllers are all v2's.
func TestAlarmOnV2(t *testing.T) {
	fd, dir := plant(t, v2Files("box"))
	d, err := newDriver(&roots{at: Dirs{V2: fd, Memory: -1, CPU: -1, PIDs: -1}}, "i")
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	s := shard(t, d, "shard-0", os.Getuid())
	b, err := s.OpenBox("box")
	if err != nil {
		t.Fatal(err)
	}
	a := newTestAlarm(t, s)
	e := guard(t, a, b)
	for file, text := range map[string]string{"memory.events": "oom 9\noom_kill 8\n", "pids.events": "max 8\n"} {
		if err := os.WriteFile(filepath.Join(dir, "dsec-i/shard-0/box", file), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "both are told", func() bool { return len(e.heard()) >= 2 })
	for _, h := range e.heard() {
		if h != (Hit{OOMKills: 3, Total: 8}) && h != (Hit{PIDsRefused: 1, Total: 8}) {
			t.Errorf("told %+v", h)
		}
	}
	a.remove(b)
	a.remove(b)
	if err := a.close(); err != nil {
		t.Error(err)
	}
	if err := a.add(b, e.tell); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Add after Close: %v", err)
	}
}

// TestAlarmRests: what goes on and on is told more and more rarely, and completely.
func TestAlarmRests(t *testing.T) {
	now := time.Now()
	var c count
	told, times := int64(0), 0
	value := int64(0)
	const minutes = 30
	for end := now.Add(minutes * time.Minute); now.Before(end); now = now.Add(lookPause) {
		value += 100
		n, wait := c.due(value, now)
		if n > 0 {
			told += n
			times++
		}
		if (n > 0) == (wait > 0) {
			t.Fatalf("told %d, to wait %v", n, wait)
		}
	}
	if times < minutes || times > minutes+10 {
		t.Errorf("told %d times in %d minutes", times, minutes)
	}
	now = c.next
	if n, wait := c.due(value, now); told+n != value || wait != 0 {
		t.Errorf("%d of %d told", told+n, value)
	}
	// After a quiet time it is told at once, and soon again.
	now = c.next.Add(longestRest + 1)
	if n, _ := c.due(value+1, now); n != 1 {
		t.Error("not told at once")
	}
	if n, wait := c.due(value+2, now); n != 0 || wait != firstRest {
		t.Errorf("told %d, again in %v", n, wait)
	}
}
