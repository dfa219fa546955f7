// Command left says what the kernel still holds of an instance of DSec, and exits with 0 if that's nothing:
//
//	go run ./hack/left INSTANCE DATA
//
// It asks the kernel and not DSec: control groups, processes in them, and mounts at or below the data folder.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/dsec-io/dsec/internal/leakcheck"
)

// settle is how long the kernel may take to free what has ended.
const settle = time.Minute

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "left:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	if len(args) != 2 || args[0] == "" || args[1] == "" {
		return fmt.Errorf("want INSTANCE DATA, not %q", args)
	}
	ctx, cancel := context.WithTimeout(context.Background(), settle)
	defer cancel()
	left, err := leakcheck.Wait(ctx, leakcheck.Snapshot{}, func() (leakcheck.Snapshot, error) {
		all, err := leakcheck.Take()
		s := all.Only(args[0])
		for _, m := range all.Mounts {
			if strings.HasSuffix(m, " "+args[1]) || strings.Contains(m, " "+args[1]+"/") {
				s.Mounts = append(s.Mounts, m)
			}
		}
		return s, err
	})
	if err != nil {
		return err
	}
	if len(left) > 0 {
		return fmt.Errorf("left behind: %s", strings.Join(left, "; "))
	}
	fmt.Fprintf(out, "left behind by instance %s: nothing (control groups, processes, mounts)\n", args[0])
	return nil
}
