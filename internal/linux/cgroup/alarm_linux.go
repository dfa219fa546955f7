package cgroup

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// lookPause is the time between two looks at the boxes of a shard: a tenant that meets its limits all the time
	// costs us a look each time, and no more.
	lookPause = 200 * time.Millisecond
	// lateLook is when it is looked again after the kernel has told: v1 tells before it kills.
	lateLook = 2 * time.Second
	// pollEvery is how often v1's counts of processes are looked at, of which the kernel tells nothing.
	pollEvery = 10 * time.Second
	// firstRest is for how long nothing more of the same is told of a box, longestRest what that grows to.
	firstRest   = time.Second
	longestRest = time.Minute
)

// Hit is what [Box.Guard] tells: a box has met a limit.
type Hit struct {
	OOMKills    int64 // processes that were killed since the last time because memory was full
	PIDsRefused int64 // processes and threads that were refused since the last time
	Total       int64 // of the same kind since the box was made
}

// alarm tells when boxes of a shard meet their limits of memory and processes. The kernel wakes it: an idle box costs no
// processor time, and no descriptor (but where processes are counted by v1: there it looks itself, now and then). A box that goes on and on is told of more and more rarely, a minute apart at last;
// the totals say what came between.
type alarm struct {
	sh      *Shard
	files   []*os.File // what is read from
	inotify int        // their descriptors
	oom     int        // v1 only: an eventfd; else -1
	woken   chan struct{}
	quit    chan struct{}
	tasks   sync.WaitGroup

	// mu guards what follows.
	mu     sync.Mutex
	boxes  map[string]*guarded
	closed bool
}

// guarded is a box that an alarm looks after.
type guarded struct {
	tell    func(Hit)
	watches []int // of inotify
	oom     count
	pids    count
}

// count is how often one limit was met.
type count struct {
	told int64
	rest time.Duration
	next time.Time // nothing is told before
}

// newAlarm makes the alarm of a shard's boxes.
func (s *Shard) newAlarm() (*alarm, error) {
	a := &alarm{sh: s, oom: -1, woken: make(chan struct{}, 1), quit: make(chan struct{}), boxes: map[string]*guarded{}}
	var err error
	if a.inotify, err = unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK); err != nil {
		return nil, fmt.Errorf("watch the groups of %s: %w", s.name, err)
	}
	a.files = append(a.files, os.NewFile(uintptr(a.inotify), "inotify"))
	if s.dirs.Memory >= 0 {
		if a.oom, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
			return nil, errors.Join(fmt.Errorf("watch the memory of %s: %w", s.name, err), a.files[0].Close())
		}
		a.files = append(a.files, os.NewFile(uintptr(a.oom), "eventfd"))
	}
	for _, f := range a.files {
		a.tasks.Go(func() { a.listen(f) })
	}
	a.tasks.Go(a.run)
	return a, nil
}

// close ends the alarm and waits for what it is telling.
func (a *alarm) close() error {
	a.mu.Lock()
	if a.closed {
		a.mu.Unlock()
		return nil
	}
	a.closed = true
	a.mu.Unlock()
	close(a.quit)
	var err error
	for _, f := range a.files {
		err = errors.Join(err, f.Close())
	}
	a.tasks.Wait()
	return err
}

// add has the alarm tell of a box from now on, one call at a time, in a goroutine of the alarm's.
func (a *alarm) add(b *Box, tell func(Hit)) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return os.ErrClosed
	}
	g := &guarded{tell: tell}
	d := a.sh.dirs
	g.oom.told, g.pids.told, _ = b.hits()
	var files []string
	if d.PIDs < 0 {
		files = append(files, "pids.events")
	}
	if d.Memory < 0 {
		files = append(files, "memory.events")
	} else if err := b.subscribe(a.oom); err != nil {
		return err
	}
	a.boxes[b.name] = g
	for _, f := range files {
		w, err := unix.InotifyAddWatch(a.inotify, procPath(d.V2, b.name+"/"+f), unix.IN_MODIFY)
		if err != nil {
			a.removeLocked(b.name)
			return fmt.Errorf("watch %s/%s: %w", a.sh.name, b.name, err)
		}
		g.watches = append(g.watches, w)
	}
	return nil
}

// procPath is a path below a directory that is known by its descriptor.
func procPath(dir int, path string) string { return "/proc/self/fd/" + strconv.Itoa(dir) + "/" + path }

// remove has the alarm forget a box. A watch would keep what the kernel has of its files.
func (a *alarm) remove(b *Box) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.closed {
		a.removeLocked(b.name)
	}
}

func (a *alarm) removeLocked(name string) {
	g := a.boxes[name]
	if g == nil {
		return
	}
	delete(a.boxes, name)
	for _, w := range g.watches {
		_, _ = unix.InotifyRmWatch(a.inotify, uint32(w)) // gone with the group
	}
}

// subscribe has the kernel write to an eventfd when the box, whose memory is v1's, has none left. It goes on until the
// group is removed.
func (b *Box) subscribe(event int) error {
	dir := b.sh.dirs.Memory
	control, err := openAt(dir, b.name+"/memory.oom_control", unix.O_RDONLY)
	if err != nil {
		return fmt.Errorf("watch the memory of %s/%s: %w", b.sh.name, b.name, err)
	}
	defer unix.Close(control)
	return writeFile(dir, b.name+"/cgroup.event_control", strconv.Itoa(event)+" "+strconv.Itoa(control))
}

// hits reads the counters of met limits.
func (b *Box) hits() (oom, pids int64, err error) {
	oom, oerr := b.sh.dirs.OOMKills(b.name)
	pids, perr := readKey(pick(b.sh.dirs.PIDs, b.sh.dirs.V2), b.name+"/pids.events", "max")
	return oom, pids, errors.Join(oerr, perr)
}

// listen wakes the alarm for whatever can be read.
func (a *alarm) listen(f *os.File) {
	buf := make([]byte, 4096)
	for {
		if _, err := f.Read(buf); err != nil {
			return // closed
		}
		// What comes meanwhile is seen in the same look.
		select {
		case <-time.After(lookPause):
		case <-a.quit:
			return
		}
		select {
		case a.woken <- struct{}{}:
		default: // it will look anyway
		}
	}
}

func (a *alarm) run() {
	late := false
	for {
		wait := a.look(time.Now())
		if late {
			wait = sooner(wait, lateLook)
		}
		var again <-chan time.Time
		if wait > 0 {
			again = time.After(wait)
		}
		select {
		case <-a.woken:
			late = true
		case <-again:
			late = false
		case <-a.quit:
			return
		}
	}
}

// look compares all counters with what was told, and returns when to look again for what isn't told yet; 0: when woken.
func (a *alarm) look(now time.Time) (again time.Duration) {
	var tell []func()
	a.mu.Lock()
	for name, g := range a.boxes {
		oom, pids, err := (&Box{sh: a.sh, name: name}).hits()
		if err != nil {
			continue // it is being removed
		}
		for _, c := range []struct {
			count *count
			now   int64
			hit   func(n int64) Hit
		}{
			{&g.oom, oom, func(n int64) Hit { return Hit{OOMKills: n, Total: oom} }},
			{&g.pids, pids, func(n int64) Hit { return Hit{PIDsRefused: n, Total: pids} }},
		} {
			n, wait := c.count.due(c.now, now)
			if n > 0 {
				hit := c.hit(n)
				tell = append(tell, func() { g.tell(hit) })
			}
			again = sooner(again, wait)
		}
	}
	if a.sh.dirs.PIDs >= 0 {
		again = sooner(again, pollEvery)
	}
	a.mu.Unlock()
	for _, f := range tell {
		f()
	}
	return again
}

// sooner is the smaller of two times to wait, 0 being for ever.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}

// due says how much is to be told of a counter now, or how long that has to wait.
func (c *count) due(value int64, now time.Time) (n int64, wait time.Duration) {
	if value <= c.told {
		return 0, 0
	}
	if wait := c.next.Sub(now); wait > 0 {
		return 0, wait
	}
	n = value - c.told
	if now.Sub(c.next) > longestRest { // it was quiet for long
		c.rest = 0
	}
	c.rest = min(max(2*c.rest, firstRest), longestRest)
	c.told, c.next = value, now.Add(c.rest)
	return n, 0
}
