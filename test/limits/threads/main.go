// Threads starts as many threads as its argument says, has all of them run at once, and tells how many did.
package main

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
)

func main() {
	n, err := strconv.Atoi(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
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
