package cli

import (
	"fmt"
	"sync"
	"time"
)

// How progress is shown.
const (
	ProgressDelay = 500 * time.Millisecond // what is faster needs no progress
	ProgressTick  = 100 * time.Millisecond
)

// Progress shows that something takes its time, on a terminal only. The returned function removes it; it waits until
// nothing more is written.
func (a *App) Progress(what string) (done func()) {
	if _, tty := Terminal(a.Stderr); !tty {
		return func() {}
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		timer := time.NewTimer(ProgressDelay)
		defer timer.Stop()
		for i := 0; ; i++ {
			select {
			case <-timer.C:
				fmt.Fprintf(a.Stderr, "\r%c %s\x1b[K", `|/-\`[i%4], what)
				timer.Reset(ProgressTick)
			case <-stop:
				if i > 0 {
					fmt.Fprint(a.Stderr, "\r\x1b[K")
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
