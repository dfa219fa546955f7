package main

import (
	"fmt"
	"sync"
	"time"
)

const (
	progressDelay = 500 * time.Millisecond // what is faster needs no progress
	progressTick  = 100 * time.Millisecond
)

// progress shows that something takes its time, on a terminal only. The returned function removes it; it waits until
// nothing more is written.
func (a *app) progress(what string) (done func()) {
	if _, tty := terminal(a.stderr); !tty {
		return func() {}
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		timer := time.NewTimer(progressDelay)
		defer timer.Stop()
		for i := 0; ; i++ {
			select {
			case <-timer.C:
				fmt.Fprintf(a.stderr, "\r%c %s\x1b[K", `|/-\`[i%4], what)
				timer.Reset(progressTick)
			case <-stop:
				if i > 0 {
					fmt.Fprint(a.stderr, "\r\x1b[K")
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
