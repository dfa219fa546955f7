package journal

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"golang.org/x/sys/unix"
)

// Windows of a journal, in bytes.
const (
	DefaultKeep  = 1 << 20  // kept of an output when the caller doesn't say: half at the start, half at the end
	MaxKeep      = 64 << 20 // the most a caller may ask for
	liveWindow   = 16 << 20 // how far a living reader may be behind before it is told of a gap
	losslessLead = 1 << 20  // how far a lossless process may be ahead of its reader
	losslessTail = 4 << 20  // kept behind a lossless reader, for one that attaches again
	punchStep    = 1 << 20  // holes are punched in steps of this, because each one costs a system call
	pageSize     = 4096
)

// Journal is one output of a process: a memfd that the kernel fills by splice. Its size is the only counter of what has
// been taken from the process. A journal keeps the first and the last part of the output; between them is a hole that
// grows. Readers ask by offset and are told of the hole.
type Journal struct {
	fd       int
	head     int64 // bytes kept at the start
	tail     int64 // bytes kept at the end, at least
	lossless bool  // the process waits for its readers

	// mu guards what follows. It isn't held over reads and writes of the file.
	mu      sync.Mutex
	size    int64 // bytes stored so far
	holeEnd int64 // [head, holeEnd) is gone; never below head
	mark    int64 // where the slowest reader of a lossless journal is, or the last one was
	over    bool  // the command has ended
	ended   bool  // nothing more will come
	quiet   bool  // after the command's end there was a moment with nothing left to take
	cursors map[*Cursor]struct{}
	resume  chan struct{} // closed when a paused pump may look again; nil: none waits
}

// Cursor is a reader's place in a journal.
type Cursor struct{ pos int64 }

// Options of a journal.
type Options struct {
	Keep     int64 // bytes kept, half at the start and half at the end; 0: [DefaultKeep]
	Lossless bool  // the process waits for its readers
}

// New makes an empty journal.
func New(o Options) (*Journal, error) {
	fd, err := unix.MemfdCreate("journal", unix.MFD_CLOEXEC|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // Linux before 6.3
		fd, err = unix.MemfdCreate("journal", unix.MFD_CLOEXEC)
	}
	if err != nil {
		return nil, fmt.Errorf("make journal: %w", err)
	}
	return open(fd, o), nil
}

// Restore makes a journal of the memfd of an earlier one, which it takes over. Of a lossless journal's reader only this is
// known: it was at most as far behind as such a reader may be.
func Restore(fd int, o Options) (*Journal, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	j := open(fd, o)
	j.size, j.mark = st.Size, max(0, st.Size-losslessLead)
	j.restoreHole()
	return j, nil
}

func open(fd int, o Options) *Journal {
	if o.Keep <= 0 {
		o.Keep = DefaultKeep
	}
	keep := min(o.Keep, MaxKeep)
	j := &Journal{fd: fd, head: keep / 2, tail: keep - keep/2, lossless: o.Lossless}
	j.holeEnd = j.head
	return j
}

// FD is the memfd, for the keeper; it stays the journal's.
func (j *Journal) FD() int { return j.fd }

// Kept is how many bytes at the start and at the end are kept at least.
func (j *Journal) Kept() (head, tail int64) { return j.head, j.tail }

// Store appends output that was read already.
func (j *Journal) Store(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	n, err := unix.Pwrite(j.fd, b, j.Total())
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	if err != nil {
		return fmt.Errorf("store output: %w", err)
	}
	j.grew(int64(n))
	return nil
}

// restoreHole finds the hole that an earlier shard has punched: the first stored byte at or after the head. A process
// that wrote nothing can't be told from a hole by content, but the file system can: a hole has no pages.
func (j *Journal) restoreHole() {
	if j.size <= j.head {
		return
	}
	// The page that the head ends in may be kept whole, so look from the next one on.
	from := (j.head + pageSize - 1) / pageSize * pageSize
	if from >= j.size {
		return
	}
	hole, err := unix.Seek(j.fd, from, unix.SEEK_HOLE)
	if err != nil || hole != from {
		return // data follows the head: nothing has been punched
	}
	data, err := unix.Seek(j.fd, from, unix.SEEK_DATA)
	if err != nil {
		data = j.size // ENXIO: a hole up to the end
	}
	j.holeEnd = max(data, j.head)
}

// Close gives the memory back. No reader or pump is left.
func (j *Journal) Close() { _ = unix.Close(j.fd) }

// grew records n more bytes and punches what is no longer kept.
func (j *Journal) grew(n int64) {
	j.mu.Lock()
	j.size += n
	from, to := j.trimLocked(punchStep)
	j.mu.Unlock()
	j.punch(from, to)
}

// Trim punches everything beyond the window, for a journal whose process has ended.
func (j *Journal) Trim() {
	j.mu.Lock()
	from, to := j.trimLocked(pageSize)
	j.mu.Unlock()
	j.punch(from, to)
}

// trimLocked moves the hole's end forward if that frees at least step bytes and returns the range to punch. The end is
// moved before the bytes go, and readers look at it after they have read: nobody takes zeros for output.
func (j *Journal) trimLocked(step int64) (from, to int64) {
	keepFrom := j.size - j.tail
	for c := range j.cursors {
		keepFrom = min(keepFrom, max(c.pos, j.size-liveWindow))
	}
	if j.lossless && !j.quiet {
		keepFrom = min(keepFrom, j.markLocked()-losslessTail)
	}
	keepFrom = keepFrom / pageSize * pageSize
	if keepFrom < j.holeEnd+step {
		return 0, 0
	}
	from, j.holeEnd = j.holeEnd, keepFrom
	return from, keepFrom
}

func (j *Journal) punch(from, to int64) {
	if to <= from {
		return
	}
	// Part of a page at the front becomes zeros, which readers never see; the rest is freed. An error costs memory only.
	_ = unix.Fallocate(j.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, from, to-from)
}

// ReadAt reads stored bytes at off. gap > 0: that many bytes from off on are gone. n = 0 and gap = 0: there is nothing
// at off yet.
func (j *Journal) ReadAt(p []byte, off int64) (n int, gap int64, err error) {
	j.mu.Lock()
	size, holeEnd := j.size, j.holeEnd
	j.mu.Unlock()
	if off >= size {
		return 0, 0, nil
	}
	if off >= j.head && off < holeEnd {
		return 0, min(holeEnd, size) - off, nil
	}
	want := min(int64(len(p)), size-off)
	if off < j.head && holeEnd > j.head {
		want = min(want, j.head-off)
	}
	n, err = unix.Pread(j.fd, p[:want], off)
	if err != nil {
		return 0, 0, fmt.Errorf("read journal: %w", err)
	}
	j.mu.Lock()
	holeEnd = j.holeEnd
	j.mu.Unlock()
	if off >= j.head && off < holeEnd {
		return 0, holeEnd - off, nil // it went while we read
	}
	if off < j.head && off+int64(n) > j.head && holeEnd > j.head {
		n = int(j.head - off)
	}
	return n, 0, nil
}

// Total is the number of bytes that the process has written so far.
func (j *Journal) Total() int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.size
}

// Ended tells whether every writer has gone.
func (j *Journal) Ended() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.ended
}

// End tells that nothing will come: there is no source.
func (j *Journal) End() { j.setQuiet(true) }

// Settled tells whether all output that came before the command's end is stored.
func (j *Journal) Settled() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.ended || j.quiet
}

// paused returns a channel to wait on while a lossless process is too far ahead of its slowest reader, nil when it may
// write on. With no reader yet, or none any more, the last one's place counts.
func (j *Journal) paused() <-chan struct{} {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.lossless || j.quiet || j.over || j.size-j.markLocked() < losslessLead {
		return nil
	}
	if j.resume == nil {
		j.resume = make(chan struct{})
	}
	return j.resume
}

func (j *Journal) markLocked() int64 {
	first := true
	for c := range j.cursors {
		if first || c.pos < j.mark {
			j.mark, first = c.pos, false
		}
	}
	return j.mark
}

// Attach adds a reader at pos.
func (j *Journal) Attach(pos int64) *Cursor {
	c := &Cursor{pos: pos}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.cursors == nil {
		j.cursors = make(map[*Cursor]struct{})
	}
	j.cursors[c] = struct{}{}
	return c
}

// Move tells that the reader has sent everything before pos.
func (j *Journal) Move(c *Cursor, pos int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	c.pos = pos
	j.wakeLocked()
}

// Detach removes a reader.
func (j *Journal) Detach(c *Cursor) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.markLocked()
	delete(j.cursors, c)
	j.wakeLocked()
}

// SetOver tells that the command has ended: what it left in its pipes isn't held back by a reader.
func (j *Journal) SetOver() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.over = true
	j.wakeLocked()
}

// setQuiet records that everything from before the command's end is stored. A lossless journal becomes an ordinary
// one: what background children write later must not stop for a reader who has been told of the end.
func (j *Journal) setQuiet(ended bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.quiet = true
	j.ended = j.ended || ended
	j.wakeLocked()
}

func (j *Journal) wakeLocked() {
	if j.resume != nil {
		close(j.resume)
		j.resume = nil
	}
}
