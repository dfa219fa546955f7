package cgroup

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dsec-io/dsec/internal/leakcheck"
	"github.com/dsec-io/dsec/internal/need"
	"golang.org/x/sys/unix"
)

// The test binary plays these parts when it is started again, with the part as its first argument.
const (
	partJoin  = "join"  // N ARGV...: write "0" to descriptors 3 to N+2, then exec ARGV
	partHog   = "hog"   // MIB: touch so much memory, say so, wait for the end of stdin
	partBurn  = "burn"  // DURATION: use a processor for so long
	partShard = "shard" // as a shard would, with its directories as descriptors 3 to 6
)

func TestMain(m *testing.M) {
	if len(os.Args) > 2 {
		switch os.Args[1] {
		case partJoin:
			join(os.Args[2], os.Args[3:])
		case partHog:
			hog(os.Args[2])
		case partBurn:
			burn(os.Args[2])
		case partShard:
			actAsShard(os.Args[2])
			os.Exit(0)
		}
	}
	os.Exit(m.Run())
}

func join(count string, argv []string) {
	n, err := strconv.Atoi(count)
	for fd := 3; err == nil && fd < 3+n; fd++ {
		_, err = unix.Write(fd, []byte("0"))
	}
	if err == nil {
		err = unix.Exec(argv[0], argv, os.Environ())
	}
	fmt.Fprintln(os.Stderr, "join:", err)
	os.Exit(99)
}

func hog(mib string) {
	n, err := strconv.Atoi(mib)
	if err != nil {
		os.Exit(99)
	}
	b, err := unix.Mmap(-1, 0, n<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		os.Exit(98)
	}
	for i := 0; i < len(b); i += 4096 {
		b[i] = 1
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

func burn(duration string) {
	d, err := time.ParseDuration(duration)
	if err != nil {
		os.Exit(99)
	}
	for start := time.Now(); time.Since(start) < d; {
	}
	os.Exit(0)
}

// driver opens the hierarchies of this machine for an instance of the test's own, and at the end has all of it removed
// and sees that nothing is left.
func driver(t *testing.T, name string) *Driver {
	t.Helper()
	need.Root(t)
	instance := fmt.Sprintf("cgtest%d%s", os.Getpid(), name)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := RemoveAll(ctx, instance); err != nil {
			t.Errorf("RemoveAll(): %v", err)
		}
		s, err := leakcheck.Take()
		if left := s.Only(instance).Cgroups; err != nil || len(left) > 0 {
			t.Errorf("left in the kernel: %v, %v", left, err)
		}
	})
	d, err := Open(instance)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func shard(t *testing.T, d *Driver, name string, uid int) *Shard {
	t.Helper()
	s, err := d.Shard(name, uid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func box(t *testing.T, s *Shard, name string, l Limits) *Box {
	t.Helper()
	b, err := s.Box(name, l)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// command is a command that will run in the box, joined as a sandbox's init is.
func command(t *testing.T, b *Box, argv ...string) *exec.Cmd {
	t.Helper()
	j, err := b.JoinFDs()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(j.V2) })
	args := append([]string{partJoin, strconv.Itoa(len(j.Procs))}, argv...)
	c := exec.CommandContext(t.Context(), "/proc/self/exe", args...)
	c.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: j.V2}
	for _, fd := range j.Procs {
		f := os.NewFile(uintptr(fd), "cgroup.procs")
		t.Cleanup(func() { f.Close() })
		c.ExtraFiles = append(c.ExtraFiles, f)
	}
	c.Stderr = os.Stderr
	return c
}

// startHog starts a process in the box that holds so many MiB, and waits until it does. The function ends it.
func startHog(t *testing.T, b *Box, mib int) (stop func()) {
	t.Helper()
	c := command(t, b, "/proc/self/exe", partHog, strconv.Itoa(mib))
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("hog says %q, %v; %v", line, err, c.Wait())
	}
	return func() {
		in.Close()
		if err := c.Wait(); err != nil {
			t.Errorf("hog: %v", err)
		}
	}
}

// eventually calls ok until it is true.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("never came true: %s", what)
		}
	}
}

func usage(t *testing.T, b *Box) Usage {
	t.Helper()
	u, err := b.Usage()
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// read reads one of the kernel's files as it is.
func read(t *testing.T, dir int, path string) string {
	t.Helper()
	b, err := readFile(dir, path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}
