package journal

import (
	"bytes"
	"os"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// pattern is what a byte at an offset must be.
func pattern(off int64) byte { return byte(off>>12) ^ byte(off*7) | 1 } // never 0: that is what holes read as

func chunk(off int64, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = pattern(off + int64(i))
	}
	return b
}

// readAll reads a journal from off as a follower does, and checks every byte. It returns the missing ranges.
func readAll(t interface{ Fatalf(string, ...any) }, j *Journal, off int64) (gaps [][2]int64) {
	buf := make([]byte, 50_000)
	for {
		n, gap, err := j.ReadAt(buf, off)
		if err != nil {
			t.Fatalf("ReadAt(%d) = %v", off, err)
		}
		if gap > 0 {
			gaps = append(gaps, [2]int64{off, off + gap})
			off += gap
			continue
		}
		if n == 0 {
			if off != j.Total() {
				t.Fatalf("reading ended at %d of %d", off, j.Total())
			}
			return gaps
		}
		if !bytes.Equal(buf[:n], chunk(off, n)) {
			t.Fatalf("wrong bytes at %d", off)
		}
		off += int64(n)
	}
}

func TestJournalKeepsItsEndsAndSaysWhatIsMissing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		keep := rapid.Int64Range(1, 3<<20).Draw(t, "keep")
		j, err := New(Options{Keep: keep})
		if err != nil {
			t.Fatalf("New() = %v", err)
		}
		defer j.Close()
		for range rapid.IntRange(0, 12).Draw(t, "writes") {
			n := rapid.IntRange(0, 1<<20).Draw(t, "bytes")
			if err := j.Store(chunk(j.Total(), n)); err != nil {
				t.Fatalf("Store() = %v", err)
			}
		}
		j.Trim()
		head, tail := j.Kept()
		check := func(j *Journal) {
			for _, g := range readAll(t, j, 0) {
				if g[0] < head || g[1] > j.Total()-tail {
					t.Fatalf("gap %v of %d bytes, kept are %d and %d", g, j.Total(), head, tail)
				}
			}
			readAll(t, j, rapid.Int64Range(0, j.Total()).Draw(t, "offset"))
		}
		check(j)
		var st unix.Stat_t
		if err := unix.Fstat(j.FD(), &st); err != nil {
			t.Fatalf("%v", err)
		}
		if used := st.Blocks * 512; used > keep+4*pageSize {
			t.Fatalf("%d bytes of memory for %d kept", used, keep)
		}
		// Who takes the memfd over sees the same.
		fd, err := unix.FcntlInt(uintptr(j.FD()), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatalf("%v", err)
		}
		again, err := Restore(fd, Options{Keep: keep})
		if err != nil {
			t.Fatalf("Restore() = %v", err)
		}
		defer again.Close()
		if again.Total() != j.Total() {
			t.Fatalf("restored %d of %d bytes", again.Total(), j.Total())
		}
		check(again)
	})
}

func TestLivingReaderWidensTheWindow(t *testing.T) {
	j, err := New(Options{Keep: 2 * pageSize})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	c := j.Attach(0)
	const step = 1 << 20
	for range 2 * liveWindow / step {
		if err := j.Store(chunk(j.Total(), step)); err != nil {
			t.Fatal(err)
		}
	}
	gaps := readAll(t, j, 0)
	if len(gaps) != 1 || j.Total()-gaps[0][1] < liveWindow {
		t.Errorf("gaps %v of %d bytes", gaps, j.Total())
	}
	j.Move(c, j.Total())
	j.Detach(c)
	j.Trim()
	if gaps = readAll(t, j, 0); len(gaps) != 1 || gaps[0] != [2]int64{pageSize, j.Total() - pageSize} {
		t.Errorf("gaps without a reader %v", gaps)
	}
}

func TestPump(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.FcntlInt(r.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	src, err := NewSource(fd)
	if err != nil {
		t.Fatal(err)
	}
	j, err := New(Options{Keep: 8 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	done := make(chan struct{})
	grew := make(chan struct{}, 1)
	go func() {
		defer close(done)
		Pump(src, j, nil, func() {
			select {
			case grew <- struct{}{}:
			default:
			}
		})
	}()
	const total = 3 << 20
	for off := int64(0); off < total; off += 10_007 {
		if _, err := w.Write(chunk(off, int(min(10_007, total-off)))); err != nil {
			t.Fatal(err)
		}
	}
	// The command has ended, a child of it still holds the pipe.
	src.Settle()
	for !j.Settled() {
		<-grew
	}
	if j.Ended() || j.Total() != total {
		t.Errorf("ended %v with %d bytes", j.Ended(), j.Total())
	}
	if _, err := w.Write(chunk(total, 5)); err != nil {
		t.Fatal(err)
	}
	w.Close()
	<-done
	src.Shut()
	src.Free()
	if !j.Ended() || j.Total() != total+5 || len(readAll(t, j, 0)) != 0 {
		t.Errorf("ended %v with %d bytes", j.Ended(), j.Total())
	}
}

func TestLosslessPumpWaits(t *testing.T) {
	j, err := New(Options{Lossless: true})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	if err := j.Store(chunk(0, losslessLead)); err != nil {
		t.Fatal(err)
	}
	wait := j.paused()
	if wait == nil {
		t.Fatal("no pause without a reader")
	}
	c := j.Attach(0)
	if j.paused() == nil {
		t.Error("no pause with a reader that has read nothing")
	}
	j.Move(c, 1)
	<-wait
	if j.paused() != nil {
		t.Error("paused although the reader has moved")
	}
	j.Detach(c)
	if err := j.Store(chunk(losslessLead, 1)); err != nil {
		t.Fatal(err)
	}
	if wait = j.paused(); wait == nil {
		t.Error("no pause after the reader has gone")
	}
	j.SetOver()
	<-wait
	if j.paused() != nil {
		t.Error("an ended command's output is held back")
	}
}
