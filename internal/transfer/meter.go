package transfer

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Meter counts the bytes of a copy.
type Meter struct{ done, total atomic.Int64 }

// expect says how many there will be.
func (m *Meter) expect(n int64) { m.total.Store(n) }

func (m *Meter) reader(r io.Reader) io.Reader { return &metered{r, m} }

type metered struct {
	io.Reader
	m *Meter
}

// Read implements [io.Reader].
func (r *metered) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.m.done.Add(int64(n))
	return n, err
}

const barWidth = 24

// Line is how far the copy is, with a bar where it's known how much there is.
func (m *Meter) Line(took time.Duration) string {
	done, total := m.done.Load(), m.total.Load()
	rate := int64(float64(done) / max(took.Seconds(), 1e-3))
	text := fmt.Sprintf("%s, %s/s", bytesText(done), bytesText(rate))
	if total <= 0 {
		return text
	}
	full := int(min(barWidth, done*barWidth/total))
	return fmt.Sprintf("[%s%s] %3d%% %s", strings.Repeat("#", full), strings.Repeat(" ", barWidth-full), min(100, done*100/total), text)
}

// bytesText is a size for people.
func bytesText(n int64) string {
	const unit = 1 << 10
	v := float64(n)
	for _, name := range []string{"B", "KiB", "MiB"} {
		if v < unit {
			return strings.TrimSuffix(fmt.Sprintf("%.1f", v), ".0") + " " + name
		}
		v /= unit
	}
	return fmt.Sprintf("%.1f GiB", v)
}

// Show writes how far the copy is to a terminal, from delay on and again at each tick. The returned function removes it;
// it waits until nothing more is written.
func (m *Meter) Show(w io.Writer, what string, delay, tick time.Duration) (done func()) {
	stop := make(chan struct{})
	start := time.Now()
	var wg sync.WaitGroup
	wg.Go(func() {
		timer := time.NewTimer(delay)
		defer timer.Stop()
		for shown := false; ; shown = true {
			select {
			case <-timer.C:
				fmt.Fprintf(w, "\r%s %s\x1b[K", what, m.Line(time.Since(start)))
				timer.Reset(tick)
			case <-stop:
				if shown {
					fmt.Fprint(w, "\r\x1b[K")
				}
				return
			}
		}
	})
	return func() {
		close(stop)
		wg.Wait()
	}
}
