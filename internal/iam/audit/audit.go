// Package audit keeps the audit log: what was decided about requests, in files of bounded size.
//
// There are three kinds of records, each with files of its own, so that a flood of one can't push out another: changes
// of projects, tokens and images; what was done in sandboxes; and refusals. A record is a line of JSON. [Log.Add] only
// puts it into memory, which costs about a microsecond; a goroutine writes now and then, and [Log.Flush] at once.
// kill -9 loses what wasn't written, at most [WriteEvery]. A record that can't be kept is counted in the next one.
//
// A Log is safe for concurrent use.
package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dsec-io/dsec/api"
)

// Kind is a kind of record, which has its own room.
type Kind int

// The kinds.
const (
	Control Kind = iota // projects, tokens, images: few, and worth keeping long
	Use                 // what was done in sandboxes
	Refusal
	kinds
)

const (
	// WriteEvery is how long a record may be in memory only.
	WriteEvery = 200 * time.Millisecond
	// maxWaiting bounds what waits to be written, in bytes of a kind: over it records are lost, and counted.
	maxWaiting = 2 << 20
	fileMode   = 0o600
)

// Config says where a [Log] lives. Dir is required.
type Config struct {
	Dir      string // made if missing, 0700
	FileSize int64  // bytes of a file before the next is begun; default 4 MiB
	Files    int    // how many of a kind are kept; default 8
	Logger   *slog.Logger
}

// Log is an open audit log.
type Log struct {
	cfg  Config
	wake chan struct{} // tells the writer that there is something to write
	full chan struct{} // and that it's much
	stop chan struct{}
	done sync.WaitGroup
	said bool // that the disk fails; the writer's own

	mu   sync.Mutex // guards the records that wait
	seq  uint64
	tail [kinds]tail

	disk  sync.Mutex // held while files are written or removed; never together with mu but to take what waits
	files [kinds]file
}

// tail is what waits to be written.
type tail struct {
	lines []byte
	told  int64 // what the lines say was lost before
	lost  int64 // what no line says yet
}

// file is the file that is written to.
type file struct {
	name string
	f    *os.File
	size int64
	next uint64 // the number of the next one
}

func (k Kind) prefix() string { return [...]string{"control-", "use-", "refusal-"}[k] }

// Open opens a log and goes on after the last record that is there.
func Open(cfg Config) (*Log, error) {
	if cfg.FileSize <= 0 {
		cfg.FileSize = 4 << 20
	}
	if cfg.Files <= 0 {
		cfg.Files = 8
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("open audit log: %w", err)
	}
	l := &Log{cfg: cfg, wake: make(chan struct{}, 1), full: make(chan struct{}, 1), stop: make(chan struct{})}
	for k := range kinds {
		names, err := l.names(k)
		if err != nil {
			return nil, fmt.Errorf("open audit log: %w", err)
		}
		if len(names) == 0 {
			continue
		}
		last := names[len(names)-1]
		n, err := k.number(last)
		if err != nil {
			return nil, fmt.Errorf("open audit log: %w", err)
		}
		// A file is never written to again: its last line may be half of one.
		l.files[k].next = n + 1
		l.seq = max(l.seq, lastSeq(filepath.Join(cfg.Dir, last)))
	}
	l.done.Go(l.write)
	return l, nil
}

const suffix = ".jsonl"

// name is what a kind's nth file is called.
func (k Kind) name(n uint64) string { return fmt.Sprintf("%s%012d%s", k.prefix(), n, suffix) }

// number is the number in a file's name.
func (k Kind) number(name string) (uint64, error) {
	return strconv.ParseUint(strings.TrimSuffix(strings.TrimPrefix(name, k.prefix()), suffix), 10, 64)
}

// names are the files of a kind, oldest first.
func (l *Log) names(k Kind) ([]string, error) {
	entries, err := os.ReadDir(l.cfg.Dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if n, err := k.number(e.Name()); err == nil && k.name(n) == e.Name() { // what others have put there is left alone
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names, nil
}

// lastSeq is the number of the last whole record of a file.
func lastSeq(path string) uint64 {
	var last uint64
	_ = eachLine(path, func(line []byte) bool { // what can't be read has no number
		var rec api.AuditRecord
		if json.Unmarshal(line, &rec) != nil {
			return true
		}
		last = rec.Seq
		return false
	})
	return last
}

// Add takes a record, and gives it its number; a time, if it has none.
func (l *Log) Add(k Kind, rec api.AuditRecord) {
	if rec.Time.IsZero() {
		rec.Time = time.Now().UTC()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	t := &l.tail[k]
	if len(t.lines) >= maxWaiting {
		t.lost++
		return
	}
	l.seq++
	rec.Seq = l.seq
	rec.Suppressed += t.lost
	t.told, t.lost = t.told+rec.Suppressed, 0
	t.lines = appendRecord(t.lines, &rec)
	signal(l.wake)
	if len(t.lines) > maxWaiting/4 {
		signal(l.full)
	}
}

func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default: // it's known already
	}
}

// write writes what waits, until the log is closed. While nothing happens it sleeps.
func (l *Log) write() {
	pause := time.NewTimer(WriteEvery)
	defer pause.Stop()
	for {
		select {
		case <-l.stop:
			return
		case <-l.wake:
		}
		pause.Reset(WriteEvery)
		select {
		case <-l.stop:
			return
		case <-pause.C:
		case <-l.full:
		}
		err := l.Flush()
		if err != nil && !l.said {
			l.cfg.Logger.Error("the audit log can't be written", slog.Any("err", err))
		}
		l.said = err != nil
	}
}

// Flush writes what waits.
func (l *Log) Flush() error {
	l.disk.Lock()
	defer l.disk.Unlock()
	var errs error
	for k := range kinds {
		l.mu.Lock()
		lines, told := l.tail[k].lines, l.tail[k].told
		l.tail[k].lines, l.tail[k].told = nil, 0
		l.mu.Unlock()
		if len(lines) == 0 {
			continue
		}
		if err := l.append(k, lines); err != nil {
			errs = errors.Join(errs, fmt.Errorf("write audit log: %w", err))
			l.mu.Lock()
			l.tail[k].lost += int64(bytes.Count(lines, []byte{'\n'})) + told
			l.mu.Unlock()
		}
	}
	return errs
}

// append writes lines of a kind; the caller holds disk.
func (l *Log) append(k Kind, lines []byte) error {
	f := &l.files[k]
	if f.f != nil && f.size >= l.cfg.FileSize {
		err := f.f.Close()
		f.f = nil
		if err != nil {
			return err
		}
	}
	if f.f == nil {
		name := k.name(f.next)
		opened, err := os.OpenFile(filepath.Join(l.cfg.Dir, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, fileMode)
		if err != nil {
			return err
		}
		f.f, f.name, f.size = opened, name, 0
		f.next++
		if err := l.prune(k); err != nil {
			return err
		}
	}
	if _, err := f.f.Write(lines); err != nil {
		// The rest of a line must not run into the next one. Another file would push out an old one, for nothing.
		cut := f.f.Truncate(f.size)
		if cut != nil {
			cut = errors.Join(cut, f.f.Close())
			f.f = nil
		}
		return errors.Join(err, cut)
	}
	f.size += int64(len(lines))
	return nil
}

// prune removes the oldest files of a kind: those over the number, and small ones that many starts have left only when
// they are together with the others over the size.
func (l *Log) prune(k Kind) error {
	names, err := l.names(k)
	if err != nil {
		return err
	}
	room := l.cfg.FileSize * int64(l.cfg.Files)
	for i, name := range slices.Backward(names) {
		path := filepath.Join(l.cfg.Dir, name)
		info, err := os.Stat(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		room -= max(info.Size(), minFile)
		if (room < 0 || len(names)-i > maxFiles) && name != l.files[k].name {
			if err := os.Remove(path); err != nil {
				return err
			}
		}
	}
	return nil
}

const (
	minFile  = 4096 // what an empty file costs
	maxFiles = 512  // of a kind, however small
)

// Close writes what waits and closes the files.
func (l *Log) Close() error {
	close(l.stop)
	l.done.Wait()
	err := l.Flush()
	l.disk.Lock()
	defer l.disk.Unlock()
	for k := range l.files {
		if f := l.files[k].f; f != nil {
			err = errors.Join(err, f.Close())
			l.files[k].f = nil
		}
	}
	return err
}
