package idem

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dsec-io/dsec/internal/budget"
	"github.com/dsec-io/dsec/internal/edge/disk"
)

// A segment of the journal is full at this size or age. Whole segments are removed when nothing in them holds any more,
// oldest first, so that the journal needs no rewriting.
const (
	segmentSize = 4 << 20
	segmentAge  = time.Hour
)

// Disk is how the journal and the results reach the disk. Each operation has a label, so that a test can let exactly one
// fail or be the last thing the process does.
type Disk interface {
	Write(label, path string, data []byte) error
	AppendTo(label string, f *os.File, data []byte) error
	Remove(label, path string) error
}

// journal has a line for each change of a key's state, in files that are numbered in order. Each line says all that is
// known of its key, so the last one holds. The owner of the Keys' mu has it.
type journal struct {
	dir      string
	disk     Disk
	segments []segment
	file     *os.File // of the last segment; nil until something is written
	torn     bool     // the file may end within a line
}

// segment is one file of the journal.
type segment struct {
	number uint32
	live   int // keys whose latest line is in it
	size   int64
	opened time.Time
}

func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }

// line is an entry's state as the journal has it: words, the last of which is a checksum over the others.
func line(id keyID, e *entry) []byte {
	b := make([]byte, 0, 160)
	b = append(b, byte(e.state), ' ', byte(e.kind), ' ')
	b = hex.AppendEncode(b, id[:])
	b = append(b, ' ')
	b = hex.AppendEncode(b, e.digest[:])
	b = append(b, ' ')
	b = strconv.AppendUint(b, e.project, 16)
	b = append(b, ' ')
	b = strconv.AppendInt(b, e.at, 10)
	b = append(b, ' ')
	if e.ref == "" {
		b = append(b, '-')
	}
	b = append(b, e.ref...)
	b = append(b, ' ')
	b = strconv.AppendUint(b, uint64(e.size), 10)
	b = append(b, ' ')
	b = strconv.AppendUint(b, uint64(e.crc), 16)
	b = append(b, ' ')
	b = strconv.AppendUint(b, uint64(crc32.Checksum(b, castagnoli())), 16)
	return append(b, '\n')
}

const lineWords = 10

// parse reads a line back; it tells whether the line is whole.
func parse(text string) (id keyID, e *entry, ok bool) {
	last := strings.LastIndexByte(text, ' ') + 1
	sum, err := strconv.ParseUint(text[last:], 16, 32)
	if err != nil || uint32(sum) != crc32.Checksum([]byte(text[:last]), castagnoli()) {
		return id, nil, false
	}
	w := strings.Fields(text)
	if len(w) != lineWords || len(w[0]) != 1 || len(w[1]) != 1 {
		return id, nil, false
	}
	e = &entry{state: state(w[0][0]), kind: kind(w[1][0])}
	if e.ref = w[6]; e.ref == "-" {
		e.ref = ""
	}
	var errs [6]error
	var n [2]int
	var size, crc uint64
	n[0], errs[0] = hex.Decode(id[:], []byte(w[2][:min(len(w[2]), 2*len(id))]))
	n[1], errs[1] = hex.Decode(e.digest[:], []byte(w[3][:min(len(w[3]), 2*len(e.digest))]))
	e.project, errs[2] = strconv.ParseUint(w[4], 16, 64)
	e.at, errs[3] = strconv.ParseInt(w[5], 10, 64)
	size, errs[4] = strconv.ParseUint(w[7], 10, 32)
	crc, errs[5] = strconv.ParseUint(w[8], 16, 32)
	e.size, e.crc = uint32(size), uint32(crc)
	return id, e, errors.Join(errs[:]...) == nil && n[0] == len(id) && n[1] == len(e.digest)
}

func (j *journal) path(number uint32) string {
	return filepath.Join(j.dir, fmt.Sprintf("%08d.log", number))
}

func (j *journal) resultPath(id keyID) string {
	return filepath.Join(j.dir, hex.EncodeToString(id[:])+".result")
}

// append writes a line and says which segment has it.
func (j *journal) append(l []byte, now time.Time) (uint32, error) {
	if n := len(j.segments); n == 0 || j.file == nil || j.segments[n-1].size >= segmentSize || now.Sub(j.segments[n-1].opened) >= segmentAge {
		if err := j.rotate(now); err != nil {
			return 0, err
		}
	}
	if j.torn {
		l = append([]byte{'\n'}, l...)
	}
	s := &j.segments[len(j.segments)-1]
	if err := j.disk.AppendTo("keys:append", j.file, l); err != nil {
		j.torn = true
		return 0, fmt.Errorf("append to the journal of keys: %w", err)
	}
	j.torn = false
	s.size += int64(len(l))
	return s.number, nil
}

// rotate begins a new segment.
func (j *journal) rotate(now time.Time) error {
	var number uint32 = 1
	if n := len(j.segments); n > 0 {
		number = j.segments[n-1].number + 1
	}
	f, err := os.OpenFile(j.path(number), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("begin a journal of keys: %w", err)
	}
	if j.file != nil {
		err = j.file.Close()
	}
	j.file, j.torn = f, false
	j.segments = append(j.segments, segment{number: number, opened: now})
	j.trim()
	return err
}

func (j *journal) find(number uint32) *segment {
	i, ok := slices.BinarySearchFunc(j.segments, number, func(s segment, n uint32) int { return int(s.number) - int(n) })
	if !ok {
		return nil
	}
	return &j.segments[i]
}

func (j *journal) ref(number uint32) {
	if s := j.find(number); s != nil {
		s.live++
	}
}

// unref says that a line holds no more; 0 is no segment.
func (j *journal) unref(number uint32) {
	if s := j.find(number); s != nil {
		s.live--
	}
	j.trim()
}

// trim removes the oldest segments as long as nothing in them holds. In any other order a line that takes an older one
// back could go before that.
func (j *journal) trim() {
	for len(j.segments) > 1 && j.segments[0].live <= 0 {
		if err := j.disk.Remove("keys:remove", j.path(j.segments[0].number)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return // tried again with the next one
		}
		j.segments = j.segments[1:]
	}
}

func (j *journal) close() error {
	if j.file == nil {
		return nil
	}
	err := j.file.Close()
	j.file = nil
	return err
}

// saveResult writes a result's file.
func (j *journal) saveResult(id keyID, frames []Frame) (size, crc uint32, err error) {
	raw := encode(frames)
	if err := j.disk.Write("keys:result", j.resultPath(id), raw); err != nil {
		return 0, 0, errors.Join(err, j.disk.Remove("keys:result-remove", j.resultPath(id)))
	}
	return uint32(len(raw)), crc32.Checksum(raw, castagnoli()), nil
}

// loadResult reads a result's file back.
func (j *journal) loadResult(id keyID, size, crc uint32) ([]Frame, error) {
	raw, err := os.ReadFile(j.resultPath(id))
	if err != nil {
		return nil, err
	}
	if uint32(len(raw)) != size || crc32.Checksum(raw, castagnoli()) != crc {
		return nil, errors.New("the result's file is damaged")
	}
	return decode(raw)
}

func (j *journal) removeResult(id keyID) {
	_ = j.disk.Remove("keys:result-remove", j.resultPath(id)) // what stays is removed at the next start
}

// Open reads the journal back. What was under way when the last process ended waits for [Keys.Settle].
func Open(cfg Config) (*Keys, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Disk == nil {
		cfg.Disk = disk.Files{}
	}
	if cfg.Logger == nil {
		cfg.Logger = discard()
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("folder of keys: %w", err)
	}
	k := &Keys{
		cfg: cfg, limits: cfg.Limits.withDefaults(), table: map[keyID]*entry{}, shares: map[uint64]*share{},
		journal: journal{dir: cfg.Dir, disk: cfg.Disk},
	}
	k.memory = budget.New(k.limits.Memory, k.limits.Memory/4)
	files, err := os.ReadDir(cfg.Dir) // in order of their names
	if err != nil {
		return nil, fmt.Errorf("folder of keys: %w", err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	latest, results := map[keyID]*entry{}, map[string]bool{}
	for _, f := range files {
		results[f.Name()] = true
		if number, ok := strings.CutSuffix(f.Name(), ".log"); ok {
			if err := k.journal.read(number, latest); err != nil {
				return nil, err
			}
		}
	}
	k.restoreLocked(latest, results)
	for _, f := range files {
		if name, ok := strings.CutSuffix(f.Name(), ".result"); ok && !k.hasResultLocked(name) {
			_ = cfg.Disk.Remove("keys:result-remove", filepath.Join(cfg.Dir, f.Name())) // tried again at the next start
		}
	}
	return k, nil
}

// read adds what a segment says. A line that can't be read is the end of what a dead process wrote.
func (j *journal) read(name string, latest map[keyID]*entry) error {
	number, err := strconv.ParseUint(name, 10, 32)
	if err != nil {
		return nil //nolint:nilerr // no segment of ours
	}
	raw, err := os.ReadFile(j.path(uint32(number)))
	if err != nil {
		return fmt.Errorf("read the journal of keys: %w", err)
	}
	for text := range bytes.Lines(raw) {
		if id, e, ok := parse(string(bytes.TrimRight(text, "\n"))); ok {
			e.segment = uint32(number)
			latest[id] = e
		}
	}
	j.segments = append(j.segments, segment{number: uint32(number), size: int64(len(raw))})
	return nil
}

// restoreLocked makes the table from each key's latest line, and the files that there are.
func (k *Keys) restoreLocked(latest map[keyID]*entry, files map[string]bool) {
	now := k.cfg.Now()
	ids := make([]keyID, 0, len(latest))
	for id, e := range latest {
		if e.state != stateFree && now.Sub(time.UnixMilli(e.at)) < k.limits.Keep {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b keyID) int { return int(latest[a].at - latest[b].at) })
	for _, id := range ids[max(0, len(ids)-k.limits.AllKeys):] {
		e := latest[id]
		k.journal.ref(e.segment)
		size := e.size
		e.size = 0
		k.enterLocked(id, e)
		if size > 0 && files[filepath.Base(k.journal.resultPath(id))] {
			k.keepResultLocked(id, e, size, e.crc)
		}
	}
	k.journal.trim()
}

func (k *Keys) hasResultLocked(name string) bool {
	raw, err := hex.DecodeString(name)
	if err != nil || len(raw) != len(keyID{}) {
		return false
	}
	e := k.table[keyID(raw)]
	return e != nil && e.size > 0
}
