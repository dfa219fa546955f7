package files

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/aether/unixfd"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

// shards are the shard processes of a node.
func shards(t testing.TB, n *testbed.Node) []int {
	t.Helper()
	var pids []int
	groups, err := filepath.Glob("/sys/fs/cgroup/**/dsec-" + n.Instance() + "/shard-*/self/cgroup.procs")
	if err != nil {
		t.Fatal(err)
	}
	more, err := filepath.Glob("/sys/fs/cgroup/dsec-" + n.Instance() + "/shard-*/self/cgroup.procs")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range append(groups, more...) {
		raw, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(raw)) {
			pid := 0
			if _, err := fmt.Sscan(line, &pid); err == nil && pid > 1 {
				pids = append(pids, pid)
			}
		}
	}
	if len(pids) == 0 {
		t.Fatal("the node has no shard")
	}
	return pids
}

// unfinished lists the unfinished files of uploads.
func unfinished(t testing.TB, sb *libdsec.Sandbox) string {
	t.Helper()
	return testbed.Output(t, sb, "find / -xdev -name '.dsec-*'")
}

// held is content that stops in the middle until it is let go.
type held struct {
	sent  int
	first []byte
	reach chan struct{} // closed when the first part was taken
	goOn  chan struct{}
}

func newHeld(n int) *held {
	return &held{first: bytes.Repeat([]byte("new"), n/3), reach: make(chan struct{}), goOn: make(chan struct{})}
}

var errLetGo = errors.New("the upload ends here")

// Read implements [io.Reader].
func (h *held) Read(p []byte) (int, error) {
	if h.sent == len(h.first) {
		close(h.reach)
		<-h.goOn
		return 0, errLetGo
	}
	n := copy(p, h.first[h.sent:])
	h.sent += n
	return n, nil
}

// TestCase42KilledInTheMiddle kills what takes part in an upload with -9 while it is on its way: the old file stays, whole,
// and nothing is left beside it.
func TestCase42KilledInTheMiddle(t *testing.T) {
	for _, what := range []string{"shard", "node"} {
		for _, how := range []string{"write", "untar"} {
			t.Run(what+"-"+how, func(t *testing.T) {
				t.Parallel()
				n := testbed.Start(t, testbed.Options{Keep: true})
				sb := n.Create(t, api.Spec{})
				put(t, sb.Files(), "/d/f", "old")
				h := newHeld(3 << 20)
				ended := make(chan error, 1) // one result
				go func() {
					if how == "write" {
						_, err := sb.Files().Write(t.Context(), "/d/f", h, libdsec.WriteOptions{})
						ended <- err
						return
					}
					var head bytes.Buffer
					_ = tar.NewWriter(&head).WriteHeader(&tar.Header{Name: "f", Typeflag: tar.TypeReg, Size: 8 << 20, Mode: 0o644}) // a buffer takes it
					_, err := sb.Files().Untar(t.Context(), "/d", io.MultiReader(&head, h))
					ended <- err
				}()
				<-h.reach
				testbed.Until(t, hang, "the unfinished file", func() bool { return unfinished(t, sb) != "" })
				if what == "shard" {
					for _, pid := range shards(t, n) {
						if err := unix.Kill(pid, unix.SIGKILL); err != nil {
							t.Fatal(err)
						}
					}
				} else {
					n.Kill(t)
				}
				close(h.goOn)
				if err := <-ended; err == nil {
					t.Error("the upload says that it worked")
				}
				if what == "node" {
					n.Restart(t)
					sb = n.Client.Sandbox(sb.ID())
				}
				testbed.Until(t, hang, "the old file and nothing else", func() bool {
					got, err := sb.Files().ReadFile(t.Context(), "/d/f")
					if err != nil {
						return false
					}
					if string(got) != "old" {
						t.Fatalf("the file is %.100q", got)
					}
					r, err := sb.Exec(t.Context(), libdsec.Cmd{Shell: "find / -xdev -name '.dsec-*'"})
					return err == nil && len(r.Stdout) == 0
				})
				put(t, sb.Files(), "/d/f", "newer")
				wantContent(t, sb.Files(), "/d/f", "newer")
			})
		}
	}
}

// TestCase38DiskFull has a data folder on a file system that runs full: what can't be written is refused as such, what
// was there stays, and what was freed can be used.
func TestCase38DiskFull(t *testing.T) {
	small, err := os.MkdirTemp("", "dsec-small")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(small) })
	if err := unix.Mount("tmpfs", small, "tmpfs", 0, "size=64m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(small, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	t.Setenv("TMPDIR", small)
	n := testbed.Start(t, testbed.Options{})
	sb := n.Create(t, api.Spec{Resources: api.Resources{MemoryMB: new(int64(512))}})
	f := sb.Files()
	put(t, f, "/d/f", "old")
	const much = 200 << 20
	zeros := func() io.Reader { return io.LimitReader(filler{}, much) }
	_, err = f.Write(t.Context(), "/d/f", zeros(), libdsec.WriteOptions{})
	if !libdsec.IsCode(err, api.CodeDiskFull) {
		t.Errorf("a write of more than there is room for: %v", err)
	}
	wantContent(t, f, "/d/f", "old")
	var head bytes.Buffer
	if err := tar.NewWriter(&head).WriteHeader(&tar.Header{Name: "f", Typeflag: tar.TypeReg, Size: much, Mode: 0o644}); err != nil {
		t.Fatal(err)
	}
	_, err = f.Untar(t.Context(), "/d", io.MultiReader(&head, zeros()))
	if !libdsec.IsCode(err, api.CodeDiskFull) || !strings.Contains(err.Error(), "0 entries before it") {
		t.Errorf("an archive of more than there is room for: %v", err)
	}
	wantContent(t, f, "/d/f", "old")
	status, body := faced{n, sb.ID()}.do(t, http.MethodPut, url.Values{"path": {"/d/g"}}, zeros())
	wantProblem(t, status, body, api.CodeDiskFull)
	if got := unfinished(t, sb); got != "" {
		t.Errorf("left behind: %s", got)
	}
	// What fills it from inside counts, too.
	testbed.Output(t, sb, "dd if=/dev/zero of=/filler bs=65536 2>/dev/null; true")
	_, err = f.WriteFile(t.Context(), "/d/h", make([]byte, 1<<20), libdsec.WriteOptions{})
	if !libdsec.IsCode(err, api.CodeDiskFull) {
		t.Errorf("a write to a full disk: %v", err)
	}
	wantContent(t, f, "/d/f", "old")
	if err := f.Remove(t.Context(), "/filler"); err != nil {
		t.Fatal(err)
	}
	put(t, f, "/d/h", "there is room again")
	wantContent(t, f, "/d/h", "there is room again")
}

// filler is content without end that isn't all zeros.
type filler struct{}

// Read implements [io.Reader].
func (filler) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(i) | 1
	}
	return len(p), nil
}

// TestCase41Scale lists a directory of 100,000 files, and runs out of descriptors: an error and never a shorter list.
func TestCase41Scale(t *testing.T) {
	n := testbed.Start(t, testbed.Options{Hooks: true})
	sb := n.Create(t, api.Spec{})
	f := sb.Files()
	const files = 100_000
	var empty bytes.Buffer
	w := tar.NewWriter(&empty)
	for i := range files {
		if err := w.WriteHeader(&tar.Header{Name: fmt.Sprintf("file-with-a-name-%d", i), Typeflag: tar.TypeSymlink, Linkname: "x", Mode: 0o777}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := f.Untar(t.Context(), "/many", &empty); err != nil || got != files {
		t.Fatalf("%d, %v", got, err)
	}
	count := func() (int, error) {
		seen := 0
		for _, err := range f.List(t.Context(), "/many") {
			if err != nil {
				return seen, err
			}
			seen++
		}
		return seen, nil
	}
	pid := shards(t, n)[0]
	var before int64
	for round := range 6 {
		if got, err := count(); err != nil || got != files {
			t.Fatalf("%d of %d are listed, %v", got, files, err)
		}
		if round == 1 {
			before = resident(t, pid)
		}
	}
	const room = 16 << 20
	if after := resident(t, pid); after > before+room {
		t.Errorf("the shard's memory grew from %d to %d bytes by listing", before, after)
	}
	// No descriptor is left for the shard.
	shard := shardConn(t, n)
	allow(t, shard, 10)
	failed := 0
	for range 20 {
		got, err := count()
		if err == nil && got != files {
			t.Errorf("a list of %d files without an error", got)
		}
		if err != nil {
			failed++
			wantCode(t, err, api.CodeNoCapacity)
		}
		if err := drain(f.Tar(t.Context(), "/many")); err != nil {
			failed++
		}
	}
	allow(t, shard, 1<<30)
	if failed == 0 {
		t.Error("nothing failed without descriptors")
	}
	t.Logf("%d of 40 requests failed without descriptors", failed)
	if got, err := count(); err != nil || got != files {
		t.Errorf("afterwards %d of %d are listed, %v", got, files, err)
	}
	if err := f.RemoveAll(t.Context(), "/many"); err != nil {
		t.Error(err)
	}
}

func wantCode(t testing.TB, err error, code api.Code) {
	t.Helper()
	if !libdsec.IsCode(err, code) {
		t.Errorf("%v, want %s", err, code)
	}
}

// shardConn connects to the node's first shard as its edge does.
func shardConn(t testing.TB, n *testbed.Node) *aether.Conn {
	t.Helper()
	raw, err := unixfd.Dial(t.Context(), filepath.Join(n.Dir, "run", "s0.sock"), unixfd.Options{})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := aether.Client(raw, aether.Options{Name: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// allow lets a shard have so many descriptors; those that are open stay.
func allow(t testing.TB, shard *aether.Conn, descriptors int) {
	t.Helper()
	if _, err := aether.Unary(t.Context(), shard, aether.Open{Method: "fds", Body: fmt.Append(nil, descriptors), Closed: true}); err != nil {
		t.Fatal(err)
	}
}

// resident is a process's memory in bytes.
func resident(t testing.TB, pid int) int64 {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		t.Fatal(err)
	}
	var size, pages int64
	if _, err := fmt.Sscan(string(raw), &size, &pages); err != nil {
		t.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}

// drain reads to the end.
func drain(r io.ReadCloser, err error) error {
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, r)
	return errors.Join(err, r.Close())
}

// TestCase34SeenByARunningProgram: a program that runs sees uploads at once, those over a file that it looks at too, and
// keeps what it has open.
func TestCase34SeenByARunningProgram(t *testing.T) {
	t.Parallel()
	sb := testbed.Shared(t).Create(t, api.Spec{})
	f := sb.Files()
	put(t, f, "/dir/f", "one\n")
	p, err := sb.Start(t.Context(), libdsec.Cmd{Shell: `exec 3< /dir/f; : > /opened; cd /dir; for want in one two three; do
		until grep -q $want f 2>/dev/null; do :; done; echo saw $want; done; cat <&3; cat renamed`}, libdsec.StartOptions{})
	if err != nil {
		t.Fatal(err)
	}
	testbed.Output(t, sb, "until [ -e /opened ]; do :; done")
	put(t, f, "/dir/f", "two\n")
	put(t, f, "/dir/other", "renamed\n")
	if _, err := f.Rename(t.Context(), "/dir/other", "/dir/renamed"); err != nil {
		t.Fatal(err)
	}
	testbed.Output(t, sb, "until [ -e /dir/renamed ]; do :; done")
	var out bytes.Buffer
	put(t, f, "/dir/f", "one two three\n")
	if _, err := io.Copy(&out, p.Stdout()); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); got != "saw one\nsaw two\nsaw three\none\nrenamed\n" {
		t.Errorf("the program saw %q", got)
	}
}

// TestCase40EverythingSpecial reads, packs and looks at all that /dev and /proc have: nothing makes a request hang or
// costs memory.
func TestCase40EverythingSpecial(t *testing.T) {
	t.Parallel()
	sb := testbed.Shared(t).Create(t, api.Spec{})
	f := sb.Files()
	paths := strings.Fields(testbed.Output(t, sb, "find /dev /proc/1 /proc/sys /proc/net /sys/kernel -maxdepth 2 2>/dev/null; ls -d /proc/[a-z]*"))
	if len(paths) < 100 {
		t.Fatalf("%d paths", len(paths))
	}
	const soon = 20 * time.Second // a loaded machine's second
	for _, path := range paths {
		start := time.Now()
		r, err := f.Open(t.Context(), path, libdsec.ReadOptions{})
		if err == nil {
			_, err = io.Copy(io.Discard, io.LimitReader(r, 1<<20))
			_ = r.Close() // never fails
		}
		took := time.Since(start)
		if e, typed := errors.AsType[*api.Error](err); took > soon || err != nil && (!typed || e.Code == api.CodeInternal) {
			t.Errorf("read %s: %v after %v", path, err, took)
		}
	}
	if _, err := f.Stat(t.Context(), "/dev/zero"); err != nil {
		t.Error(err)
	}
	start := time.Now()
	if err := drain(f.Tar(t.Context(), "/dev")); err != nil && time.Since(start) > soon {
		t.Errorf("pack /dev: %v after %v", err, time.Since(start))
	}
}

// TestCase32Bombs unpacks archives that are larger than they look.
func TestCase32Bombs(t *testing.T) {
	t.Parallel()
	sb := testbed.Shared(t).Create(t, api.Spec{})
	f := sb.Files()
	// One file of 8 GiB that is all holes takes a block or two in the archive, and on the disk.
	const size = 8 << 30
	n, err := f.Untar(t.Context(), "/in", bytes.NewReader(sparse(size)))
	if err != nil || n != 1 {
		t.Fatalf("%d, %v", n, err)
	}
	if got := testbed.Output(t, sb, "stat -c %s /in/holes; [ $(stat -c %b /in/holes) -lt 1000 ] && echo small; tail -c 4 /in/holes"); got != fmt.Sprintf("%d\nsmall\nend", size) {
		t.Errorf("%q", got)
	}
}

// sparse is an archive in GNU's old format with one file that ends in "end\n" and has nothing before.
func sparse(size int64) []byte {
	h := make([]byte, 512)
	octal := func(at, n int, v int64) { copy(h[at:], fmt.Sprintf("%0*o", n-1, v)) }
	base256 := func(at int, v int64) {
		h[at] = 0x80
		for i := range 8 {
			h[at+11-i] = byte(v >> (8 * i))
		}
	}
	copy(h, "holes")
	octal(100, 8, 0o644)
	octal(108, 8, 0)
	octal(116, 8, 0)
	octal(124, 12, 4) // bytes that are here
	octal(136, 12, 0)
	h[156] = 'S'
	copy(h[257:], "ustar  \x00")
	base256(386, size-4)
	octal(398, 12, 4)
	base256(483, size)
	copy(h[148:], "        ")
	sum := int64(0)
	for _, b := range h {
		sum += int64(b)
	}
	copy(h[148:], fmt.Sprintf("%06o\x00 ", sum))
	data := make([]byte, 512+1024)
	copy(data, "end\n")
	return append(h, data...)
}
