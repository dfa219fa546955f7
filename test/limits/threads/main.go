// Command threads starts as many threads as its argument says, has all of them run at once, and tells whether they did. With
// "terminals" before the number it opens so many terminals, tells how many it
// got, and keeps them until its input ends.
package main

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
)

func main() {
	n, err := strconv.Atoi(os.Args[len(os.Args)-1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	if os.Args[1] == "terminals" {
		terminals(n)
		return
	}
	debug.SetMaxThreads(n + 100)
	var met sync.WaitGroup
	met.Add(n)
	over := make(chan struct{})
	defer close(over)
	for range n {
		go func() {
			runtime.LockOSThread()
			met.Done()
			<-over
		}()
	}
	met.Wait()
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	fmt.Println(len(tasks) >= n)
}

func terminals(n int) {
	got := 0
	for range n {
		if _, err := os.OpenFile("/dev/pts/ptmx", os.O_RDWR, 0); err != nil {
			fmt.Fprintln(os.Stderr, err)
			break
		}
		got++
	}
	fmt.Println("got", got)
	_, _ = io.Copy(io.Discard, os.Stdin)
}
