package idem

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"sync"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/budget"
)

// Header is the name of the HTTP header that carries a key; errors name it as their field.
const Header = "Idempotency-Key"

// keyID is a hash of project and key; digest is one of what was asked for.
type (
	keyID  [16]byte
	digest [16]byte
)

// kind says what a key's request makes, and so where its answer is found again.
type kind byte

const (
	kindCreate  kind = 'c' // a sandbox, whose record tells
	kindCommand kind = 'x' // the output of a command, in a result file
	kindProcess kind = 'p' // a process that the aether knows
	kindCall    kind = 'u' // one message, in a result file
)

// state is how far a key's request has come.
type state byte

const (
	stateBegun state = 'b' // it may have been carried out
	stateDone  state = 'd'
	stateLost  state = 'l' // it was or wasn't carried out, and nothing more is known
	stateFree  state = 'f' // nothing was done, so the key may be used again
)

// Limits bound what is kept. Zero means the default.
type Limits struct {
	Keep       time.Duration // how long a key is kept; default 24 h
	Young      time.Duration // below this age a key isn't dropped for a new one; default 2 min
	Keys       int           // of one project; default 100,000
	AllKeys    int           // default 400,000
	Result     int           // bytes of one result; a larger one isn't kept; default 4 MiB
	Results    int64         // bytes of a project's results; default 64 MiB
	AllResults int64         // default 256 MiB
	Memory     int64         // bytes of inputs and results that wait in memory; a project gets a quarter; default 256 MiB
	Grace      time.Duration // how long a command goes on that no caller waits for; default 60 s
	Untold     time.Duration // how long a sandbox stays that no caller waits for or was told of; default 10 s
}

func (l Limits) withDefaults() Limits {
	l.Keep = cmp.Or(l.Keep, 24*time.Hour)
	l.Young = cmp.Or(l.Young, 2*time.Minute)
	l.Keys = cmp.Or(l.Keys, 100_000)
	l.AllKeys = cmp.Or(l.AllKeys, 400_000)
	l.Result = cmp.Or(l.Result, 4<<20)
	l.Results = cmp.Or(l.Results, 64<<20)
	l.AllResults = cmp.Or(l.AllResults, 256<<20)
	l.Memory = cmp.Or(l.Memory, 256<<20)
	l.Grace = cmp.Or(l.Grace, time.Minute)
	l.Untold = cmp.Or(l.Untold, 10*time.Second)
	return l
}

// Config is what [Keys] are made of. Dir is required; it is made when missing.
type Config struct {
	Dir    string
	Limits Limits
	Logger *slog.Logger     // nil: nowhere
	Now    func() time.Time // nil: the clock
	Disk   Disk             // nil: the disk; tests make it fail
}

// entry is what is known of a key. It is small, for there may be many.
type entry struct {
	digest  digest
	project uint64
	at      int64 // when it was claimed, in ms since 1970
	ref     string
	segment uint32 // of its latest line
	size    uint32 // of its result file; 0: none
	crc     uint32
	kind    kind
	state   state
	run     *Run // while it is under way in this process
}

// share is what a project takes.
type share struct {
	order   []turn // its keys, oldest first; keys that were freed since are in it too
	live    int
	results []turn // likewise, those that have a result file
	bytes   int64
}

// turn is a key's place in an order: it is stale when the key has been claimed again since.
type turn struct {
	id keyID
	at int64
}

// Keys remembers requests by their key.
type Keys struct {
	cfg    Config
	limits Limits
	memory *budget.Budget // what waits in memory: inputs that come, and results until all who follow have them

	// mu guards what follows, and the journal.
	mu      sync.Mutex
	table   map[keyID]*entry
	shares  map[uint64]*share
	bytes   int64
	journal journal
}

// call is a request that has a key.
type call struct {
	project, key string
	kind         kind
	digest       digest
	ref          string // the id of what it will make
}

func (c *call) id() keyID {
	h := sha256.New()
	fmt.Fprintf(h, "%d:%s%s", len(c.project), c.project, c.key)
	return keyID(h.Sum(nil)[:len(keyID{})])
}

func (c *call) projectHash() uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(c.project))
	return h.Sum64()
}

// claim finds what became of a key, or makes the caller the one who carries the request out (ours); the caller then
// ends the run. What is returned otherwise is under way or has ended.
func (k *Keys) claim(c call) (r *Run, ours bool, err error) {
	id, now := c.id(), k.cfg.Now()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.expireLocked(c.projectHash(), now)
	if e := k.table[id]; e != nil {
		r, err := k.knownLocked(id, e, &c, now)
		return r, false, err
	}
	if err := k.roomLocked(c.projectHash(), now); err != nil {
		return nil, false, err
	}
	e := &entry{digest: c.digest, project: c.projectHash(), at: now.UnixMilli(), ref: c.ref, kind: c.kind, state: stateBegun}
	if err := k.writeLocked(id, e); err != nil {
		refused := api.Errorf(api.CodeUnavailable, "the key can't be put on record: %v", err)
		refused.Hint, refused.RetryMS = "nothing was done; try again, or without a key", 1000
		return nil, false, refused
	}
	e.run = newRun(k, id, e, c.project)
	k.enterLocked(id, e)
	return e.run, true, nil
}

// knownLocked is the run of a key that was used before.
func (k *Keys) knownLocked(id keyID, e *entry, c *call, now time.Time) (*Run, error) {
	switch {
	case e.digest != c.digest:
		err := api.FieldError(api.CodeKeyReused, Header, "use a new key for another request",
			"the key was used for another request %v ago", now.Sub(time.UnixMilli(e.at)).Round(time.Second))
		return nil, err
	case e.run != nil:
		return e.run, nil
	case e.state == stateLost:
		return nil, errLost("it isn't known how it ended")
	case e.size == 0 && (e.kind == kindCommand || e.kind == kindCall):
		return nil, errLost("it was too large to be kept, or had to make room")
	}
	r := newRun(k, id, e, c.project)
	r.size, r.crc = e.size, e.crc
	how := e.state
	if how == stateBegun {
		how = stateDone // a process that the last edge was starting when it died: the aether knows whether it runs
	}
	r.endLocked(how, nil)
	return r, nil
}

// errLost is the answer to a repeat that can't be given the first one's.
func errLost(why string) *api.Error {
	err := api.FieldError(api.CodeResultGone, Header, "look what the request has done; to do it again use a new key",
		"the request isn't repeated, and its answer can't be given again: %s", why)
	return err
}

// enterLocked makes an entry known.
func (k *Keys) enterLocked(id keyID, e *entry) {
	k.table[id] = e
	s := k.shares[e.project]
	if s == nil {
		s = &share{}
		k.shares[e.project] = s
	}
	s.order = append(s.order, turn{id, e.at})
	s.live++
	if len(s.order) > 2*s.live+1024 {
		s.order = k.freshLocked(s.order)
	}
}

// freshLocked leaves the stale turns out.
func (k *Keys) freshLocked(order []turn) []turn {
	fresh := make([]turn, 0, len(order)/2)
	for _, t := range order {
		if e := k.table[t.id]; e != nil && e.at == t.at {
			fresh = append(fresh, t)
		}
	}
	return fresh
}

// dropLocked forgets a key.
func (k *Keys) dropLocked(id keyID, e *entry) {
	k.dropResultLocked(id, e)
	delete(k.table, id)
	s := k.shares[e.project]
	if s.live--; s.live == 0 {
		delete(k.shares, e.project)
	}
	k.journal.unref(e.segment)
}

// oldestLocked is a project's oldest key.
func (k *Keys) oldestLocked(s *share) (keyID, *entry) {
	for len(s.order) > 0 {
		t := s.order[0]
		if e := k.table[t.id]; e != nil && e.at == t.at {
			return t.id, e
		}
		s.order = s.order[1:]
	}
	return keyID{}, nil
}

// expireLocked forgets a project's keys whose time is over.
func (k *Keys) expireLocked(project uint64, now time.Time) {
	s := k.shares[project]
	for s != nil {
		id, e := k.oldestLocked(s)
		if e == nil || e.run != nil || now.Sub(time.UnixMilli(e.at)) < k.limits.Keep {
			return
		}
		k.dropLocked(id, e)
	}
}

// roomLocked makes room for one more key of a project.
func (k *Keys) roomLocked(project uint64, now time.Time) error {
	if s := k.shares[project]; s != nil && s.live >= k.limits.Keys && !k.evictLocked(s, now) {
		return errFull(k.limits.Keys, "this project", k.limits.Young)
	}
	if len(k.table) < k.limits.AllKeys {
		return nil
	}
	var most *share
	for _, s := range k.shares {
		if most == nil || s.live > most.live {
			most = s
		}
	}
	if !k.evictLocked(most, now) {
		return errFull(k.limits.AllKeys, "this node", k.limits.Young)
	}
	return nil
}

func errFull(n int, whose string, young time.Duration) *api.Error {
	err := api.FieldError(api.CodeTooMany, Header, "try again later, or send the request without a key",
		"%d requests of %s were given a key within the last %v", n, whose, young)
	err.RetryMS = 1000
	return err
}

// evictLocked forgets a project's oldest key unless that is young.
func (k *Keys) evictLocked(s *share, now time.Time) bool {
	id, e := k.oldestLocked(s)
	if e == nil || e.run != nil || now.Sub(time.UnixMilli(e.at)) < k.limits.Young {
		return false
	}
	k.dropLocked(id, e)
	return true
}

// writeLocked puts an entry's state on record.
func (k *Keys) writeLocked(id keyID, e *entry) error {
	segment, err := k.journal.append(line(id, e), k.cfg.Now())
	if err != nil {
		return err
	}
	k.journal.ref(segment)
	k.journal.unref(e.segment)
	e.segment = segment
	return nil
}

// ending is how a run ends.
type ending struct {
	to     state
	result []Frame // to be kept
	last   []Frame // what callers haven't been given yet
	told   error   // what they are told, where that isn't the answer
}

// end records how a run has ended, before any of its callers is told.
func (k *Keys) end(r *Run, how ending) {
	var size, crc uint32
	if len(how.result) > 0 {
		var err error
		if size, crc, err = k.journal.saveResult(r.id, how.result); err != nil {
			// Those who wait have it; later repeats are told that it is gone.
			k.cfg.Logger.Warn("result under a key not saved", slog.Any("err", err))
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	e := r.entry
	e.state = how.to
	if how.to != stateDone || e.kind != kindCreate {
		e.run = nil // a sandbox is still taken back if nobody gets to know of it
	}
	if size > 0 {
		k.keepResultLocked(r.id, e, size, crc)
	}
	if err := k.writeLocked(r.id, e); err != nil {
		k.cfg.Logger.Warn("end of a request with a key not put on record", slog.Any("err", err))
	}
	if how.to == stateFree {
		k.dropLocked(r.id, e)
	}
	r.endLocked(how.to, how.told, how.last...)
}

// told says that a caller knows what a run has made: it stays.
func (k *Keys) told(r *Run) {
	k.mu.Lock()
	defer k.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state == stateDone {
		r.entry.run = nil
		r.forgetLocked()
	}
}

// keepResultLocked counts a result, for which older ones have to go where there is no room.
func (k *Keys) keepResultLocked(id keyID, e *entry, size, crc uint32) {
	e.size, e.crc = size, crc
	s := k.shares[e.project]
	s.results = append(s.results, turn{id, e.at})
	s.bytes += int64(size)
	k.bytes += int64(size)
	for s.bytes > k.limits.Results && k.dropOldestResultLocked(s) {
	}
	for k.bytes > k.limits.AllResults {
		var most *share
		for _, s := range k.shares {
			if most == nil || s.bytes > most.bytes {
				most = s
			}
		}
		if !k.dropOldestResultLocked(most) {
			break
		}
	}
}

func (k *Keys) dropOldestResultLocked(s *share) bool {
	for len(s.results) > 0 {
		t := s.results[0]
		s.results = s.results[1:]
		if e := k.table[t.id]; e != nil && e.at == t.at && e.size > 0 {
			k.dropResultLocked(t.id, e)
			return true
		}
	}
	return false
}

func (k *Keys) dropResultLocked(id keyID, e *entry) {
	if e.size == 0 {
		return
	}
	s := k.shares[e.project]
	s.bytes -= int64(e.size)
	k.bytes -= int64(e.size)
	e.size = 0
	k.journal.removeResult(id)
}

// Settle decides what became of the sandboxes that were being made when the last process ended: ran tells of one by its
// id. Call it once, when the sandboxes are known and before anything is served.
func (k *Keys) Settle(ran func(sandbox string) bool) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	var faults []error
	for id, e := range k.table {
		if e.state != stateBegun || e.kind == kindProcess {
			continue
		}
		switch {
		case e.kind != kindCreate:
			e.state = stateLost
		case ran(e.ref):
			e.state = stateDone
		default:
			e.state = stateFree
		}
		faults = append(faults, k.writeLocked(id, e))
		if e.state == stateFree {
			k.dropLocked(id, e)
		}
	}
	return errors.Join(faults...)
}

// Sweep forgets keys whose time is over.
func (k *Keys) Sweep() {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.cfg.Now()
	for project := range k.shares {
		k.expireLocked(project, now)
	}
}

// UnderWay counts the requests that are being carried out, or whose answer nobody has taken yet, and who waits for them.
func (k *Keys) UnderWay() (runs, callers int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, e := range k.table {
		if e.run != nil {
			runs++
			callers += e.run.followers()
		}
	}
	return runs, callers
}

// Close closes the journal. No run may be under way.
func (k *Keys) Close() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.journal.close()
}
